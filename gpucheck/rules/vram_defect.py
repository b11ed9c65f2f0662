"""Memory of a card does not hold what is written to it.

What it means
gpucheck filled the free memory of the card with a pattern, and some of it read back otherwise.

How we know
Only --deep looks. Every word of eight bytes gets a number that no other place has; when all is filled,
the numbers are made again and compared; then the same with every bit inverted. The finding tells how
many words differed and the first of them. The offset counts from the beginning of what was filled: it
is no physical address, and moves from run to run.

Why it matters
A wrong bit in a parameter spoils a training without any error. Cards for games have no ECC, and
those with ECC correct only single bits.

What to do
Run it once more. Take overclocking off, and look at the temperature of the card. If it stays, run a
memory test of another kind (memtest_vulkan) and have the card replaced.

When it is wrong
The pattern is made and compared by the card itself, so a fault of its processor shows here too; a
training on this card alone then fails as well. Memory that other programs hold is not tested.

Sources
https://github.com/GpuZelenograd/memtest_vulkan/issues/31 (part of the memory is enough: most faults are on the way
to it)
"""
