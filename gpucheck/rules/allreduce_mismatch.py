"""What the replicas got back is not the sum of what they sent.

What it means
In every step the gradients of all replicas are added up over the links between the cards. Here the
result was something else: a part was lost, damaged or counted twice, or some card got another sum.

How we know
Each device keeps a checksum of the gradients that it sends and of those that it gets back. The
checksum is linear, so that the checksums of what was sent must add up to that of what came back.
Rounding leaves about 1e-8 of the sizes; the limit is 1e-5.

Why it matters
The cards no longer train one model. Nothing crashes, and the loss may even fall.

What to do
The cards compute rightly by themselves, so look at the way between them. Set NCCL_P2P_DISABLE=1; if
the sum is right then, switch ACS (or the IOMMU) off in the firmware, or look at a riser.

When it is wrong
Gradients that are no numbers before they are sent say nothing of the sum; that is a
gradient-mismatch.

Sources
https://github.com/tensorflow/tensorflow/issues/57893 (NaN with several cards until ACS was off)
"""
