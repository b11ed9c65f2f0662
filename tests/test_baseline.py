"""What changed since an earlier probe: every card is followed, and a swap of two tells which is at fault."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from machines.build import GIB, OK, PRESENT, UNPLUGGED, Bar, Function, Golden, NvmlCard, dump, nvml, p40, port, switch
from machines.golden import DELL_1100, MACHINES, SLOT_4, SLOT_6, X16, r730, with_board
from rules import machines

from gpucheck import api, baseline
from gpucheck.capture import from_json
from gpucheck.cli import run
from gpucheck.errors import InputError
from gpucheck.facts import Gpu, Machine, NvmlGpu, System
from gpucheck.findings import Finding, finding
from gpucheck.probing import Probe, probe
from gpucheck.recording import capture

Document = dict[str, Any]
Write = Callable[..., str]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Writes a machine, as a capture or as the result of a probe of it, and returns the path."""

    def written(name: str, made: Golden | Document, *, probed: bool = False) -> str:
        path = tmp_path / f"{name}.json"
        document = made.capture() if isinstance(made, Golden) else made
        path.write_text(dump(document) if "files" in document else json.dumps(document), "utf-8")
        if probed:
            path.write_text(probe([str(path)]).model_dump_json(by_alias=True), "utf-8")
        return str(path)

    return written


def compared(write: Write, before: Golden | Document, after: Golden | Document, **how: Any) -> Probe:
    """After, against before: once with before as a probe's result and once as a capture, which must agree."""
    now = write("after", after)
    reports = [probe([now], baseline=write("before", before, probed=probed), **how) for probed in (True, False)]
    first, second = ({**report.model_dump(), "time": ""} for report in reports)
    assert first == second
    return reports[0]


def rows(report: Probe) -> list[tuple[str, str, str | None, str | None]]:
    return [(c.what, c.subject, c.before, c.after) for c in report.changes or ()]


def names(report: Probe) -> list[str]:
    return [found.name for found in report.findings]


def only(report: Probe, name: str) -> Finding:
    (found,) = [found for found in report.findings if found.name == name]
    return found


def seated(slot_6: int | None, slot_4: int | None, *, narrow: str = "", **traits: Any) -> Golden:
    """An R730 with the P40 of these UUIDs; ``narrow`` is the address whose link has trained with x8."""
    cards, listed = [], []
    for address, number, node in ((SLOT_6, slot_6, 0), (SLOT_4, slot_4, 1)):
        if number is not None:
            width = 8 if address == narrow else 16
            cards.append(p40(address, node, node=node, width=width))
            listed.append(NvmlCard(address, uuid=number, width=width))
    return r730(*cards, **{"nvml": nvml(*listed), **traits})


# --- no change -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MACHINES)
def test_a_machine_against_itself_has_not_changed(name: str, write: Write) -> None:
    made = MACHINES[name]()
    report = compared(write, made, made)
    alone = probe([write("alone", made)])
    assert report.changes == ()
    assert [(f.severity, f.name) for f in report.findings] == [(f.severity, f.name) for f in alone.findings]
    assert alone.changes is None


def test_the_number_expected_is_that_of_the_baseline(write: Write) -> None:
    report = compared(write, seated(1, 2), seated(1, 2))
    assert report.counts.expected is not None
    assert (report.counts.expected.n, report.exit_code) == (2, 0)
    assert report.counts.expected.origin.endswith("before.json")
    told = probe([write("after", seated(1, None))], baseline=write("before", seated(1, 2)), expect_gpus=1)
    assert told.counts.expected is not None
    assert told.counts.expected.origin == "--expect-gpus"


def test_a_card_that_was_missing_at_the_baseline_is_still_missing(write: Write, tmp_path: Path) -> None:
    path = tmp_path / "three.json"
    path.write_text(probe([write("two", seated(1, 2))], expect_gpus=3).model_dump_json(by_alias=True))
    report = probe([write("two", seated(1, 2))], baseline=str(path))
    assert only(report, "gpu-count-mismatch").severity == "error"


# --- cards come and go ---------------------------------------------------------------------------


def test_a_card_that_is_gone(write: Write) -> None:
    report = compared(write, seated(1, 2), seated(1, None))
    lost = only(report, "gpu-lost-since-baseline")
    assert (lost.code, lost.severity, lost.confidence, lost.subject) == ("GC107", "error", "certain", SLOT_4)
    assert "PCIe Slot 4" in lost.message
    told = [line.text for line in lost.evidence]
    assert "GPU-00000000-1b38-4000-8000-000000000002" in told[0]
    assert "link x16; driver nvidia; no fault" in told[0]
    assert told[1] == "PCIe Slot 4: the firmware calls it free"
    # It explains the number: nothing is missing without a trace.
    assert "gpu-count-mismatch" not in names(report)
    assert report.exit_code == 1
    assert rows(report) == [("card", SLOT_4, "Tesla P40 at 0000:82:00.0 in PCIe Slot 4", None)]


def test_what_the_lost_card_does_not_explain_is_still_a_mismatch(write: Write) -> None:
    report = compared(write, seated(1, 2), seated(1, None), expect_gpus=3)
    assert "one is missing without a trace" in only(report, "gpu-count-mismatch").message


def test_the_state_of_a_lost_card_is_told(write: Write) -> None:
    report = compared(write, seated(1, 2, narrow=SLOT_4), seated(1, None))
    assert "fault: link-width-reduced" in only(report, "gpu-lost-since-baseline").evidence[0].text


def test_a_new_card_is_no_problem(write: Write) -> None:
    report = compared(write, seated(1, None), seated(1, 2))
    assert (report.exit_code, names(report)) == (0, ["machine-changed"])
    assert only(report, "machine-changed").severity == "info"
    assert rows(report) == [("card", SLOT_4, None, "Tesla P40 at 0000:82:00.0 in PCIe Slot 4")]


def test_a_card_in_another_slot(write: Write) -> None:
    report = compared(write, seated(1, None), seated(None, 1))
    assert (report.exit_code, names(report)) == (0, ["machine-changed"])
    assert rows(report) == [("place", SLOT_4, f"PCIe Slot 6 ({SLOT_6})", f"PCIe Slot 4 ({SLOT_4})")]


def test_a_card_that_was_exchanged(write: Write) -> None:
    report = compared(write, seated(1, 2), seated(1, 3))
    assert (report.exit_code, names(report)) == (0, ["machine-changed"])
    assert only(report, "machine-changed").severity == "warning"
    assert [row[0] for row in rows(report)] == ["card"]


def test_another_bus_number_is_no_move(write: Write) -> None:
    """Something else was plugged in: the slot says that the card is where it was."""
    made = seated(1, 2)
    shifted = {SLOT_4: "0000:83:00.0"}
    functions = tuple(
        replace(f, below=tuple(replace(card, address=shifted.get(card.address, card.address)) for card in f.below))
        for f in made.functions
    )
    assert made.board is not None
    slots = tuple((*slot[:3], shifted.get(slot[3] or "", slot[3])) for slot in made.board.slots)
    after = with_board(
        replace(made, functions=functions, nvml=nvml(NvmlCard(SLOT_6, uuid=1), NvmlCard("0000:83:00.0", uuid=2))),
        slots=slots,
    )
    report = compared(write, made, after)
    assert rows(report) == [("address", "0000:83:00.0", SLOT_4, "0000:83:00.0")]
    assert report.exit_code == 0


def test_an_excerpt_loses_no_card(write: Write, tmp_path: Path) -> None:
    excerpt = tmp_path / "lspci.txt"
    excerpt.write_text("04:00.0 3D controller [0302]: NVIDIA Corporation GP102GL [Tesla P40] [10de:1b38] (rev a1)\n")
    report = probe([str(excerpt)], baseline=write("before", seated(1, 2)))
    assert "gpu-lost-since-baseline" not in names(report)
    assert ("gpu-lost-since-baseline", ("gpus",)) in [(u.name, u.missing) for u in report.unchecked]


def test_a_card_that_only_nvml_listed_may_be_hidden(write: Write) -> None:
    without: Document = {"functions": (), "board": None}
    before, after = (replace(made, **without).capture() for made in (seated(1, 2), seated(1, None)))
    for document in (before, after):
        document["folders"].remove("/sys/bus/pci/devices")
        document["links"] = {}
    lost = only(compared(write, before, after), "gpu-lost-since-baseline")
    assert lost.confidence == "likely"
    assert "NVML" in lost.message


# --- swaps ---------------------------------------------------------------------------------------


def test_the_fault_goes_with_the_card(write: Write) -> None:
    report = compared(write, seated(1, 2, narrow=SLOT_6), seated(2, 1, narrow=SLOT_4))
    told = only(report, "fault-moves-with-card")
    assert (told.code, told.confidence, told.severity, told.subject) == ("GC110", "certain", "warning", SLOT_4)
    assert "from PCIe Slot 6 to PCIe Slot 4" in told.message
    assert [line.text for line in told.evidence][-1].startswith("Tesla P40 at 0000:04:00.0 in PCIe Slot 6: no such")
    assert names(report)[0] == "fault-moves-with-card"
    assert "fault-stays-with-slot" not in names(report)
    assert {row[0] for row in rows(report)} == {"place", "link-width"} - {"link-width"}


def test_the_fault_stays_with_the_slot(write: Write) -> None:
    report = compared(write, seated(1, 2, narrow=SLOT_6), seated(2, 1, narrow=SLOT_6))
    told = only(report, "fault-stays-with-slot")
    assert (told.code, told.confidence, told.severity, told.subject) == ("GC109", "certain", "warning", "PCIe Slot 6")
    assert "fault-moves-with-card" not in names(report)
    assert [line.source for line in told.evidence][1:] == ["now", "now"]


def test_a_fault_in_both_places_concludes_nothing(write: Write) -> None:
    after = r730(
        p40(SLOT_6, width=8),
        p40(SLOT_4, 1, node=1, width=8),
        nvml=nvml(NvmlCard(SLOT_6, uuid=2, width=8), NvmlCard(SLOT_4, uuid=1, width=8)),
    )
    report = compared(write, seated(1, 2, narrow=SLOT_6), after)
    assert not {"fault-moves-with-card", "fault-stays-with-slot"} & set(names(report))


def test_a_fault_that_is_gone_after_the_swap_concludes_nothing(write: Write) -> None:
    report = compared(write, seated(1, 2, narrow=SLOT_6), seated(2, 1))
    assert not {"fault-moves-with-card", "fault-stays-with-slot"} & set(names(report))
    assert ("fault", SLOT_4, "link-width-reduced", "none") in rows(report)


def test_an_empty_old_slot_proves_less(write: Write) -> None:
    report = compared(write, seated(1, None, narrow=SLOT_6), seated(None, 1, narrow=SLOT_4))
    assert only(report, "fault-moves-with-card").confidence == "possible"


def dead(at: str, healthy: int) -> Golden:
    """A P40 that answers, of this UUID, and one that does not, whose UUID nobody can read."""
    cards = (p40(SLOT_6, 0, dead=at == SLOT_6), p40(SLOT_4, 1, node=1, dead=at == SLOT_4))
    listed = [
        NvmlCard(address, fails={"nvmlDeviceGetHandleByIndex": 15} if address == at else {}, uuid=healthy)
        for address in (SLOT_6, SLOT_4)
    ]
    return r730(*cards, nvml=nvml(*listed))


def test_a_card_without_a_uuid_is_told_by_the_others(write: Write) -> None:
    """The driver cannot open the card that is at fault, in either place."""
    report = compared(write, dead(SLOT_6, 2), dead(SLOT_4, 2))
    told = only(report, "fault-moves-with-card")
    assert (told.confidence, told.severity) == ("likely", "error")
    assert names(report)[0] == "fault-moves-with-card"


def test_a_slot_that_makes_cards_unreadable_is_told_by_the_others(write: Write) -> None:
    report = compared(write, dead(SLOT_6, 2), dead(SLOT_6, 1))
    told = only(report, "fault-stays-with-slot")
    assert (told.confidence, told.subject) == ("likely", "PCIe Slot 6")
    assert "gpu-lost-since-baseline" not in names(report)


def test_addresses_that_were_exchanged_tell_a_swap_without_slots(write: Write) -> None:
    before, after = (replace(made, board=None) for made in (seated(1, 2, narrow=SLOT_6), seated(2, 1, narrow=SLOT_4)))
    report = compared(write, before, after)
    assert only(report, "fault-moves-with-card").subject == SLOT_4
    shifted = seated(None, 1)
    assert rows(compared(write, replace(seated(1, None), board=None), replace(shifted, board=None)))[0][0] == "address"


# --- what else -----------------------------------------------------------------------------------


def test_a_link_that_is_narrower_now(write: Write) -> None:
    report = compared(write, seated(1, 2), seated(1, 2, narrow=SLOT_4))
    assert ("link-width", SLOT_4, "x16", "x8") in rows(report)
    # The rule on links knows what card and slot allow; a second warning would say the same.
    assert names(report) == ["link-width-reduced"]


def test_a_narrower_link_that_no_rule_explains(write: Write) -> None:
    def in_port(width: int) -> Golden:
        made = seated(1, None)
        card = p40(SLOT_6, 0, width=width)
        return replace(made, functions=(replace(port("0000:00:02.0", card), max_width=width), made.functions[1]))

    report = compared(write, in_port(16), in_port(8))
    told = only(report, "machine-changed")
    assert (told.severity, told.subject) == ("warning", SLOT_6)
    assert "was x16 wide" in told.message


def test_a_power_supply_that_is_gone(write: Write) -> None:
    one = (("PSU.Slot.1", DELL_1100, 1100, PRESENT | OK),)
    report = compared(write, seated(1, 2), with_board(seated(1, 2), psus=one))
    assert rows(report) == [("power-supply", "PSU.Slot.2", DELL_1100, "not present")]
    assert only(report, "machine-changed").severity == "warning"
    dead = (*one, ("PSU.Slot.2", DELL_1100, 1100, PRESENT | UNPLUGGED))
    report = compared(write, seated(1, 2), with_board(seated(1, 2), psus=dead))
    assert rows(report) == [("power-supply", "PSU.Slot.2", DELL_1100, f"{DELL_1100}, no mains")]
    assert names(report) == ["psu-unplugged"]


def test_supplies_without_a_location_are_counted(write: Write) -> None:
    two, one = ((("", DELL_1100, 1100, PRESENT | OK),) * n for n in (2, 1))
    report = compared(write, with_board(seated(1, 2), psus=two), with_board(seated(1, 2), psus=one))
    assert rows(report) == [("power-supply", "machine", "2", "1")]


def test_memory_firmware_and_driver(write: Write) -> None:
    before = seated(1, 2)
    after = with_board(
        replace(before, driver_version="575.57.08", library="575.57.08"),
        memory_gib=48,
        bios=("Dell Inc.", "2.19.0", "12/12/2023"),
    )
    report = compared(write, before, after)
    assert rows(report) == [
        ("memory", "machine", "64.0 GiB", "48.0 GiB"),
        ("bios-version", "machine", "2.13.0", "2.19.0"),
        ("nvidia-driver", "machine", "570.158.01", "575.57.08"),
    ]
    assert [(f.severity, f.name) for f in report.findings] == [
        ("warning", "machine-changed"),
        ("info", "machine-changed"),
    ]
    assert len(report.findings[1].evidence) == 2


def test_what_a_kernel_keeps_for_itself_is_no_change(write: Write) -> None:
    """The firmware states what is fitted; without root the kernel's count is all there is."""
    without_root = replace(seated(1, 2), root=False, more={"/sys/firmware/dmi/tables/DMI": {"error": "EACCES"}})
    assert compared(write, seated(1, 2), without_root).changes == ()


def test_a_card_with_less_memory(write: Write) -> None:
    def with_memory(**traits: Any) -> Golden:
        return seated(1, None, nvml=nvml(NvmlCard(SLOT_6, uuid=1, **traits)))

    report = compared(write, with_memory(), with_memory(memory=18_000_000_000))
    assert [(f.severity, f.subject) for f in report.findings] == [("warning", SLOT_6)]
    report = compared(write, with_memory(), with_memory(vbios="86.02.23.00.02"))
    assert rows(report) == [("vbios", SLOT_6, "86.02.23.00.01", "86.02.23.00.02")]


def test_a_processor_that_was_taken_out(write: Write) -> None:
    before, after = seated(1, 2), MACHINES["r730-one-cpu-expecting-two"]()
    report = compared(write, before, after)
    assert ("cpu-socket", "CPU2", "populated", "empty") in rows(report)
    assert report.exit_code == 1
    assert "gpu-lost-since-baseline" in names(report)


# --- cards of two GPUs ---------------------------------------------------------------------------


def k80(*places: tuple[str, int], cut: bool = False) -> Golden:
    """K80s behind their own switches in slots (04 on CPU1, 84 on CPU2), with the UUIDs of n and n + 1."""
    traits: Document = {"name": "Tesla K80", "pci_id": 0x102D10DE, "subsystem_id": 0x106C10DE, "memory": 12_079_136_768}
    functions, listed, slots = [], [], []
    for bus, number in places:
        first = int(bus, 16)
        halves = []
        for half in (2, 3):
            address = f"0000:{first + half:02x}:00.0"
            bars = (Bar(0, 16 << 20, 0x9200_0000, small=True), Bar(1, 16 * GIB, 0x3800_0000_0000))
            halves.append(replace(p40(address), ids="10de:102d", subsystem="10de:106c", bars=bars))
            listed.append(NvmlCard(address, uuid=number + half - 2, **traits))
        below = tuple((f"0000:{first + 1:02x}:{8 * (n + 1):02x}.0", half) for n, half in enumerate(halves))
        card: Function = switch(f"0000:{bus}:00.0", *below)
        functions.append(port("0000:00:02.0" if bus == "04" else "0000:80:02.0", card))
        slots.append((f"PCIe Slot {6 if bus == '04' else 4}", *X16, f"0000:{bus}:00.0"))
    return with_board(replace(r730(), functions=tuple(functions), nvml=nvml(*listed)), slots=tuple(slots))


def test_a_card_of_two_gpus_that_moved(write: Write) -> None:
    report = compared(write, k80(("04", 1)), k80(("84", 1)))
    assert [(row[0], row[1]) for row in rows(report)] == [("place", "0000:86:00.0"), ("place", "0000:87:00.0")]
    assert report.exit_code == 0


def test_a_card_of_two_gpus_that_is_gone_is_one_finding(write: Write) -> None:
    report = compared(write, k80(("04", 1), ("84", 3)), k80(("04", 1)))
    lost = only(report, "gpu-lost-since-baseline")
    assert "0000:86:00.0" in lost.message
    assert "0000:87:00.0" in lost.message
    assert "gpu-count-mismatch" not in names(report)


def test_one_half_that_is_gone(write: Write) -> None:
    before = k80(("04", 1))
    root = before.functions[0]
    upstream = root.below[0]
    after = replace(
        before,
        functions=(replace(root, below=(replace(upstream, below=upstream.below[:1]),)),),
        nvml=nvml(NvmlCard("0000:06:00.0", uuid=1, pci_id=0x102D10DE, subsystem_id=0x106C10DE, memory=12_079_136_768)),
    )
    assert only(compared(write, before, after), "gpu-lost-since-baseline").subject == "0000:07:00.0"


def test_cards_of_two_gpus_without_uuids(write: Write) -> None:
    """One card before and one now: the halves belong together."""
    before, after = (replace(made, nvml=None) for made in (k80(("04", 1)), k80(("84", 1))))
    assert {row[0] for row in rows(compared(write, before, after))} == {"place"}


# --- redaction -----------------------------------------------------------------------------------


def redacted(made: Golden) -> Document:
    return capture(from_json("x", made.capture()))


def test_stand_ins_of_one_machine_follow_a_card(write: Write) -> None:
    before, after = redacted(seated(1, 2, narrow=SLOT_6)), redacted(seated(2, 1, narrow=SLOT_4))
    assert before["redacted"] is True
    assert only(compared(write, before, after), "fault-moves-with-card").confidence == "certain"


def test_stand_ins_say_nothing_to_the_cards_own_uuids(write: Write) -> None:
    report = compared(write, redacted(seated(1, 2)), seated(1, 2))
    assert (report.changes, names(report)) == ((), [])
    lost = only(compared(write, redacted(seated(1, 2)), seated(1, None)), "gpu-lost-since-baseline")
    assert lost.subject == SLOT_4


def test_two_cards_alike_that_nothing_tells_apart_are_not_followed(write: Write) -> None:
    report = compared(write, redacted(seated(1, 2, narrow=SLOT_6)), seated(2, 1, narrow=SLOT_4))
    assert not {"fault-moves-with-card", "fault-stays-with-slot"} & set(names(report))
    assert ("fault", SLOT_4, "none", "link-width-reduced") in rows(report)


def test_other_vbios_tells_two_cards_apart(write: Write) -> None:
    def made(first: str, second: str, narrow: str) -> Golden:
        listed = (NvmlCard(SLOT_6, vbios=first, uuid=7), NvmlCard(SLOT_4, vbios=second, uuid=8))
        return seated(1, 2, narrow=narrow, nvml=nvml(*listed))

    old, new = "86.02.23.00.01", "86.02.40.00.02"
    report = compared(write, redacted(made(old, new, SLOT_6)), made(new, old, SLOT_4))
    assert only(report, "fault-moves-with-card").confidence == "likely"


# --- what is no baseline -------------------------------------------------------------------------


def test_the_baseline_of_another_model(write: Write) -> None:
    with pytest.raises(InputError) as caught:
        probe([write("after", seated(1, 2))], baseline=write("before", MACHINES["sm-4028gr-tr-eight-p40"]()))
    for word in ("SYS-4028GR-TR", "PowerEdge R730", "before.json", "after.json"):
        assert word in str(caught.value)
    assert caught.value.exit_code == 2


def test_the_baseline_of_another_machine_of_the_model(write: Write) -> None:
    other = with_board(seated(1, 2), uuid=bytes(range(16)))
    with pytest.raises(InputError, match="another PowerEdge R730"):
        probe([write("after", seated(1, 2))], baseline=write("before", other))
    # A stand-in is no UUID.
    assert probe([write("after", seated(1, 2))], baseline=write("before", redacted(other))).exit_code == 0


def test_where_nothing_names_the_machine_it_is_believed(write: Write) -> None:
    assert compared(write, replace(seated(1, 2), board=None), seated(1, 2)).changes == ()


def test_one_uuid_of_two_models_is_not_one_machine(write: Write) -> None:
    """Without the firmware's names only the cards can tell."""
    other = NvmlCard(SLOT_6, pci_id=0x1DB410DE, subsystem_id=0x121410DE, name="Tesla V100-PCIE-16GB")
    uuid = {"device": 0, "call": "nvmlDeviceGetUUID", "code": 0, "value": NvmlCard(SLOT_6).own_uuid(1)}
    before = r730(replace(p40(SLOT_6, 0), ids="10de:1db4"), nvml=nvml(replace(other, more=(uuid,))))
    now = seated(1, None)
    for first, second in ((replace(before, board=None), now), (before, replace(now, board=None))):
        with pytest.raises(InputError, match=r"cannot be compared with .*Tesla P40 at 0000:04:00\.0") as caught:
            probe([write("after", second)], baseline=write("before", first))
        assert caught.value.exit_code == 2
    # Where the firmware says that it is the same machine, it is another card in the same place.
    report = compared(write, before, seated(1, None))
    assert [(what, subject) for what, subject, *_ in rows(report)][:1] == [("card", SLOT_6)]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "empty"),
        ("{", "not valid JSON"),
        ("{}", "not a capture"),
        ("[1, 2]", "no form"),
        ('{"schema": "gpucheck/probe/1"}', "machine"),
        ('{"schema": "gpucheck/probe/1", "machine": 5}', "machine"),
        ('{"schema": "gpucheck/probe/1", "machine": {"gpus": [{"address": "0000:04:00.0"}]}}', "machine.gpus.0.vendor"),
        ('{"schema": "gpucheck/probe/1", "machine": {"memory_bytes": 1e999}}', "machine.memory_bytes"),
        ('{"schema": "gpucheck/probe/1", "machine": {}, "findings": 7}', "findings"),
        ('{"schema": "gpucheck/probe/2", "machine": {}}', "gpucheck/probe/2"),
        ('{"schema": "gpucheck/capture/9"}', "gpucheck/capture/9"),
        ('{"schema": "gpucheck/advice/1"}', "gpucheck/advice/1"),
        ('{"schema": "gpucheck/error/1"}', "gpucheck/error/1"),
        ('{"schema": 5}', "not a capture"),
        ('{"a":' * 3000, "nested"),
        ("what is this?", "no form"),
    ],
)
def test_what_is_no_baseline_is_told_in_one_line(
    text: str, says: str, write: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "wrong.json"
    path.write_text(text)
    assert run(["probe", "--from", write("after", seated(1, 2)), "--baseline", str(path)]) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.count("\n") == 1
    assert "wrong.json" in output.err
    assert says in output.err


def test_a_baseline_that_is_not_there(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["probe", "--from", write("after", seated(1, 2)), "--baseline", "/absent.json", "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["error"]["input"] == "/absent.json"


def test_keys_that_a_later_version_added_are_passed_over(write: Write, tmp_path: Path) -> None:
    path = Path(write("before", seated(1, 2), probed=True))
    document = json.loads(path.read_text())
    document["news"] = document["machine"]["news"] = document["machine"]["gpus"][1]["nvml"]["news"] = {"a": [1]}
    document["machine"]["gaps"] = [{"fact": "x", "reason": "a-later-reason", "how": ""}]
    path.write_text(json.dumps(document))
    report = probe([write("after", seated(1, None))], baseline=str(path))
    assert "GPU-00000000-1b38-4000-8000-000000000002" in only(report, "gpu-lost-since-baseline").evidence[0].text


def test_hostile_words_of_a_baseline_are_cleaned(write: Write) -> None:
    path = Path(write("before", seated(1, 2), probed=True))
    document = json.loads(path.read_text())
    document["machine"]["gpus"][1]["name"] = "\x1b[2J\nevil"
    path.write_text(json.dumps(document))
    report = probe([write("after", seated(1, None))], baseline=str(path))
    assert only(report, "gpu-lost-since-baseline").message.startswith("evil at")


# --- commands ------------------------------------------------------------------------------------


def test_every_form_shows_what_changed(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["probe", "--from", write("after", seated(1, None)), "--baseline", write("before", seated(1, 2))]
    assert run(arguments) == 1
    assert "Since the baseline" in capsys.readouterr().out
    assert run([*arguments, "--markdown"]) == 1
    assert "| card | 0000:82:00.0 | Tesla P40 at" in capsys.readouterr().out
    assert run([*arguments, "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["changes"][0]["what"] == "card"
    same = ["probe", "--from", write("same", seated(1, 2)), "--baseline", write("before", seated(1, 2))]
    for form in ([], ["--markdown"]):
        assert run([*same, *form]) == 0
        assert "Nothing that matters has changed." in capsys.readouterr().out


def test_the_function_takes_a_baseline_too(write: Write) -> None:
    report = api.probe([write("after", seated(1, None))], baseline=write("before", seated(1, 2)))
    assert names(report) == ["gpu-lost-since-baseline"]


# --- properties ----------------------------------------------------------------------------------

Cards = list[tuple[int | None, int]]


def built(cards: Cards, order: list[int]) -> Machine:
    """A machine with these cards (UUID, model) in the order of slots given."""
    gpus = []
    for slot, number in enumerate(order):
        uuid, model = cards[number]
        address = f"0000:{slot + 16:02x}:00.0"
        listed = None if uuid is None else NvmlGpu(index=slot, address=address, uuid=f"GPU-{uuid}1")
        gpus.append(machines.gpu(address, slot=f"Slot {slot}", pci_id=f"10de:{model:04x}", nvml=listed))
    return machines.machine(*gpus, system=System(product="Box"))


cards = st.lists(st.tuples(st.one_of(st.none(), st.integers(0, 9)), st.integers(1, 2)), max_size=6)


@given(cards)
def test_whatever_is_in_a_machine_it_is_the_same_as_itself(made: Cards) -> None:
    same = built(made, list(range(len(made)))).model_copy(update={"system": None})
    comparison = baseline.compare(baseline.Earlier("before", same), same, "after")
    assert baseline.changes(comparison, ()) == ()
    assert list(baseline.findings(comparison, ())) == []


@given(st.lists(st.tuples(st.integers(0, 99), st.integers(1, 2)), max_size=6, unique_by=lambda c: c[0]), st.data())
def test_cards_with_uuids_are_followed_wherever_they_go(made: Cards, data: st.DataObject) -> None:
    order = data.draw(st.permutations(range(len(made))))
    before, after = built(made, list(range(len(made)))), built(made, list(order))
    comparison = baseline.compare(baseline.Earlier("before", before), after, "after")
    assert (comparison.lost, comparison.new, comparison.replaced) == ((), (), ())
    assert {(p.before.slot, p.after.slot) for p in comparison.pairs} == {
        (f"Slot {number}", f"Slot {slot}") for slot, number in enumerate(order)
    }


@given(cards, cards)
def test_every_card_is_told_of_once(first: Cards, second: Cards) -> None:
    before, after = (built(made, list(range(len(made)))) for made in (first, second))
    comparison = baseline.compare(baseline.Earlier("before", before), after, "after")

    def addresses(gpus: list[Gpu]) -> list[str]:
        return sorted(gpu.address for gpu in gpus)

    old = [*(p.before for p in comparison.pairs), *comparison.lost, *(pair[0] for pair in comparison.replaced)]
    young = [*(p.after for p in comparison.pairs), *comparison.new, *(pair[1] for pair in comparison.replaced)]
    assert addresses(old) == addresses(list(before.gpus or ()))
    assert addresses(young) == addresses(list(after.gpus or ()))
    assert all(p.before.pci_id == p.after.pci_id for p in comparison.pairs)


@given(st.permutations(range(4)), st.integers(0, 3), st.integers(0, 3))
def test_a_conclusion_is_never_of_a_card_that_stayed(order: list[int], then: int, now: int) -> None:
    made: Cards = [(number, 1) for number in range(4)]
    before, after = built(made, [0, 1, 2, 3]), built(made, list(order))

    def fault(slot: int) -> Finding:
        return finding("link-width-reduced", "warning", f"0000:{slot + 16:02x}:00.0", "narrow")

    earlier = baseline.Earlier("before", before, (fault(then),))
    comparison = baseline.compare(earlier, after, "after")
    told = [f.name for f in baseline.findings(comparison, [fault(now)]) if f.name != "machine-changed"]
    where = order.index(then)
    expected = [] if where == then else ["fault-moves-with-card"] if where == now else []
    if where != then and now == then:
        expected = ["fault-stays-with-slot"]
    assert told == expected
