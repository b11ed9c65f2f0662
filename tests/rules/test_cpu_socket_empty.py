import pytest

from gpucheck.entries import Form, Server, SlotRow, Sockets, Source
from gpucheck.facts import Cpu, CpuSocket, Slot
from rules.machines import gpu, machine, missing, names, only, sockets


def r730(*rows: SlotRow, count: int = 2, designations: tuple[str, ...] = ()) -> Server:
    slots = rows or (
        SlotRow(id="4", socket=2, lanes=16, src=("om",)),
        SlotRow(id="5", socket=1, lanes=8),
        SlotRow(id="6", socket=1, lanes=16),
    )
    return Server(
        id="dell-poweredge-r730",
        vendor="Dell",
        model="PowerEdge R730",
        names=("R730",),
        form=Form(kind="rack"),
        sockets=Sockets(count=count, designations=designations),
        slots=slots,
        sources={"om": Source(confidence="vendor", title="Owner's manual")},
    )


ONE_CPU = machine(gpu(), cpu_sockets=sockets(True, False))


def test_fires_as_a_warning_and_names_the_dead_slots() -> None:
    finding = only("cpu-socket-empty", ONE_CPU, server=r730())
    assert (finding.severity, finding.subject) == ("warning", "CPU2")
    assert finding.message == "CPU socket CPU2 is empty, so slot 4 is dead."
    assert finding.sources == ("Owner's manual",)


def test_error_when_cards_are_missing() -> None:
    finding = only("cpu-socket-empty", ONE_CPU, expect=2, server=r730())
    assert finding.severity == "error"
    assert finding.evidence[-1].text == "2 GPUs expected, 1 usable"
    assert names(ONE_CPU, expect=2, server=r730()) == ["cpu-socket-empty"]


def test_warning_when_the_expectation_is_met() -> None:
    assert only("cpu-socket-empty", ONE_CPU, expect=1).severity == "warning"


def test_slot_map_of_the_model_is_not_known() -> None:
    assert "not known for this model" in only("cpu-socket-empty", ONE_CPU).message
    no_owner = r730(SlotRow(id="4", lanes=16), SlotRow(id="6", socket=1, lanes=16))
    assert "not known for this model" in only("cpu-socket-empty", ONE_CPU, server=no_owner).message


def test_owners_of_some_slots_only() -> None:
    some = r730(SlotRow(id="5", smbios=("PCIEX16_5",), socket=2, lanes=16), SlotRow(id="1", lanes=16))
    made = ONE_CPU.model_copy(update={"slots": (Slot(designation="PCIEX16_5", in_use=False),)})
    message = only("cpu-socket-empty", made, server=some).message
    assert message.endswith("so at least slot PCIEX16_5 is dead; for the other slots it is not known.")


def test_a_card_is_moved_only_where_one_is_missing() -> None:
    assert only("cpu-socket-empty", ONE_CPU, server=r730()).next_test == ()
    assert only("cpu-socket-empty", ONE_CPU, expect=1, server=r730()).next_test == ()
    assert "not seen" in only("cpu-socket-empty", ONE_CPU, expect=2, server=r730()).next_test[0].do


def test_owner_of_a_slot_may_be_known_without_the_catalog() -> None:
    slots = (
        Slot(designation="SLOT4", in_use=False, socket="CPU2"),
        Slot(designation="SLOT6", in_use=True, socket="CPU1"),
        Slot(designation="CPU2 SLOT8", in_use=False),
    )
    made = ONE_CPU.model_copy(update={"slots": slots})
    assert "slot SLOT4 is dead" in only("cpu-socket-empty", made).message


def test_designations_map_to_numbers_whatever_the_order() -> None:
    swapped = (CpuSocket(designation="P1", populated=False), CpuSocket(designation="P0", populated=True))
    made = machine(gpu(), cpu_sockets=swapped)
    finding = only("cpu-socket-empty", made, server=r730(designations=("P0", "P1")))
    assert "slot 4 is dead" in finding.message
    by_order = only("cpu-socket-empty", made, server=r730())
    assert "slots 5, 6 are dead" in by_order.message


def test_names_that_the_catalog_does_not_know_in_another_number_tell_no_slots() -> None:
    foreign = tuple(CpuSocket(designation=f"P{n}", populated=n < 3) for n in range(4))
    finding = only("cpu-socket-empty", machine(gpu(), cpu_sockets=foreign), server=r730(designations=("CPU1", "CPU2")))
    assert finding.subject == "P3"
    assert "not known for this model" in finding.message


def test_a_slot_that_another_riser_moves_is_not_called_dead() -> None:
    rows = (
        SlotRow(id="1", socket=2, lanes=16),
        SlotRow(id="6", socket=2, lanes=16, when={"riser": "a"}),
        SlotRow(id="6", socket=1, lanes=16, when={"riser": "b"}),
    )
    assert "slot 1 is dead" in only("cpu-socket-empty", ONE_CPU, server=r730(*rows)).message


def test_quiet_where_no_slot_hangs_on_the_empty_socket() -> None:
    assert names(ONE_CPU, server=r730(SlotRow(id="1", socket=1, lanes=16))) == []


@pytest.mark.parametrize(
    "made",
    [
        machine(gpu()),
        machine(gpu(), cpu_sockets=sockets(True)),
        machine(gpu(), cpu_sockets=sockets(False)),
        machine(gpu(), cpu_sockets=sockets(True, False), cpu=Cpu(hypervisor="VMware")),
        machine(gpu(), cpu_sockets=sockets(True, False), cpu=Cpu(packages=2)),
        machine(gpu(), cpu_sockets=sockets(False, False)),
    ],
    ids=["both", "one socket", "one odd socket", "virtual machine", "kernel runs on both", "firmware nonsense"],
)
def test_quiet(made: object) -> None:
    assert names(made) == []


def test_board_with_one_socket_by_the_catalog() -> None:
    assert names(ONE_CPU, server=r730(count=1)) == []


def test_unchecked_without_type_4() -> None:
    assert missing("cpu-socket-empty", machine(gpu(), cpu_sockets=None)) == ("cpu_sockets",)
    assert missing("cpu-socket-empty", machine(gpu(), cpu_sockets=())) == ("cpu_sockets",)
    made = machine(gpu(), cpu_sockets=sockets(True, None))
    assert missing("cpu-socket-empty", made) == ("cpu_sockets.CPU2.populated",)
