"""Two cards hang when they work together.

What it means
Each of the two cards trains rightly alone. Together they begin a step and never end it, whether or
not they may copy to each other directly, or that was not tried.

How we know
After a hang of all cards, and with --deep, gpucheck trains each card alone, then every pair, then
all, each in a time of its own. The trials are in the report. A pair that said nothing for 30 s hangs;
the process is ended by SIGKILL and the next pair is tried in a new one.

Why it matters
All cards wait in every step for the two that hang: the utilisation shows 100 % and nothing is done.

What to do
Read the kernel log of that moment for both addresses. Exchange the slots of the two cards: if the
hang stays with the slots, look at the riser, the switch or the processor between them; if it goes with
the cards, train each of them with another card.

When it is wrong
A first start that compiles kernels for minutes looks the same. The cards ran alone before, so that
their own kernels are there; run it once more with a larger --timeout.

Sources
https://github.com/tensorflow/tensorflow/issues/22463 (only certain pairs of cards hang)
"""
