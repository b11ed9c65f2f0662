"""The installed TensorFlow was built without GPU support.

What it means
The package can use no GPU whatever is in the machine.

How we know
Its own build information says that it is neither a CUDA nor a ROCm build.

Why it matters
Driver and card may be in perfect order; nothing below TensorFlow needs to be touched.

What to do
pip uninstall tensorflow-cpu tensorflow, then pip install "tensorflow[and-cuda]" (before Turing:
"gpucheck-server[cuda-pascal-volta]"). The plain package on Windows and macOS has no CUDA either.

When it is wrong
Two packages in one environment may overwrite each other's files; uninstall both before installing.

Sources
https://github.com/tensorflow/tensorflow/issues/62328 (a CPU-only package among the causes)
"""
