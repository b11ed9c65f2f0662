from __future__ import annotations

import pytest

from gpucheck import displays
from gpucheck.facts import PciFunction


def function(address: str, ids: str, class_id: int, **more: object) -> PciFunction:
    vendor, device = (int(part, 16) for part in ids.split(":"))
    fields = {"address": address, "vendor_id": vendor, "device_id": device, "class_id": class_id, **more}
    return PciFunction.model_validate(fields)


RAPHAEL = (
    function("0000:0f:00.0", "1002:164e", 0x030000),
    function("0000:0f:00.1", "1002:1640", 0x040300),
    function("0000:0f:00.2", "1022:1649", 0x108000),
    function("0000:0f:00.3", "1022:15b6", 0x0C0330),
)
KAVERI = (
    function("0000:00:00.0", "1022:1422", 0x060000),
    function("0000:00:01.0", "1002:130f", 0x030000),
)


@pytest.mark.parametrize(
    ("found", "around", "kind"),
    [
        (function("0000:04:00.0", "10de:1b38", 0x030200), (), "gpu"),
        (function("0000:04:00.0", "1002:738c", 0x038000), (), "gpu"),
        (function("0000:03:00.0", "8086:56a0", 0x030000), (), "gpu"),
        (function("0000:19:00.0", "1da3:1020", 0x120000), (), "gpu"),
        (function("0000:01:00.0", "1002:74a1", 0x120000), (), "gpu"),
        (function("000f:01:00.0", "10de:2e12", 0x030200), (), "gpu"),
        (function("0000:07:00.0", "1a03:2000", 0x030000), (), "bmc"),
        (function("0000:0a:00.0", "102b:0534", 0x030000), (), "bmc"),
        (function("0000:04:00.0", "19e5:1711", 0x030000), (), "bmc"),
        (function("0000:82:00.0", "19e5:d801", 0x120000), (), "gpu"),
        (function("0000:01:03.0", "1002:515e", 0x030000), (), "bmc"),
        (function("0000:00:02.0", "1234:1111", 0x030000), (), "virtual"),
        (function("0000:00:02.0", "1013:00b8", 0x030000), (), "virtual"),
        (function("0000:00:03.0", "1d0f:1111", 0x030000), (), "virtual"),
        (function("0000:00:0f.0", "15ad:0405", 0x030000), (), "virtual"),
        (function("0000:00:02.0", "8086:591b", 0x030000), (), "processor"),
        (function("0000:00:02.1", "8086:a002", 0x038000), (), "processor"),
        (function("0000:00:0b.0", "8086:7d1d", 0x120000), (), "processor"),
        (function("0000:07:00.0", "8086:09c4", 0x120000), (), "other"),
        (function("0000:07:00.0", "10ee:5005", 0x120000), (), "other"),
        (RAPHAEL[0], RAPHAEL, "processor"),
        (KAVERI[1], KAVERI, "processor"),
        (function("0000:03:00.0", "1002:744c", 0x030000), RAPHAEL, "gpu"),
        (function("0000:04:00.1", "1002:5b70", 0x038000), (), "same-card"),
        (function("0000:04:00.1", "10de:10f0", 0x040300), (), "other"),
        (function("0000:05:00.0", "10de:22a3", 0x068000), (), "other"),
        (function("0000:03:00.0", "8086:225c", 0x0B4000), (), "other"),
    ],
)
def test_kinds(found: PciFunction, around: tuple[PciFunction, ...], kind: str) -> None:
    assert displays.kind_of_display(found, around) == kind
    assert (found in displays.gpu_functions((*around, found))) == (kind == "gpu")
    assert (displays.why_not_counted(found, around) is None) == (kind in ("gpu", "other"))


def test_the_reason_names_the_device() -> None:
    reason = displays.why_not_counted(function("0000:07:00.0", "1a03:2000", 0x030000))
    assert reason == "0000:07:00.0 (1a03:2000) is the display of the server's management controller."


def test_a_function_without_a_device_id_goes_by_its_name() -> None:
    listed = PciFunction(address="0000:07:00.0", vendor_id=0x1A03, device_id=None, class_id=0x030000, name="ASPEED")
    reason = displays.why_not_counted(listed)
    assert reason == "0000:07:00.0 (ASPEED) is the display of the server's management controller."


def test_nvswitch() -> None:
    assert displays.is_nvswitch(function("0000:05:00.0", "10de:22a3", 0x068000))
    assert not displays.is_nvswitch(function("0000:05:00.0", "10de:2330", 0x030200))
