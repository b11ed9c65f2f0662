import pytest

from gpucheck.entries import Form, Server, SlotRow, Sockets
from gpucheck.facts import Cpu, Link, NvmlGpu
from rules.machines import X16, amd, bridge, function, gpu, machine, missing, names, only

X4 = Link(width=4, max_width=16, speed_gts=16.0, max_speed_gts=16.0)
X8_CARD = Link(width=8, max_width=8)


def test_fires_when_fewer_lanes_are_in_use() -> None:
    finding = only("link-width-reduced", machine(gpu(), gpu("0000:82:00.0", link=X4)))
    assert (finding.severity, finding.subject) == ("warning", "0000:82:00.0")
    assert finding.evidence[0].text == "Link width x4, card x16, port x16"
    assert [len(test.outcomes) for test in finding.next_test] == [2, 2]


def test_card_with_eight_lanes_that_trained_four() -> None:
    made = machine(gpu(link=Link(width=4, max_width=8)))
    assert "x4 where card and slot allow x8" in only("link-width-reduced", made).message


@pytest.mark.parametrize(
    "card",
    [
        gpu(link=X8_CARD),
        gpu(link=Link(width=8, max_width=16), port_link=Link(width=8, max_width=8)),
        gpu(link=Link(width=16, max_width=16, speed_gts=2.5, max_speed_gts=16.0)),
        gpu(link=Link(width=0, max_width=16)),
        gpu(link=Link(width=8, max_width=255)),
        gpu(link=Link(width=8, max_width=16), port_link=Link(width=8, max_width=255)),
        gpu(link=Link()),
        gpu(link=Link(width=8, max_width=16), port_link=None),
        gpu(link=X4, config_dead=True),
    ],
    ids=["x8 card", "x8 slot", "idle speed", "x0", "255", "port 255", "unread", "port unread", "dead"],
)
def test_quiet(card: object) -> None:
    assert "link-width-reduced" not in names(machine(card))


def test_the_maximum_of_nvidia_smi_is_no_port() -> None:
    narrow = Link(width=8, max_width=16)
    listed = NvmlGpu(index=0, address="0000:04:00.0", link=narrow)
    made = machine(gpu(link=narrow, port_link=None, nvml=listed))
    assert names(made) == []
    assert missing("link-width-reduced", made) == ("gpus.0000:04:00.0.port_link",)


def test_the_catalog_stands_in_for_the_port() -> None:
    narrow = Link(width=8, max_width=16)
    server = Server(
        id="x",
        vendor="X",
        model="X",
        names=("X",),
        form=Form(kind="rack"),
        sockets=Sockets(count=2),
        slots=(
            SlotRow(id="9", lanes=16),
            SlotRow(id="4", smbios=("PCIe Slot 4",), lanes=16),
            SlotRow(id="6", smbios=("PCIe Slot 6",), lanes=8, when={"riser": "a"}),
            SlotRow(id="6", smbios=("PCIe Slot 6",), lanes=16, when={"riser": "b"}),
        ),
        sources={},
    )
    in_9 = machine(gpu(link=narrow, port_link=None, slot="9"))
    assert names(in_9, server=server) == ["link-width-reduced"]
    in_4 = machine(gpu(link=narrow, port_link=None, slot="PCIe Slot 4"))
    assert names(in_4, server=server) == ["link-width-reduced"]
    in_6 = machine(gpu(link=narrow, port_link=None, slot="PCIe Slot 6"))
    assert names(in_6, server=server) == []


def k80(uplink: Link) -> object:
    """One card of two GPUs: root port, the card's bridge (upstream port), two downstream ports."""
    pci = (
        bridge("0000:00:02.0", link=X16),
        bridge("0000:04:00.0", "0000:00:02.0", link=uplink),
        bridge("0000:05:08.0", "0000:04:00.0", link=X16),
        bridge("0000:05:10.0", "0000:04:00.0", link=X16),
        function("0000:06:00.0", "10de:102d", 0x030200, parent="0000:05:08.0"),
        function("0000:07:00.0", "10de:102d", 0x030200, parent="0000:05:10.0"),
    )
    known = {"name": "Tesla K80", "pci_id": "10de:102d", "card": "0000:04:00.0", "port_link": None}
    return machine(gpu("0000:06:00.0", **known), gpu("0000:07:00.0", **known), pci=pci)


def test_card_of_two_gpus_is_judged_where_it_meets_the_slot() -> None:
    assert names(k80(X16)) == []
    assert only("link-width-reduced", k80(Link(width=8, max_width=16))).subject == "0000:06:00.0"


def test_any_vendor_but_no_virtual_machine() -> None:
    assert names(machine(amd(link=X4))) == ["link-width-reduced"]
    assert names(machine(gpu(link=X4), cpu=Cpu(hypervisor="KVM"))) == []


def test_unchecked_where_an_end_was_not_read() -> None:
    assert missing("link-width-reduced", machine(gpu(link=Link()))) == ("gpus.0000:04:00.0.link",)
    made = machine(gpu(link=Link(width=8, max_width=16), port_link=None))
    assert missing("link-width-reduced", made) == ("gpus.0000:04:00.0.port_link",)
    # At its own full width a card needs no port to be judged.
    assert missing("link-width-reduced", machine(gpu(port_link=None))) == ()
    assert missing("link-width-reduced", machine(gpus=None)) == ("gpus",)
