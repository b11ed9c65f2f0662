"""The replicas ended with different parameters.

What it means
Data-parallel replicas start equal and apply the same summed gradients, so they stay equal, bit for
bit. These did not: at least one began with other parameters, or applied another sum.

How we know
The parameters of all replicas are read before the first step and held against those that were given,
and read after the last step and held against each other; any difference counts.
The replica that is furthest from the single-device training is named.

Why it matters
Each card trains a model of its own, and which of them is saved is chance.

What to do
Set NCCL_P2P_DISABLE=1 and compare. If that helps, peer-to-peer traffic is damaged on its way (ACS,
IOMMU, a riser); if not, look at memory errors of the card that is named.

When it is wrong
The converse does not hold: replicas that agree may all be wrong in the same way, which only the
comparison with one device shows.

Sources
https://github.com/tensorflow/tensorflow/issues/57893 (peer traffic through ACS)
"""
