"""A card is in use by another process.

What it means
Somebody else computes on the card, so it was not trained on: that would have disturbed their work
and measured a shared card.

How we know
NVML lists processes with a compute context on the card before anything is started. One that comes while
the training runs gives a warning.

Why it matters
A training takes memory and time that the other process counts on.

What to do
Wait (--if-busy wait), leave the card out (--if-busy skip), or stop the process that is named.

When it is wrong
Monitoring agents may hold a context without computing. From inside a container the process numbers
are those of the host.

Sources
https://docs.nvidia.com/deploy/nvml-api/ (nvmlDeviceGetComputeRunningProcesses)
"""
