"""Configuration space of invented bridges: header, PCI Express capability, serial number, ACS."""

from __future__ import annotations

import struct

SERIAL = bytes.fromhex("0011223344556677")
REDIRECTS = 0x1D
"""SrcValid, ReqRedir, CmpltRedir, UpstreamFwd: what a kernel switches on with the IOMMU."""


def bridge(
    *,
    presence: bool = False,
    link: bool = False,
    disabled: bool = False,
    power_off: bool = False,
    slot: bool = True,
    tells_link: bool = True,
    acs: int | None = 0,
    size: int = 4096,
) -> bytes:
    """The first ``size`` bytes of a port's 4096; ``acs`` is its control register, None without any."""
    config = bytearray(4096)
    struct.pack_into("<HHHH", config, 0, 0x8086, 0x6F08, 0x0406, 0x0010)
    struct.pack_into("<I", config, 8, 0x0604_0000)
    config[0x0E], config[0x34] = 1, 0x40
    struct.pack_into("<BB", config, 0x40, 0x01, 0x90)  # power management, then
    struct.pack_into("<BBH", config, 0x90, 0x10, 0x00, 0x0042 | slot << 8)
    struct.pack_into("<I", config, 0x9C, 0x0003_F103 | tells_link << 20)
    struct.pack_into("<HH", config, 0xA0, disabled << 4, 0x0103 | link << 13)
    struct.pack_into("<IHH", config, 0xA4, 0x2, power_off << 10, presence << 6)
    struct.pack_into("<I8s", config, 0x100, 0x1400_0000 | 0x1_0003, SERIAL)
    if acs is not None:
        struct.pack_into("<IHH", config, 0x140, 0x1_000D, 0x5F, acs)
    return bytes(config[:size])
