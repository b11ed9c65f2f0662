"""TensorFlow is not installed for this Python.

What it means
The Python that runs gpucheck has no TensorFlow, so nothing was trained, and nothing is said of any
card.

How we know
The training process could not import it.

Why it matters
Only a training proves that a card does its work.

What to do
pip install "gpucheck-server[smoke]" brings a TensorFlow for CPUs, enough to try the training on
logical devices. On a machine with NVIDIA cards install "gpucheck-server[cuda]", or
"gpucheck-server[cuda-pascal-volta]" for cards before Turing.

When it is wrong
TensorFlow may be installed for another Python: run gpucheck with that one (python -m gpucheck).

Sources
https://www.tensorflow.org/install/pip
"""
