"""The training differs from the single-device training.

What it means
After the same number of steps on the same global batches, the parameters of the data-parallel
training are not those of a training on one device. Either a device computes wrongly, or what the
devices exchange is lost, mixed up or weighted wrongly.

How we know
The same training runs once more on the CPU alone. In float32, without TF32, the two differ by less
than 1e-6 when all is well; the limit is 1e-5, and faults of weighting or reduction leave differences
far above it. Before that, every device makes one update by itself, which is compared with the CPU's:
a device that is wrong alone is named.

Why it matters
Nothing crashes. The loss may even fall, only to a worse model, or turn into NaN after hours.

What to do
Named device: memory errors, heat and power, then the card in another slot. No device named: the
way between the cards. Set NCCL_P2P_DISABLE=1; if the difference goes away, switch ACS (or the
IOMMU) off in the firmware.

When it is wrong
A message that parameters hardly moved says that the comparison had nothing to compare.

Sources
https://github.com/tensorflow/tensorflow/issues/57893 (NaN with several cards until ACS was off)
"""
