"""Registers in PCI configuration space: capabilities, slot and link of a port, access control.

Pure functions over the bytes that were read. The kernel shows 64 of them to everybody and the rest
to root: what lies beyond the bytes at hand is None, which means not read.
"""

from __future__ import annotations

from gpucheck.facts import Port

PLAIN_BYTES = 256
"""All that PCI before Express had; the capabilities of Express lie in it."""
WHOLE_BYTES = 4096

_EXPRESS = 0x10
_ACCESS_CONTROL = 0x000D
_SERIAL_NUMBER = 0x0003

_SERVICES = ("SrcValid", "TransBlk", "ReqRedir", "CmpltRedir", "UpstreamFwd", "EgressCtrl", "DirectTrans")
"""Bits of the ACS control register from the lowest, as lspci names them."""


def word(config: bytes, offset: int) -> int:
    """16 bits."""
    return int.from_bytes(config[offset : offset + 2], "little")


def double_word(config: bytes, offset: int) -> int:
    """32 bits."""
    return int.from_bytes(config[offset : offset + 4], "little")


def express(config: bytes) -> int | None:
    """Offset of the PCI Express capability; None where it is not in the bytes at hand."""
    if len(config) < 0x40 or not word(config, 6) & 0x10:
        return None
    offset = config[0x34] & 0xFC
    for _ in range(48):
        if offset < 0x40 or offset + 0x14 > len(config):
            return None
        if config[offset] == _EXPRESS:
            return offset
        offset = config[offset + 1] & 0xFC
    return None


def port(config: bytes) -> Port | None:
    """Slot and link of a root port or switch port.

    None where that was not read, for a port without a slot, and for one that cannot tell whether
    its link is up.
    """
    at = express(config)
    if at is None or at + 0x1C > len(config):
        return None
    has_slot = bool(word(config, at + 0x02) & 0x100)
    tells_link = bool(double_word(config, at + 0x0C) & 1 << 20)
    if not (has_slot and tells_link):
        return None
    has_power_control = bool(double_word(config, at + 0x14) & 0x2)
    return Port(
        presence=bool(word(config, at + 0x1A) & 1 << 6),
        link_active=bool(word(config, at + 0x12) & 1 << 13),
        link_disabled=bool(word(config, at + 0x10) & 1 << 4),
        power_off=has_power_control and bool(word(config, at + 0x18) & 1 << 10),
    )


def _extended(config: bytes, wanted: int) -> int | None:
    """Offset of an extended capability; None without it, or where its list was not read."""
    offset = PLAIN_BYTES
    for _ in range(256):
        if offset < PLAIN_BYTES or offset + 12 > len(config):
            return None
        header = double_word(config, offset)
        if header & 0xFFFF == wanted:
            return offset
        offset = header >> 20 & 0xFFC
    return None


def access_control(config: bytes) -> tuple[str, ...] | None:
    """Access control services that are on; empty where none is, or the device has none to switch.
    None where extended configuration space was not read."""
    if len(config) < WHOLE_BYTES:
        return None
    at = _extended(config, _ACCESS_CONTROL)
    control = word(config, at + 6) if at is not None else 0
    return tuple(name for bit, name in enumerate(_SERVICES) if control & 1 << bit)


def without_serial_number(config: bytes) -> bytes:
    """The same registers with zeros where a device tells its serial number."""
    at = _extended(config, _SERIAL_NUMBER)
    return config if at is None else config[: at + 4] + bytes(8) + config[at + 12 :]
