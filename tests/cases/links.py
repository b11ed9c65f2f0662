"""Links and what cards send each other: speed, errors, ports without a link, IOMMU, odd addresses."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from machines import registers
from machines.build import MIB, Bar, Function, Golden, NvmlCard, nvml, nvml_of, p40, packed, port, switch
from machines.golden import SLOT_4, SLOT_6, r730, two_p40

from cases import THREADS, case


def group(number: int, kind: str) -> dict[str, Any]:
    """Files and link of an IOMMU group whose domain is of this kind."""
    return {f"/sys/kernel/iommu_groups/{number}/type": f"{kind}\n"}


def in_groups(made: Golden, kind: str) -> dict[str, Any]:
    """The capture of a machine whose cards are each in an IOMMU group."""
    document = replace(made, more={**made.more, **group(31, kind), **group(32, kind)}).capture()
    places = [place for place in document["links"].values() if place.endswith((SLOT_6, SLOT_4))]
    for number, place in enumerate(sorted(places), 31):
        document["links"][f"{place}/iommu_group"] = f"/sys/kernel/iommu_groups/{number}"
    return document


def working(*cards: Function, gen: int, **more: Any) -> dict[str, Any]:
    """NVML's answers of P40s that are busy in their fastest state."""
    answers = nvml(*(NvmlCard(card.address, gen=gen, **more) for card in cards))
    busy = {"nvmlDeviceGetPerformanceState": 0, "nvmlDeviceGetUtilizationRates": {"gpu": 100, "memory": 40}}
    for call in answers["calls"]:
        if call["call"] in busy:
            call["value"] = busy[call["call"]]
    return answers


# --- what cards send each other -------------------------------------------------------------------


@case(
    "C023",
    "Loss becomes NaN as soon as a second card takes part",
    THREADS + "tensorflow/tensorflow/issues/57893",
    first="peer-access-blocked",
    confidence="possible",
    settled=True,
    says=("ReqRedir+", "NCCL_P2P_DISABLE=1"),
)
def access_control_on_a_switch() -> Golden:
    cards = p40("0000:04:00.0", 0), p40("0000:05:00.0", 1)
    made = switch("0000:02:00.0", ("0000:03:08.0", cards[0]), ("0000:03:10.0", cards[1]))
    ports = tuple(
        replace(down, more={"config": packed(registers.bridge(presence=True, link=True, acs=registers.REDIRECTS))})
        for down in made.below
    )
    return replace(r730(nvml=nvml_of(cards)), functions=(port("0000:00:02.0", replace(made, below=ports)),))


@case(
    "C025",
    "Training on cards of two sockets polls for ever, DMAR faults in the log",
    THREADS + "tensorflow/tensorflow/issues/32654",
    first="peer-access-blocked",
    confidence="likely",
    settled=True,
    says=("DMA Write", "Request device [04:00.0]"),
)
def dmar_faults_of_a_card() -> Golden:
    log = (
        "DMAR: DRHD: handling fault status reg 2",
        "DMAR: [DMA Write] Request device [04:00.0] fault addr f8139000 [fault reason 05] PTE Write access is not set",
    )
    return r730(*two_p40(), log=log)


@case(
    "C028",
    "Every pair can access its peer, then the peer-to-peer test hangs",
    THREADS + "pytorch/pytorch/issues/1637",
    first="peer-access-blocked",
    confidence="possible",
    settled=False,
    says=("IOMMU domain type: DMA-FQ",),
)
def iommu_translates() -> dict[str, Any]:
    return in_groups(r730(*two_p40()), "DMA-FQ")


# --- speed and errors -----------------------------------------------------------------------------


@case(
    "C069",
    "Links that change their speed all the time, and one that stayed slow under full load",
    THREADS + "local-inference-lab/rtx6kpro/pull/88",
    first="link-speed-reduced",
    confidence="likely",
    settled=True,
    says=("ten times while the card works",),
)
def one_link_stays_slow() -> Golden:
    cards = p40(SLOT_6, 0, speed=2.5), p40(SLOT_4, 1, node=1)
    answers = working(*cards, gen=3)
    for call in answers["calls"]:
        if call["call"] == "nvmlDeviceGetCurrPcieLinkGeneration" and call["device"] == 0:
            call["value"] = 1
    return r730(*cards, nvml=answers)


@case(
    "C072",
    "Two cards on riser cables read 2.5 GT/s while idle",
    THREADS + "janhq/jan/issues/183",
    first=None,
    settled=False,
    absent=("link-speed-reduced", "link-width-reduced"),
)
def idle_on_risers() -> Golden:
    cards = p40(SLOT_6, 0, speed=2.5), p40(SLOT_4, 1, node=1, speed=2.5)
    return r730(*cards, nvml=nvml_of(cards, gen=1))


@case(
    "C135",
    "Alarm for links of idle cards",
    THREADS + "scitix/sichek/pull/49",
    first=None,
    settled=True,
    absent=("link-speed-reduced",),
)
def one_works_one_idles() -> Golden:
    busy, idle = p40(SLOT_6, 0), p40(SLOT_4, 1, node=1, speed=2.5)
    answers = working(busy, gen=3)
    other = nvml(NvmlCard(busy.address, gen=3), NvmlCard(idle.address, gen=1))
    idle_calls = [call for call in other["calls"] if call.get("device") == 1]
    for call in answers["calls"]:
        if call["call"] == "nvmlDeviceGetCount":
            call["value"] = 2
    answers["calls"] += idle_calls
    return r730(busy, idle, nvml=answers)


@case(
    "C131",
    "Corrected errors in a stream, then the card falls off the bus",
    THREADS + "pop-os/pop/issues/3363",
    first="gpu-fell-off-bus",
    confidence="certain",
    settled=False,
    also=("link-errors",),
)
def a_stream_of_errors() -> Golden:
    counted = {"aer_dev_correctable": "RxErr 0\nBadTLP 40112\nTimeout 6120\nTOTAL_ERR_COR 46232\n"}
    cards = p40(SLOT_6, 0, dead=True), p40(SLOT_4, 1, node=1)
    log = (
        "pcieport 0000:00:02.0: AER: Correctable error message received from 0000:04:00.0",
        "pcieport 0000:00:02.0: PCIe Bus Error: severity=Correctable, type=Data Link Layer, (Receiver ID)",
        "pcieport 0000:00:02.0:   device [8086:6f04] error status/mask=00000040/00006000",
        "pcieport 0000:00:02.0:    [ 6] BadTLP",
        "NVRM: Xid (PCI:0000:04:00): 79, GPU has fallen off the bus.",
    )
    made = r730(*cards, log=log, nvml=nvml_of(cards[1:]))
    above = replace(made.functions[0], more=counted)
    return replace(made, functions=(above, *made.functions[1:]))


@case(
    "C132",
    "Training hangs; the port above the card logs surprise down and a completion timeout",
    THREADS + "rwth-i6/returnn/issues/1500",
    first="link-errors",
    confidence="likely",
    settled=True,
    says=("SDES", "CmpltTO", "power leads", "0000:00:02.0; its slot is PCIe Slot 6"),
)
def surprise_down() -> Golden:
    first, second = two_p40()
    log = (
        "pcieport 0000:00:02.0: AER: Uncorrected (Fatal) error received: id=0010",
        "pcieport 0000:00:02.0: PCIe Bus Error: severity=Uncorrected (Fatal), type=Transaction Layer, id=0010",
        "pcieport 0000:00:02.0:   device [8086:6f04] error status/mask=00004020/00000000",
        "pcieport 0000:00:02.0:    [ 5] SDES",
        "pcieport 0000:00:02.0:    [14] CmpltTO                (First)",
        "nvidia 0000:04:00.0: AER: can't recover (no error_detected callback)",
        "pcieport 0000:00:02.0: AER: Root Port link has been reset (0)",
        "pcieport 0000:00:02.0: AER: device recovery failed",
    )
    return r730(first, second, log=log, nvml={"calls": [{"call": "nvmlInit"}], "timed_out": True})


# --- ports without a link -------------------------------------------------------------------------


@case(
    "C071",
    "A card on a riser is not seen until its slot is set to Gen2",
    THREADS + "Cyclenerd/ethereum_nvidia_miner/issues/40",
    first="link-down",
    confidence="likely",
    settled=True,
    expect_gpus=2,
    says=("lower PCIe generation", "riser"),
    absent=("gpu-count-mismatch",),
)
def a_riser_that_does_not_train() -> Golden:
    made = r730(p40(SLOT_6, 0))
    empty = next(function for function in made.functions if function.address == "0000:80:02.0")
    waiting = replace(empty, more={"config": packed(registers.bridge(presence=True))})
    return replace(made, functions=tuple(waiting if f is empty else f for f in made.functions))


@case(
    "C127",
    "Configuration space of ones: a card that sleeps, not one that is lost",
    THREADS + "pciutils/pciutils/pull/91",
    first=None,
    settled=True,
    absent=("gpu-fell-off-bus",),
)
def a_sleeping_card() -> Golden:
    cards = p40(SLOT_6, 0, dead=True, more={"power_state": "D3cold\n"}), p40(SLOT_4, 1, node=1)
    return r730(*cards)


# --- addresses, classes, cards without NVLink -----------------------------------------------------


@case(
    "C063",
    "Five-digit PCI domains of a volume management device beside the cards",
    THREADS + "jaypipes/ghw/issues/372",
    first=None,
    settled=True,
)
def five_digit_domains() -> Golden:
    made = r730(*two_p40())
    drive = Function("10001:81:00.0", "8086:0a54", 0x010802, driver="nvme", width=4, max_width=4)
    behind = replace(port("10001:80:05.0", drive, lanes=4), ids="8086:2033")
    return replace(made, functions=(*made.functions, behind))


@case(
    "C092",
    "Cards on buses from 0x80 on, which a tool read as negative numbers",
    THREADS + "FoldingAtHome/fah-issues/issues/1149",
    first=None,
    settled=False,
    expect_gpus=4,
)
def high_buses() -> Golden:
    cards = tuple(p40(f"0000:{bus}:00.0", n, node=n // 2) for n, bus in enumerate(("83", "84", "c4", "ff")))
    ports = tuple(port(f"0000:80:0{n}.0", card, node=n // 2) for n, card in enumerate(cards))
    return replace(r730(nvml=nvml_of(cards)), functions=ports)


@case(
    "C138",
    "Links that a card does not have are called down",
    THREADS + "NVIDIA/NVSentinel/pull/1481",
    first=None,
    settled=True,
)
def no_nvlink_hardware() -> Golden:
    cards = two_p40()
    answers = nvml_of(cards)
    answers["calls"] += [
        {"call": "nvmlDeviceGetNvLinkState", "device": device, "arguments": [0], "code": 3} for device in (0, 1)
    ]
    return r730(*cards, nvml=answers)


@case(
    "C141",
    "Compute cards of the class 3D controller are not listed",
    THREADS + "truenas/middleware/pull/7743",
    first=None,
    settled=True,
    expect_gpus=3,
)
def every_class_of_card() -> Golden:
    plain = p40(SLOT_6, 0)
    display = replace(p40(SLOT_4, 1, node=1), class_id=0x030000)
    amd = Function(
        "0000:85:00.0", "1002:738c", 0x120000, subsystem="1002:0c34", driver="amdgpu", node=1, width=16, max_width=16,
        bars=(Bar(0, 32 << 30, 0x3a00_0000_0000), Bar(2, 2 * MIB, 0x3a10_0000_0000)),
    )  # fmt: skip
    made = r730(plain, display)
    return replace(made, functions=(*made.functions, port("0000:80:03.0", amd, node=1)), modules=("nvidia", "amdgpu"))
