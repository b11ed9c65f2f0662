"""The memory of a card made errors while it trained.

What it means
The card's memory gave wrong data, and its error correction (ECC) mended it: the result is right. Such
errors may come under load only, and stop when the card is idle.

How we know
NVML's counter of corrected errors since the driver was loaded is read many times from before the
training until after it; what it rose by is told. One to nine errors are an information, more a warning.
Errors that could not be corrected are told as ecc-uncorrectable.

Why it matters
One corrected error is a stray particle. Many within seconds are a failing memory chip, and the next one
may not be correctable.

What to do
Take the card out of use, read its memory health (nvidia-smi -q -d ECC,ROW_REMAPPER,PAGE_RETIREMENT),
reset it, train again. If the errors come back, replace the card.

When it is wrong
Cards without ECC, or with ECC switched off, count nothing: silence says nothing there.

Sources
https://docs.nvidia.com/deploy/nvml-api/group__nvmlDeviceQueries.html (nvmlDeviceGetTotalEccErrors)
https://github.com/NVIDIA/NVSentinel/issues/1748 (errors by thousands a second under load, none when idle)
"""
