"""A device was fed other samples than those of its shard.

What it means
Every step has one global batch, and each device trains on its own part of it. This device saw other
numbers: another device's part, or its own with damage.

How we know
The device itself adds up the images that it is given, in the graph that trains. The sum is held
against that of the same part on the CPU. Rounding leaves about 1e-8 of the sum of sizes; the limit
is 1e-5, and the samples of another part differ by more than 1e-3.

Why it matters
Replicas that all train on one part agree with each other to the last bit, and learn from a fraction
of the data.

What to do
One card named: its samples are made on the card, so look at memory errors, and test the card in
another slot. Every card named: then the batch was divided wrongly, which is a fault of gpucheck or
of this version of TensorFlow; report it.

When it is wrong
TensorFlow documents that its stateless random numbers are the same on CPU and GPU. A version that
broke this would have every card named.

Sources
https://www.tensorflow.org/api_docs/python/tf/random/stateless_uniform (the same on CPU and GPU)
"""
