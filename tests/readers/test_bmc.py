"""Facts from Redfish resources: both forms of power supplies, slots, processors, settings of the BIOS."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from redfish_service import CHASSIS, SYSTEM, Tree, machine, new_power, old_power, resource, supply
from support import tree as folder_of

from gpucheck.errors import InputError
from gpucheck.facts import CpuSocket, Gap, Parts, Power, Psu, Slot, System
from gpucheck.merging import merge
from gpucheck.readers import bmc

XEON = "Intel(R) Xeon(R) CPU E5-2680 v4 @ 2.40GHz"
DELL = {"model": "PWR SPLY,1100W,RDNT,LTON", "part": "0ABCD1A00", "manufacturer": "DELL", "watts": 1100}


def parsed(tree: Tree) -> Parts:
    return bmc.parse(tree.values())


def psus(tree: Tree) -> list[tuple[str | None, int | None, bool | None, bool | None, bool | None]]:
    return [(p.location, p.watts, p.present, p.plugged, p.failed) for p in parsed(tree).psus or ()]


def test_a_whole_machine() -> None:
    parts = parsed(machine())
    assert parts.system == System(
        vendor="Dell Inc.",
        product="PowerEdge R730",
        bios_version="2.13.0",
        uuid="4c4c4544-005a-3110-8036-b4c04f4d3232",
    )
    assert parts.cpu_sockets == tuple(
        CpuSocket(designation=f"CPU{n}", populated=True, model=XEON, tdp_watts=120) for n in (1, 2)
    )
    assert parts.slots == (
        Slot(designation="PCIe Slot 4", in_use=True, lanes=16, gen=3),
        Slot(designation="Slot 6", in_use=False, lanes=16),
    )
    assert parts.psus == tuple(Psu(location=f"PS{n}", present=True, plugged=True, failed=False, **DELL) for n in (1, 2))
    assert parts.power == Power(
        redundancy="full", redundancy_text="System Board PS Redundancy, N+m, Enabled, OK", drawn_watts=312
    )
    settings = {"BootMode": "Bios", "MmioAbove4Gb": "Disabled", "Slot4": "Enabled", "SriovGlobalEnable": "Enabled"}
    assert parts.firmware_settings == settings


def test_a_unit_without_mains_is_not_called_failed() -> None:
    dark = supply(2, LineInputVoltage=0, Status={"State": "Enabled", "Health": "Critical"})
    assert psus(old_power(supply(1), dark))[1] == ("PS2", 1100, True, False, None)
    # Whoever cannot measure says 0 V as well.
    assert psus(old_power(supply(1, LineInputVoltage=0)))[0] == ("PS1", 1100, True, None, False)


def test_failed_absent_and_unrated_units() -> None:
    failed = supply(1, Status={"State": "Enabled", "Health": "Critical"})
    absent = supply(2, Status={"State": "Absent"})
    unrated = supply(3, PowerCapacityWatts=0, Model="PWS-1K66P-1R", Status={"State": "Enabled", "Health": "Warning"})
    assert psus(old_power(failed, absent, unrated)) == [
        ("PS1", 1100, True, True, True),
        ("PS2", None, False, None, None),
        ("PS3", None, True, True, None),
    ]


def test_units_that_are_named_alike_get_their_bay() -> None:
    alike = [supply(n, Name="HpeServerPowerSupply", Oem={"Hpe": {"BayNumber": n}}) for n in (1, 2)]
    assert [unit[0] for unit in psus(old_power(*alike))] == ["Power Supply 1", "Power Supply 2"]
    nameless = [supply(n, Name="Power Supply") for n in (1, 2)]
    assert [unit[0] for unit in psus(old_power(*nameless))] == ["Power Supply 1", "Power Supply 2"]


NEW = (
    {"Name": "Bay", "Location": {"PartLocation": {"ServiceLabel": "PSU 1"}}, "PowerCapacityWatts": 2000,
     "LineInputStatus": "Normal", "Status": {"State": "Enabled", "Health": "OK"}},
    {"Name": "Power Supply Bay 2", "PowerCapacityWatts": 2000, "LineInputStatus": "LossOfInput",
     "Status": {"State": "UnavailableOffline", "Health": "Critical"}},
)  # fmt: skip


def test_the_new_form() -> None:
    tree = machine(new_power(*NEW, health="Warning"))
    assert psus(tree) == [("PSU 1", 2000, True, True, False), ("Power Supply Bay 2", 2000, True, False, None)]
    assert parsed(tree).power == Power(redundancy="lost", redundancy_text="NPlusM, Enabled, Warning")


def test_of_two_forms_the_one_that_knows_more_counts() -> None:
    empty = new_power(*({"Status": {"State": "Enabled"}} for _ in range(2)))
    assert psus(machine(old_power(supply(1), supply(2)) | empty))[0][:2] == ("PS1", 1100)
    assert psus(machine(old_power() | new_power(*NEW)))[0][:2] == ("PSU 1", 2000)


def test_one_machine_at_a_time() -> None:
    other = resource("/redfish/v1/Systems/2", "ComputerSystem", BiosVersion="1")
    assert parsed(machine() | other).gaps == (
        Gap(fact="bmc", reason="contradiction", how="The BMC answers for 2 machines."),
    )
    tray = resource("/redfish/v1/Systems/HGX_Baseboard_0", "ComputerSystem", Model="HGX")
    assert parsed(machine() | tray).system == parsed(machine()).system


def test_what_has_no_meaning_is_not_known() -> None:
    odd: dict[str, Any] = {
        "PowerCapacityWatts": 10**400,
        "LineInputVoltage": float("inf"),
        "Name": 5,
        "Model": ["x"],
        "Status": "OK",
    }
    assert parsed(old_power(supply(1, **odd))).psus == (
        Psu(location="Power Supply 1", part="0ABCD1A00", manufacturer="DELL"),
    )
    for wrong in (None, 5, [], "x", [None], {"Members": 5}):
        assert psus(old_power(supply(1, Status={"State": wrong, "Health": wrong})))[0][2] is None
        tree = resource(f"{CHASSIS}/Power", "Power", PowerSupplies=wrong, Redundancy=wrong, PowerControl=wrong)
        tree |= resource(f"{CHASSIS}/PCIeSlots", "PCIeSlots", Slots=wrong)
        tree |= resource(f"{SYSTEM}/Bios", "Bios", Attributes=wrong)
        assert parsed(tree) == Parts()


@pytest.mark.parametrize(
    ("name", "counts"),
    [
        ("Above4GDecoding", True), ("MMIOHBase", True), ("MmioLimit", True), ("PciResourcePadding", True),
        ("SR_IOVSupport", True), ("IntelProcVtd", True), ("ProcAmdIoVt", True), ("IommuSupport", True),
        ("BootMode", True), ("BootModeSelect", True), ("CSMSupport", True), ("Slot2Bif", True),
        ("PciSlot3Enable", True),
        ("DevicesandIOPorts_PCI64BitResourceAllocation", True), ("ReSizeBARSupport", True), ("Slot3", True),
        ("OneTimeBootMode", False), ("DimmSlot01", False), ("VirtualInstallDisk", False), ("PCIS007", False),
        ("AssetTag", False), ("ProcCores", False), ("PciSlot3OptionROM", False),
    ],
)  # fmt: skip
def test_which_settings_count(name: str, counts: bool) -> None:
    assert bmc.settings({name: "Enabled"}) == ({name: "Enabled"} if counts else {})


def test_settings_are_few_and_short() -> None:
    assert bmc.settings({"BootMode": None, "CsmSupport": "", "SriovGlobalEnable": True}) == {
        "SriovGlobalEnable": "True"
    }
    assert len(bmc.settings({f"Slot{n}": "x" * 9999 for n in range(9999)})) == 200


# --- walking ------------------------------------------------------------------------------------


def saved(tree: Tree, place: Path):  # type: ignore[no-untyped-def]
    """A folder in the layout of a mockup, as the root of a machine."""
    return folder_of(place, {f"{path}/index.json": json.dumps(content) for path, content in tree.items()})


def test_the_walk_finds_what_parse_needs(tmp_path: Path) -> None:
    read = bmc.read(saved(machine(), tmp_path))
    assert read == parsed(machine()).model_copy(update={"origin": f"{tmp_path} (BMC)"})


def test_pages_of_a_collection(tmp_path: Path) -> None:
    tree = machine()
    whole = tree[f"{SYSTEM}/Processors"]
    first = {**whole, "Members": whole["Members"][:1], "Members@odata.nextLink": f"{SYSTEM}/Processors/page2"}
    second = {**whole, "Members": whole["Members"][1:]}
    tree |= {f"{SYSTEM}/Processors": first, f"{SYSTEM}/Processors/page2": second}
    assert len(bmc.read(saved(tree, tmp_path)).cpu_sockets or ()) == 2


def test_links_that_lead_out_or_round_are_not_followed(tmp_path: Path) -> None:
    tree = machine()
    paths = ("https://192.0.2.1/redfish/v1/x", "/redfish/../etc/passwd", "/etc/passwd", "//192.0.2.1/redfish", SYSTEM)
    tree[f"{SYSTEM}/Processors"]["Members"] += [{"@odata.id": path} for path in paths] + [{"@odata.id": 5}, None]
    host = saved(tree, tmp_path)
    outside = tmp_path / "etc" / "passwd"
    outside.mkdir(parents=True)
    (outside / "index.json").write_text(json.dumps({**tree[f"{SYSTEM}/Processors/1"], "@odata.id": "/etc/passwd"}))
    found = bmc.read(host)
    assert found.gaps == ()
    assert len(found.cpu_sockets or ()) == 2


def test_without_end(tmp_path: Path) -> None:
    tree = machine()
    members = [f"{SYSTEM}/Processors/{n}" for n in range(600)]
    for path in members:
        tree |= resource(path, "Processor", ProcessorType="CPU", Socket="CPU")
    tree[f"{SYSTEM}/Processors"]["Members"] = [{"@odata.id": path} for path in members]
    found = bmc.read(saved(tree, tmp_path))
    assert [(gap.fact, gap.reason) for gap in found.gaps] == [("bmc", "unreadable")]
    assert 300 < len(found.cpu_sockets or ()) < 400


def test_broken_resources_are_one_gap(tmp_path: Path) -> None:
    host = saved(machine(), tmp_path)
    for path, text in ((f"{SYSTEM}/Bios", "{"), (f"{CHASSIS}/Power", "[" * 100_000)):
        (tmp_path / path[1:] / "index.json").write_text(text)
    gaps = bmc.read(host).gaps
    assert [(gap.fact, gap.reason) for gap in gaps] == [
        ("bmc", "unreadable"),
        ("power", "not-supported"),
        ("firmware_settings", "not-supported"),
    ]
    assert gaps[0].how.startswith(f"{CHASSIS}/Power: ") or gaps[0].how.startswith(f"{SYSTEM}/Bios: ")


def test_nobody_asked(tmp_path: Path) -> None:
    parts = bmc.read(folder_of(tmp_path, {"/sys": None}))
    assert {(gap.fact, gap.reason) for gap in parts.gaps} == {
        ("power", "not-requested"),
        ("firmware_settings", "not-requested"),
    }


def test_a_capture_keeps_what_is_read_and_no_more() -> None:
    for content in machine(old_power(supply(1)) | new_power(*NEW)).values():
        kept = bmc.kept(json.dumps(content).encode())
        assert bmc.parse([json.loads(kept)]) == bmc.parse([content])
        for secret in (b"4K4XM52", b"CN7475143S00AB", b"gpubox17", b"CN17972", b"RACK7", b"iqn."):
            assert secret not in kept
    with pytest.raises(ValueError, match="Expecting"):
        json.loads(bmc.kept(b"no JSON"))


def test_real_answers(shared_machines: Path) -> None:
    for place in sorted((shared_machines / "redfish").glob("*.json")):
        text = place.read_bytes()
        found = bmc.parse([json.loads(text)])
        assert bmc.parse([json.loads(bmc.kept(text))]) == found, place.name
        for psu in found.psus or ():
            assert psu.failed is not True, place.name
            assert psu.plugged is not False, place.name
            assert psu.watts is None or str(psu.watts).encode() in text, place.name
    units = bmc.parse([json.loads((shared_machines / "redfish" / "telegraf_hp_power.json").read_text())]).psus
    assert [(unit.location, unit.watts) for unit in units or ()] == [("Power Supply 1", 800), ("Power Supply 2", 800)]


# --- together with what others say --------------------------------------------------------------


def test_units_are_joined_by_name_or_by_number() -> None:
    firmware = Parts(psus=tuple(Psu(location=f"PSU.Slot.{n}", watts=1100, present=True) for n in (1, 2)))
    state = Parts(psus=tuple(Psu(location=f"Power Supply {n}", plugged=n == 1, failed=False) for n in (1, 2)))
    assert merge([firmware, state]).psus == tuple(
        Psu(location=f"PSU.Slot.{n}", watts=1100, present=True, plugged=n == 1, failed=False) for n in (1, 2)
    )
    # Other numbers, or the same number twice: nobody knows which is which.
    for names in (("PS0", "PS1"), ("PS1", "Bay PS1"), ("PS1", "PS"), ("PS1", "PS2", "PS3")):
        other = Parts(psus=tuple(Psu(location=name, plugged=False) for name in names))
        assert merge([firmware, other]).psus == firmware.psus


def test_the_tdp_goes_to_the_sockets_of_the_firmware() -> None:
    firmware = Parts(cpu_sockets=tuple(CpuSocket(designation=f"P{n}", populated=n == 1) for n in (1, 2)))
    found = Parts(cpu_sockets=(CpuSocket(designation="CPU1", populated=True, tdp_watts=120),))
    assert [socket.tdp_watts for socket in merge([firmware, found]).cpu_sockets or ()] == [120, None]
    mixed = (*(found.cpu_sockets or ()), CpuSocket(designation="CPU2", populated=True, tdp_watts=145))
    assert merge([firmware, Parts(cpu_sockets=mixed)]).cpu_sockets == firmware.cpu_sockets


@pytest.mark.parametrize(
    ("bmc_says", "one"),
    [
        ("4c4c4544-005a-3110-8036-b4c04f4d3232", True),
        ("4C4C4544-005A-3110-8036-B4C04F4D3232", True),
        ("44454c4c-5a00-1031-8036-b4c04f4d3232", True),
        ("4c4c4544-005a-3110-8036-b4c04f4d3233", False),
        ("44454c4c-005a-3110-8036-b4c04f4d3232", False),
    ],
)
def test_which_uuids_are_one_machine(bmc_says: str, one: bool) -> None:
    firmware = Parts(origin="a", system=System(product="SYS-7048GR-TR", uuid="4c4c4544-005a-3110-8036-b4c04f4d3232"))
    board = Parts(origin="b", system=System(product="Super Server", uuid=bmc_says))
    if one:
        assert merge([firmware, board]).system == firmware.system
    else:
        with pytest.raises(InputError, match="another machine"):
            merge([firmware, board])
