"""The training process ended before it was done.

What it means
The process that trains crashed, was killed, or met an error that it could report.

How we know
Its end came without a result. The exit code or signal, the phase and step that it had reached and
the telling lines of its log are the evidence.

Why it matters
An error in the driver or the libraries of one card takes the whole training with it.

What to do
SIGKILL without a time-out is mostly the kernel's out-of-memory killer: see the kernel log. SIGILL
while TensorFlow is loaded: the CPU lacks instructions (AVX) that the package needs. SIGSEGV or
"no kernel image": the libraries hold no code for the card. Otherwise run gpucheck probe.

When it is wrong
Somebody may have ended the process by hand.

Sources
https://github.com/tensorflow/tensorflow/issues/39110 (tiny allocations fail when memory is all taken)
"""
