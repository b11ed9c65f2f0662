"""Cards hang when they copy to each other directly.

What it means
Cards of one machine may read and write each other's memory over PCIe or NVLink (peer access). Here
such copies never arrive, although the driver allows them.

How we know
The training hung. The same training with NCCL_P2P_DISABLE=1, which sends everything through the
host's memory, came to its end with the right result. Where pairs were tried, the finding names the
pair.

Why it matters
Every training over several cards stops in its first step, at 100 % utilisation and without an error.

What to do
Until it is mended, set NCCL_P2P_DISABLE=1: slower, and right. Then switch ACS off in the firmware: it
sends copies between cards through the IOMMU. Switch the IOMMU off, or to pass-through (iommu=pt on
the kernel's command line). In a virtual machine peer access needs both cards behind one switch that is
passed through with them.

When it is wrong
If the hang comes only now and then, the second try may have been luck: run gpucheck smoke --deep
several times with and without the variable.

Sources
https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html (ACS, IOMMU)
https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html (NCCL_P2P_DISABLE)
https://github.com/tensorflow/tensorflow/issues/94650 (collectives start, no step is finished)
"""
