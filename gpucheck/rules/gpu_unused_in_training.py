"""A card took no part in the training.

What it means
The card is there, but something that it should have done in the training was not done on it: its
replica missed steps or samples, its parameters, its batch or its arithmetic lay on another device,
NVML saw neither memory nor work on it, or TensorFlow did not list it at all.

How we know
Each replica counts steps and samples in variables that only its own part of the graph advances, on
its own device. TensorFlow tells on which device parameters and batches lie, and its placer logs
where it puts each convolution and matrix product. Meanwhile NVML is asked for memory, utilisation,
energy and processes of every card. All of it is joined by PCI address.

Why it matters
A program that takes memory on all cards and works on one looks like a multi-GPU training in every
list of processes, at the speed of one card.

What to do
Read the evidence: it names what was missing. For a card that TensorFlow does not list, run
gpucheck probe. For one that is listed and idle, train on it alone with CUDA_VISIBLE_DEVICES.

When it is wrong
As an info it only notes a card of a maker that this TensorFlow does not drive. In a container NVML
may not see our process; that alone is never counted against a card.

Sources
https://github.com/tensorflow/tensorflow/issues/42039 (some of many cards are listed)
https://github.com/tensorflow/tensorflow/issues/35095 (two cards slower than one)
"""
