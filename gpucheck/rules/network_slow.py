"""Most of a training step is exchange between hosts and waiting.

What it means
A step of all hosts together takes more than twice as long as the slowest of them needs for its own
part. The rest is the exchange of the gradients, within a host too, and waiting for each other.

How we know
Every worker measures a step of its devices alone and, with the same samples, a step of all together.
The slowest alone is subtracted, so that a slow card is not taken for a slow network.

Why it matters
More hosts then add little speed.

What to do
Look at the link that the exchange takes (NCCL_DEBUG=INFO names the interface, NCCL_SOCKET_IFNAME and
NCCL_IB_HCA choose it) and at its rate (ethtool, ibstat). Measure it alone with iperf3 or nccl-tests.

When it is wrong
The net of this training is small, and exchanges its gradients after little work: a real training of
long steps has a smaller share. On logical CPU devices it is never stated.

Sources
https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html
"""
