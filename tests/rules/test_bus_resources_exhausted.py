from dataclasses import replace
from pathlib import Path
from typing import Any

from machines.build import Bar, dump, p40, port, resource
from machines.golden import NO_NVIDIA, SLOT_6, r730

from gpucheck.facts import Cpu, PciFunction, Window
from gpucheck.probing import probe
from rules.machines import GIB, MIB, bar, blind, bridge, driver, function, gpu, log, machine, missing, names, only

NAME = "bus-resources-exhausted"
UNASSIGNED = (bar(0, 16 * MIB), bar(1, 16 * GIB, assigned=False))
HOT_PLUG = Window(start=0x60_0000_0000, bytes=32 * GIB, prefetchable=True)
LOW = Window(start=0xC000_0000, bytes=512 * MIB, prefetchable=False)
WINDOW = "pci_bus 0000:00: root bus resource [mem 0x6000000000-0x67ffffffff window]"  # 32 GiB


def with_usb4(*windows: Window, **card: Any) -> tuple[PciFunction, ...]:
    return (
        bridge("0000:00:02.0"),
        function("0000:04:00.0", "10de:1b38", 0x030200, parent="0000:00:02.0", **card),
        bridge("0000:00:07.0", windows=windows, physical_slot="5"),
    )


def test_fires_where_an_empty_bridge_holds_what_the_card_needs() -> None:
    made = machine(blind(bars=UNASSIGNED), pci=with_usb4(HOT_PLUG, LOW), kernel_log=log(WINDOW))
    finding = only(NAME, made)
    assert (finding.severity, finding.confidence, finding.subject) == ("error", "likely", "0000:04:00.0")
    assert "0000:00:07.0 holds 32 GiB" in finding.message
    assert finding.evidence[1].text == "Bridge with nothing behind it, hot-plug slot 5: memory window of 32 GiB"
    assert names(made, expect=1) == [NAME]


def test_several_causes_fit_where_the_root_window_is_not_known() -> None:
    made = machine(blind(bars=UNASSIGNED), pci=with_usb4(HOT_PLUG))
    assert only(NAME, made).confidence == "possible"
    assert names(made) == ["bar-unassigned", NAME]


def test_window_too_small_for_the_cards_alone_is_another_matter() -> None:
    small = WINDOW.replace("67f", "61f")
    made = machine(blind(bars=UNASSIGNED), pci=with_usb4(HOT_PLUG), kernel_log=log(small))
    assert names(made) == ["bar-unassigned"]


def test_windows_that_could_not_help() -> None:
    for windows in ((), (LOW,), (HOT_PLUG.model_copy(update={"bytes": 8 * GIB}),)):
        made = machine(blind(bars=UNASSIGNED), pci=with_usb4(*windows), kernel_log=log(WINDOW))
        assert names(made) == ["bar-unassigned"], windows
    used = (*with_usb4(HOT_PLUG), function("0000:08:00.0", "1d0f:8061", 0x010802, parent="0000:00:07.0"))
    assert names(machine(blind(bars=UNASSIGNED), pci=used, kernel_log=log(WINDOW))) == ["bar-unassigned"]
    other_root = tuple(
        f.model_copy(update={"address": f.address.replace("00:07", "80:07")}) for f in with_usb4(HOT_PLUG)
    )
    assert names(machine(blind(bars=UNASSIGNED), pci=other_root, kernel_log=log(WINDOW))) == ["bar-unassigned"]


def test_quiet_while_every_card_has_its_address_and_in_a_guest() -> None:
    assert names(machine(gpu(), pci=with_usb4(HOT_PLUG), kernel_log=log(WINDOW))) == []
    guest = machine(blind(bars=UNASSIGNED), pci=with_usb4(HOT_PLUG), cpu=Cpu(hypervisor="KVM"))
    assert NAME not in names(guest)


def test_reserve_that_the_kernel_was_told_to_make() -> None:
    line = driver(kernel_command_line="ro pci=hpmmioprefsize=32G,realloc")
    made = machine(blind(bars=UNASSIGNED), pci=with_usb4(HOT_PLUG), kernel_log=log(WINDOW), driver=line)
    assert any("hpmmioprefsize=32G" in step for step in only(NAME, made).remedy)


NO_BUS = "pcieport 0000:3a:01.0: No bus number available for hot-added bridge"


def test_bridge_without_a_bus_number_is_a_warning_until_a_card_is_missing() -> None:
    made = machine(gpu(), kernel_log=log(NO_BUS))
    finding = only(NAME, made)
    assert (finding.severity, finding.confidence, finding.subject) == ("warning", "certain", "0000:3a:01.0")
    assert finding.evidence[0].text == NO_BUS
    assert only(NAME, made, expect=2).severity == "error"
    assert names(made, expect=2) == [NAME]


def test_other_words_for_it() -> None:
    lines = (
        "No bus number available for hot-added bridge 0000:3a:01.0",
        "pci 0000:16:02.0: devices behind bridge are unusable because [bus 45-74] cannot be assigned for them",
    )
    assert only(NAME, machine(gpu(), kernel_log=log(*lines))).subject == "machine"


def test_bridge_that_got_its_numbers_later() -> None:
    below = function("0000:3b:00.0", "1d0f:8061", 0x010802, parent="0000:3a:01.0")
    assert names(machine(gpu(), kernel_log=log(NO_BUS), pci=(below,))) == []


def test_io_ports_alone_are_harmless() -> None:
    lines = ("pcieport 0000:3a:01.0: BAR 13: no space for [io  size 0x1000]",)
    assert names(machine(gpu(), kernel_log=log(*lines))) == []


def test_many_cards_of_the_vga_class_are_only_possible() -> None:
    addresses = [f"0000:{bus:02x}:00.0" for bus in range(4, 17)]
    tree = tuple(function(address, "10de:05eb", 0x030000) for address in addresses)
    cards = [gpu(address, bars=(bar(1, 256 * MIB),)) for address in addresses]
    assert NAME not in names(machine(*cards, pci=tree))
    finding = only(NAME, machine(*cards, pci=tree), expect=16)
    assert (finding.severity, finding.confidence) == ("warning", "possible")
    assert "gpu-count-mismatch" in names(machine(*cards, pci=tree), expect=16)
    compute = tuple(f.model_copy(update={"class_id": 0x030200}) for f in tree)
    assert NAME not in names(machine(*cards, pci=compute), expect=16)
    assert NAME not in names(machine(*cards, pci=tree, cpu=Cpu(hypervisor="KVM")), expect=16)


def test_unchecked_without_the_log() -> None:
    assert missing(NAME, machine(gpu(), kernel_log=None)) == ("kernel_log",)
    assert missing(NAME, machine(gpu(), pci=None)) == ("pci",)


def test_windows_as_the_kernel_shows_them(tmp_path: Path) -> None:
    lost = p40(SLOT_6, driver=None, bars=(Bar(0, 16 * MIB, 0x9200_0000, small=True), Bar(1, 32 * GIB, None)))
    made = r730(lost, log=(WINDOW,), **NO_NVIDIA)
    spare = port("0000:00:03.0")
    closed = [resource(0, 0, 0)] * 15
    window = resource(0x60_0000_0000, 0x67_FFFF_FFFF, 0x10_2201)
    files = {"/sys/devices/pci0000:00/0000:00:03.0/resource": "\n".join([*closed, window, ""])}
    made = replace(made, functions=(*made.functions, spare), more=files)
    place = tmp_path / "capture.json"
    place.write_text(dump(made.capture()), "utf-8")
    finding = probe([str(place)]).findings[0]
    assert (finding.name, finding.confidence, finding.subject) == (NAME, "likely", SLOT_6)
