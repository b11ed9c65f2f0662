"""Device memory is still in use after the training ended.

What it means
More than 64 MiB more memory is in use on the card than before the training, although its process
is gone.

How we know
NVML is asked before the training starts and again after it ended, until the memory is back or five
seconds are over.

Why it matters
The next job finds less memory, or none.

What to do
nvidia-smi lists the processes on the card. If none is left that explains it, reset the card
(nvidia-smi --gpu-reset) or restart the machine.

When it is wrong
Another program may have started on the card meanwhile, such as a desktop session. Where NVML lists a
process that came during the training and is not its own, the finding is a warning and names it.

Sources
https://docs.nvidia.com/deploy/nvml-api/ (nvmlDeviceGetMemoryInfo)
"""
