"""A card is on PCI but TensorFlow lists no GPU.

What it means
TensorFlow was built with GPU support and started, yet found no GPU it can use. Nothing was trained:
a training on the CPU would have looked like a success.

How we know
TensorFlow's list of GPUs is empty while PCI or NVML shows a card. The lines of its log that speak of
drivers and libraries are the evidence.

Why it matters
Most programs go on quietly on the CPU in this case, many times slower.

What to do
Run gpucheck probe first: if NVML does not see the card either, the cause lies below TensorFlow. If
NVML sees it: "Cannot dlopen some GPU libraries" asks for tensorflow[and-cuda] of one consistent
version; "Could not find cuda drivers" often means the same. Look at CUDA_VISIBLE_DEVICES too.

When it is wrong
Where PCI could not be read there may be no card at all; the verdict is then not-run.

Sources
https://github.com/tensorflow/tensorflow/issues/63362 (libraries that pip installed were not found)
https://github.com/tensorflow/tensorflow/issues/62328 (a message that misleads)
"""
