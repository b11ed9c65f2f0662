from gpucheck.facts import CpuSocket, NvmlGpu, Psu
from rules.machines import gpu, machine, missing, names, only

CARDS = [f"0000:0{bus}:00.0" for bus in range(4, 8)]
PSU = Psu(location="PSU1", model="PWR SPLY,1100W", watts=1100, present=True, plugged=True)


def card(address: str, watts: float | None = 350, default: float | None = None):  # type: ignore[no-untyped-def]
    limits = {"power_limit_watts": watts, "power_default_limit_watts": default}
    return gpu(address, nvml=NvmlGpu(index=0, address=address, **limits))


def test_fires_when_the_limits_alone_exceed_all_ratings() -> None:
    finding = only("psu-undersized", machine(*map(card, CARDS), psus=(PSU,)))
    assert (finding.severity, finding.confidence, finding.subject) == ("warning", "likely", "machine")
    assert finding.message == "The cards alone may draw 1,400 W together; the power supplies give 1,100 W."
    assert [evidence.text for evidence in finding.evidence][-2:] == [
        "Tesla P40 at 0000:07:00.0: power limit 350 W",
        "PSU1, PWR SPLY,1100W: 1100 W",
    ]


def test_processors_count_where_their_tdp_is_known() -> None:
    cards = [card(address) for address in CARDS[:3]]
    sockets = tuple(CpuSocket(designation=f"CPU{n}", populated=n < 3, tdp_watts=145) for n in (1, 2, 3))
    assert "psu-undersized" not in names(machine(*cards, psus=(PSU,)))
    finding = only("psu-undersized", machine(*cards, psus=(PSU,), cpu_sockets=sockets))
    assert "1,340 W together" in finding.message
    assert [e.text for e in finding.evidence if e.source == "Redfish processor"] == [
        "CPU1: 145 W TDP",
        "CPU2: 145 W TDP",
    ]


def test_a_unit_without_mains_or_that_failed_gives_nothing() -> None:
    cards = [card(address) for address in CARDS]
    for known in ({"plugged": False}, {"failed": True}):
        other = PSU.model_copy(update={"location": "PSU2", **known})
        assert "psu-undersized" in names(machine(*cards, psus=(PSU, other)))


def test_quiet_when_it_fits_and_when_the_limit_was_lowered() -> None:
    two = (PSU, PSU.model_copy(update={"location": "PSU2"}))
    assert names(machine(*map(card, CARDS), psus=two)) == []
    assert names(machine(*(card(address, 200, 350) for address in CARDS), psus=(PSU,))) == []


def test_the_default_counts_where_no_limit_was_read() -> None:
    assert "psu-undersized" in names(machine(*(card(address, None, 350) for address in CARDS), psus=(PSU,)))


def test_unchecked_where_watts_are_missing() -> None:
    unrated = PSU.model_copy(update={"location": "PSU2", "watts": None})
    four = [card(address) for address in CARDS]
    made = machine(*four, psus=(PSU, unrated))
    assert names(made) == []
    assert missing("psu-undersized", made) == ("psus.PSU2.watts",)
    assert missing("psu-undersized", machine(*four, psus=None)) == ("psus",)
    assert missing("psu-undersized", machine(*four, psus=(Psu(present=False),))) == ("psus",)
    one = machine(card(CARDS[0], None), psus=(PSU,))
    assert missing("psu-undersized", one) == ("gpus.0000:04:00.0.power_limit_watts",)
