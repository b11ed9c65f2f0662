"""What the return codes of NVML mean: for readers that meet them and rules that tell of them."""

from __future__ import annotations

NOT_SUPPORTED, NO_PERMISSION, NOT_FOUND, LIBRARY_NOT_FOUND = 3, 4, 6, 12
GPU_IS_LOST, RESET_REQUIRED, OPERATING_SYSTEM = 15, 16, 17
"""nvmlReturn_t, those that decide something."""

MEANINGS = {
    1: "NVML was not started",
    2: "the arguments were refused",
    3: "not supported by this card or driver",
    4: "this user may not ask that",
    6: "not found",
    8: "the card's auxiliary power is not connected",
    9: "the NVIDIA kernel driver is not loaded",
    10: "the driver did not answer NVML in time",
    11: "the card's interrupts do not arrive",
    12: "the library libnvidia-ml.so.1 is not installed",
    13: "the installed driver does not have this function",
    14: "the card's infoROM is corrupt",
    15: "the card is lost: it fell off the bus or cannot be reached",
    16: "the card needs a reset",
    17: "the operating system blocks the NVIDIA device files (cgroup)",
    18: "kernel module and user library have different versions",
    19: "the card is in use",
    20: "memory ran out",
    25: "driver and library disagree about a structure",
    27: "the card is not ready yet",
    28: "the driver drives no card",
    29: "the card is in the wrong state for that",
    999: "unknown error; the kernel log may tell more",
}
"""nvmlReturn_t in our words."""


def meaning(code: int) -> str:
    """What a return code says, as the end of a sentence."""
    return MEANINGS.get(code, "an error that gpucheck has no words for")
