"""Names of the Python packages that bring TensorFlow: for the reader of what is installed and the rules on it."""

from __future__ import annotations

BUILD_INFO = "tensorflow/python/platform/build_info.py"
"""Where TensorFlow tells how it was built, in the folder of packages."""

TENSORFLOW = (
    "tensorflow",
    "tensorflow-gpu",
    "tensorflow-cpu",
    "tensorflow-rocm",
    "tensorflow-intel",
    "tensorflow-macos",
    "intel-tensorflow",
    "nvidia-tensorflow",
    "tf-nightly",
    "tf-nightly-gpu",
    "tf-nightly-cpu",
)
"""Packages that bring the module ``tensorflow``."""
