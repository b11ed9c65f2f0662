"""The link of a card made errors while it trained.

What it means
Packets between card and host arrived damaged during the training. Damaged ones are sent again, which
costs time (correctable); what could not be corrected was lost (nonfatal), and a fatal error ends the
work of the card.

How we know
The kernel's counters (aer_dev_correctable, aer_dev_nonfatal, aer_dev_fatal) of the card and of every
bridge above it, and NVML's counter of packets that were sent again, are read before the training and
after it. Only what rose meanwhile is told. A few corrected errors are an information, ten and more a
warning, a fatal error is an error. A bridge that several cards share is named by itself.

Why it matters
Errors that come only under load are the ones that a look at an idle machine does not show; a stream
of them slows the card down, and often comes before it falls off the bus.

What to do
Seat the card, clean its contacts, check its power leads; try without the riser, and with the slot one
PCIe generation lower. Train again after each step.

When it is wrong
Counters are those of the device, not of the training: another program on a shared bridge adds to them.
A kernel or firmware that handles AER itself counts nothing; then silence is none.

Sources
https://www.kernel.org/doc/Documentation/ABI/testing/sysfs-bus-pci-devices-aer_stats (the counters)
https://docs.nvidia.com/deploy/nvml-api/group__nvmlDeviceQueries.html (nvmlDeviceGetPcieReplayCounter)
"""
