from typing import Any

from gpucheck.facts import KernelLog, Machine, Nvml, Slot
from rules.machines import GIB, MIB, amd, bar, blind, bridge, function, gpu, log, machine, missing, names, only, sockets

NAME = "gpu-suspect"
H100 = {"pci_id": "10de:2330", "name": "H100"}
UNSUPPORTED = (
    "NVRM: The NVIDIA GPU 000a:00:00.0 (PCI ID: 10de:2330) installed in this system is not supported by the "
    "NVIDIA 580.126.09 driver release."
)


def twins(count: int, **known: Any) -> list[Any]:
    return [gpu(f"000{n}:00:00.0", **{**H100, **known}) for n in range(1, count + 1)]


def test_fires_for_the_card_that_is_unsupported_beside_working_twins() -> None:
    made = machine(*twins(7), blind("000a:00:00.0", **H100), kernel_log=log(UNSUPPORTED))
    finding = only(NAME, made)
    assert (finding.severity, finding.confidence, finding.subject) == ("error", "likely", "000a:00:00.0")
    assert finding.evidence[1].text == UNSUPPORTED
    assert finding.next_test[0].do.startswith("Swap it with")
    assert names(made, expect=8) == [NAME]


def test_quiet_where_the_driver_may_be_right() -> None:
    alone = machine(blind("000a:00:00.0", **H100), kernel_log=log(UNSUPPORTED))
    assert NAME not in names(alone)
    others = machine(*twins(3, pci_id="10de:20b0"), blind("000a:00:00.0", **H100), kernel_log=log(UNSUPPORTED))
    assert NAME not in names(others)


def test_only_one_without_a_driver_among_several() -> None:
    made = machine(*twins(2), blind("000a:00:00.0", **H100))
    finding = only(NAME, made)
    assert (finding.severity, finding.confidence) == ("warning", "possible")
    assert names(made) == ["no-driver-bound", NAME]
    assert NAME not in names(machine(*twins(1), blind("000a:00:00.0", **H100)))
    two_odd = machine(*twins(3), blind("000a:00:00.0", **H100), blind("000b:00:00.0", **H100))
    assert NAME not in names(two_odd)


def test_only_one_that_nvml_does_not_list() -> None:
    odd = blind("000a:00:00.0", **H100, driver="nvidia")
    assert names(machine(*twins(2), odd), counts={"device_files": 3}) == ["gpu-count-mismatch", NAME]
    # As many device files as NVML lists: the card is hidden from this process.
    assert NAME not in names(machine(*twins(2), odd), counts={"device_files": 2})
    assert NAME not in names(machine(*twins(2), blind("000a:00:00.0", **H100, driver="vfio-pci")))


LOST = (bar(0, 16 * MIB), bar(1, 32 * GIB, assigned=False))
WINDOW = "pci_bus 0000:00: root bus resource [mem 0x380000000000-0x383fffffffff window]"  # 256 GiB


def test_no_address_although_there_is_room() -> None:
    cards = (gpu(), gpu("0000:05:00.0"), blind("0000:06:00.0", bars=LOST))
    made = machine(*cards, kernel_log=log(WINDOW))
    assert names(made) == ["bar-unassigned", NAME]
    # The third card finds no room in a window of 64 GiB, and nothing is known of it without the log.
    assert NAME not in names(machine(*cards, kernel_log=log(WINDOW.replace("383f", "380f"))))
    assert NAME not in names(machine(*cards, kernel_log=log()))


def test_card_that_fell_off_is_another_matter() -> None:
    made = machine(*twins(3), blind("000a:00:00.0", **H100, config_dead=True), kernel_log=log(UNSUPPORTED))
    assert NAME not in names(made)


def slots(*occupied: tuple[str, str | None, str | None]) -> tuple[Slot, ...]:
    return tuple(Slot(designation=n, in_use=True, lanes=16, address=a, socket=s) for n, a, s in occupied)


TREE = (
    bridge("0000:00:02.0"),
    function("0000:04:00.0", "10de:1b38", 0x030200, parent="0000:00:02.0"),
    bridge("0000:80:02.0"),
)
SEEN = gpu(slot="Slot 6", socket="CPU1")


def test_occupied_slots_are_named_only_while_cards_are_missing() -> None:
    known = {"pci": TREE, "slots": slots(("Slot 6", "0000:04:00.0", "CPU1"), ("Slot 4", "0000:82:00.0", "CPU2"))}
    made = machine(SEEN, **known)
    assert names(made) == []
    finding = only(NAME, made, expect=2)
    assert (finding.severity, finding.confidence, finding.subject) == ("warning", "possible", "Slot 4")
    assert "one processor only" in finding.message
    assert "gpu-count-mismatch" in names(made, expect=2)


def test_slots_whose_silence_is_explained() -> None:
    known = {"pci": TREE, "slots": slots(("Slot 6", "0000:04:00.0", "CPU1"), ("Slot 4", "0000:82:00.0", "CPU2"))}
    made = machine(SEEN, **known, cpu_sockets=sockets(True, False))
    assert names(made, expect=2) == ["cpu-socket-empty"]


def test_slots_of_firmware_that_is_not_right_about_the_others() -> None:
    elsewhere = slots(("Slot 1", "0000:82:00.0", None), ("Slot 2", None, None))
    assert NAME not in names(machine(SEEN, pci=TREE, slots=elsewhere), expect=2)


def test_slot_in_which_something_answers() -> None:
    there = (*TREE, function("0000:82:00.0", "15b3:1017", 0x020000, parent="0000:80:02.0"))
    for address in ("0000:82:00.0", "0000:80:02.0", None):
        known = slots(("Slot 6", "0000:04:00.0", None), ("Slot 4", address, None))
        assert NAME not in names(machine(SEEN, pci=there, slots=known), expect=2), address
    port = slots(("Slot 6", "0000:04:00.0", None), ("Slot 4", "0000:80:02.0", None))
    assert NAME in names(machine(SEEN, pci=TREE, slots=port), expect=2)


def test_every_xid_of_several_boots_names_one_of_equal_cards() -> None:
    lines = tuple(f"NVRM: Xid (PCI:0001:00:00): {number}, pid=1, x" for number in (13, 62))
    earlier = KernelLog(source="file", lines=(), complete=True, earlier=lines)
    finding = only(NAME, machine(*twins(3), kernel_log=earlier))
    assert (finding.severity, finding.confidence, finding.subject) == ("warning", "possible", "0001:00:00.0")
    assert "earlier boot" in finding.evidence[1].source
    assert NAME in names(machine(*twins(3), kernel_log=log(*lines)))
    # One twin is no majority; Xids of programs alone, or of a twin as well, say nothing of the card.
    assert NAME not in names(machine(*twins(2), kernel_log=log(*lines)))
    assert NAME not in names(machine(*twins(3), kernel_log=log(lines[0])))
    assert NAME not in names(machine(*twins(3), kernel_log=log(*lines, lines[0].replace("0001:", "0002:"))))


def test_quiet_on_healthy_and_other_cards() -> None:
    assert names(machine(*twins(4))) == []
    assert NAME not in names(machine(gpu(), amd(driver=None)))


def test_unchecked_without_nvml() -> None:
    failed = Nvml(status="failed", call="nvmlInit_v2", code=9)
    assert missing(NAME, machine(blind(), blind("0000:82:00.0"), nvml=failed)) == ("nvml.gpus",)
    assert missing(NAME, machine(blind(), nvml=failed)) == ()
    assert missing(NAME, Machine()) == ("gpus",)
