"""An inference gives other outputs than the same net on one device.

What it means
With the same weights and the same samples, a device gave other numbers than the CPU: it computes
wrongly, or its weights or samples are not those that were sent to it.

How we know
The same forward passes run once more on the CPU alone. In float32, without TF32, the outputs differ
by about 1e-6 when all is well; the limit is 1e-4. Before that every device infers by itself,
and one that is wrong alone is named.

Why it matters
Nothing crashes: a served model only gives wrong answers, some of the time.

What to do
Named device: memory errors, heat and power, then the card in another slot. No device named: the way
on which the weights reached the cards. Set NCCL_P2P_DISABLE=1 and compare.

When it is wrong
A message that the outputs are as good as zero says that the comparison had nothing to compare.

Sources
https://github.com/tensorflow/tensorflow/issues/57893 (wrong numbers between cards until ACS was off)
"""
