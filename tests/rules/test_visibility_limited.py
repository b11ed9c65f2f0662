from __future__ import annotations

from typing import Any

import pytest

from gpucheck.facts import Environment, Gpu, Machine, Nvml, NvmlGpu
from gpucheck.rules.visibility_limited import Choice, choose
from rules.machines import amd, driver, found, gpu, machine, missing, names, only

NAME = "visibility-limited"
UUIDS = ("GPU-5e1f0c2a-77aa-4b1d-9c3e-2f60b1a4d7c8", "GPU-99999999-77aa-4b1d-9c3e-2f60b1a4d7c8")
SEEN, HIDDEN = "0000:04:00.0", "0000:82:00.0"


def around(container: str | None = None, rules: tuple[str, ...] | None = None, **variables: str) -> Environment:
    kind: Any = container
    return Environment(variables=variables, container=kind, device_rules=rules)


def listed(address: str, index: int, **known: Any) -> Gpu:
    return gpu(address, nvml=NvmlGpu(index=index, address=address, uuid=UUIDS[index], **known))


def two(**known: Any) -> Machine:
    """Both cards in NVML."""
    return machine(listed(SEEN, 0), listed(HIDDEN, 1), **known)


def one_of_two(environment: Environment | None, **known: Any) -> Machine:
    """Both on PCI and bound to their driver, one in NVML."""
    known.setdefault("driver", driver(device_files=("/dev/nvidia1",)))
    return machine(gpu(SEEN), gpu(HIDDEN, nvml=None), environment=environment, **known)


# --- below NVML ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("environment", "source"),
    [
        (around(SLURM_JOB_ID="7", SLURM_JOB_GPUS="3", SLURM_GPUS_ON_NODE="1"), "SLURM_JOB_GPUS"),
        (around(SLURM_JOB_ID="7"), "SLURM_JOB_ID"),
        (around("docker", NVIDIA_VISIBLE_DEVICES="1"), "NVIDIA_VISIBLE_DEVICES"),
        (around("podman", NVIDIA_VISIBLE_DEVICES="void"), "NVIDIA_VISIBLE_DEVICES"),
        (around("kubernetes", KUBERNETES_SERVICE_HOST="set"), "KUBERNETES_SERVICE_HOST"),
    ],
)
def test_fires_as_a_note_for_a_grant(environment: Environment, source: str) -> None:
    made = one_of_two(environment)
    finding = only(NAME, made)
    assert names(made) == [NAME]
    assert (finding.severity, finding.confidence, finding.subject) == ("info", "certain", HIDDEN)
    assert "one of 2 cards" in finding.message
    assert finding.evidence[0].source == source
    assert any(e.text == "/dev/nvidia1" for e in finding.evidence)


@pytest.mark.parametrize(
    "environment",
    [
        around(SLURM_JOB_ID="7", SLURM_GPUS_ON_NODE="2"),
        around("docker", NVIDIA_VISIBLE_DEVICES="0,1"),
        around("docker", NVIDIA_VISIBLE_DEVICES=",".join(UUIDS)),
    ],
)
def test_a_grant_that_nvml_does_not_fill_is_a_warning(environment: Environment) -> None:
    finding = only(NAME, one_of_two(environment))
    assert (finding.severity, finding.confidence) == ("warning", "likely")
    assert "granted 2 cards" in finding.message
    assert finding.next_test


def test_a_grant_below_what_is_expected_is_an_error() -> None:
    made = one_of_two(around(SLURM_JOB_ID="7", SLURM_GPUS_ON_NODE="1"))
    assert [(f.name, f.severity) for f in found(made, expect=2)] == [(NAME, "error")]
    assert [(f.name, f.severity) for f in found(made, expect=1)] == [(NAME, "info")]


def test_hidden_and_nobody_said_so() -> None:
    for environment in (around("docker"), around("docker", NVIDIA_VISIBLE_DEVICES="all")):
        finding = only(NAME, one_of_two(environment))
        assert (finding.severity, finding.confidence) == ("error", "likely")
        assert finding.next_test[0].outcomes[0].seen.endswith(HIDDEN)


def test_where_the_environment_was_not_read_it_is_possible() -> None:
    excerpt = Environment(variables={}, variables_complete=False, container="docker")
    for environment in (Environment(container="docker"), excerpt):
        finding = only(NAME, one_of_two(environment))
        assert (finding.severity, finding.confidence) == ("warning", "possible")


def test_on_bare_metal_the_counts_speak() -> None:
    assert names(one_of_two(around())) == ["gpu-count-mismatch"]
    assert names(one_of_two(None)) == ["gpu-count-mismatch"]


def test_a_card_with_a_cause_is_not_hidden() -> None:
    made = machine(gpu(SEEN), gpu(HIDDEN, nvml=None, driver="vfio-pci"), environment=around("docker"))
    assert names(made) == ["vfio-bound"]


# --- a container that lost its devices ----------------------------------------------------------


def lost(**known: Any) -> Machine:
    return machine(gpu(nvml=None), nvml=Nvml(status="failed", call="nvmlInit", code=999), **known)


def test_unknown_error_in_a_container() -> None:
    made = lost(environment=around("docker"))
    finding = only(NAME, made)
    assert names(made) == [NAME]
    assert (finding.severity, finding.confidence) == ("error", "likely")
    assert finding.next_test


def test_the_rules_of_the_cgroup_prove_it() -> None:
    finding = only(NAME, lost(environment=around("docker", ("c *:* m", "c 195:* m"))))
    assert (finding.confidence, finding.next_test) == ("certain", ())
    assert [e.text for e in finding.evidence][1:] == ["c *:* m", "c 195:* m"]
    for rules in (("c 195:0 rw", "c 195:255 rw"), ("a *:* rwm",)):
        assert only(NAME, lost(environment=around("docker", rules))).confidence == "likely"


def test_unknown_error_elsewhere() -> None:
    assert names(lost(environment=around())) == ["nvml-unavailable"]
    made = machine(gpu(nvml=None), nvml=Nvml(status="failed", code=9), environment=around("docker"))
    assert names(made) == ["nvml-unavailable"]


# --- CUDA_VISIBLE_DEVICES -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "choice"),
    [
        ("0,1", Choice(2)),
        ("1", Choice(1)),
        (" 1 , 0 ", Choice(2)),
        ("0,0", Choice(1)),
        ("", Choice(0)),
        ("-1", Choice(0)),
        ("NoDevFiles", Choice(0)),
        ("0,-1,1", Choice(1, "-1")),
        ("2", Choice(0, "2")),
        ("0,7,1", Choice(1, "7")),
        ("0;1", Choice(0, "0;1")),
        ("0-1", Choice(0, "0-1")),
        ("99999999999999999999", Choice(0, "99999999999999999999")),
        (UUIDS[1], Choice(1)),
        ("GPU-5e1f,GPU-9", Choice(2)),
        ("GPU-", None),
        ("GPU-abcd", None),
        ("GPU-abcdabcd-77aa-4b1d-9c3e-2f60b1a4d7c8", Choice(0, "GPU-abcdabcd-77aa-4b1d-9c3e-2f60b1a4d7c8")),
        ("MIG-5e1f0c2a-77aa-4b1d-9c3e-2f60b1a4d7c8", None),
        ("cuda:0", Choice(0, "cuda:0")),
    ],
)
def test_how_cuda_reads_the_list(value: str, choice: Choice | None) -> None:
    assert choose(value, UUIDS) == choice


def test_uuids_that_are_not_known() -> None:
    assert choose(UUIDS[0], [None, None]) is None
    zero = "GPU-00000000-0000-0000-0000-000000000000"
    assert choose(zero, [zero, zero]) is None  # the stand-ins of capture.sh


def test_some_of_the_cards() -> None:
    finding = only(NAME, two(environment=around(CUDA_VISIBLE_DEVICES="1")))
    assert (finding.severity, finding.subject, finding.confidence) == ("info", "CUDA_VISIBLE_DEVICES", "certain")
    assert "1 of 2 cards" in finding.message
    assert finding.remedy[0] == "To let programs see every card: unset CUDA_VISIBLE_DEVICES"


def test_all_cards_or_more_is_nothing() -> None:
    for value in ("0,1", "1,0", ",".join(UUIDS), "0,1,2,3,4,5,6,7"):
        assert names(two(environment=around(CUDA_VISIBLE_DEVICES=value))) == []


def test_none_at_all_is_a_warning() -> None:
    finding = only(NAME, two(environment=around(CUDA_VISIBLE_DEVICES="-1")))
    assert finding.severity == "warning"
    assert "all 2 cards" in finding.message
    granted = around(CUDA_VISIBLE_DEVICES="NoDevFiles", SLURM_JOB_ID="7")
    assert only(NAME, two(environment=granted)).severity == "info"


def test_an_entry_that_is_no_card_stops_the_list() -> None:
    finding = only(NAME, two(environment=around(CUDA_VISIBLE_DEVICES="0,5,1")))
    assert finding.severity == "error"
    assert "'5'" in finding.message
    assert "one card of 2" in finding.message
    inside = around(CUDA_VISIBLE_DEVICES="3", SLURM_JOB_ID="7", SLURM_JOB_GPUS="3")
    assert only(NAME, two(environment=inside)).severity == "error"


def test_fewer_than_expected_is_an_error() -> None:
    made = two(environment=around(CUDA_VISIBLE_DEVICES="0"))
    assert [(f.name, f.severity) for f in found(made, expect=2)] == [(NAME, "error")]
    assert [(f.name, f.severity) for f in found(made, expect=1)] == [(NAME, "info")]


def test_the_list_is_of_what_nvml_lists() -> None:
    """Two variables at once: the container gave one card, and the list counts from 0 in it."""
    made = one_of_two(around("docker", NVIDIA_VISIBLE_DEVICES="1", CUDA_VISIBLE_DEVICES="0"))
    assert [(f.subject, f.severity) for f in found(made)] == [(HIDDEN, "info")]
    wrong = one_of_two(around("docker", NVIDIA_VISIBLE_DEVICES="1", CUDA_VISIBLE_DEVICES="1"))
    assert [(f.subject, f.severity) for f in found(wrong)] == [("CUDA_VISIBLE_DEVICES", "error"), (HIDDEN, "info")]


def test_without_nvml_the_cards_of_the_driver_count() -> None:
    finding = only(NAME, two(nvml=None, environment=around(CUDA_VISIBLE_DEVICES="0")))
    assert finding.confidence == "likely"


def test_quiet_where_it_cannot_be_told() -> None:
    assert names(two(nvml=Nvml(status="failed", code=9), environment=around(CUDA_VISIBLE_DEVICES="0"))) != [NAME]
    parted = machine(listed(SEEN, 0, mig_enabled=True, mig_devices=2), environment=around(CUDA_VISIBLE_DEVICES=""))
    assert NAME not in names(parted)


# --- the rest -----------------------------------------------------------------------------------


def test_a_driver_without_cuda_in_the_container() -> None:
    finding = only(NAME, two(environment=around("docker", NVIDIA_DRIVER_CAPABILITIES="utility,graphics")))
    assert (finding.severity, finding.subject) == ("warning", "NVIDIA_DRIVER_CAPABILITIES")
    for value in ("all", "compute,utility", ""):
        assert names(two(environment=around("docker", NVIDIA_DRIVER_CAPABILITIES=value))) == []
    assert names(two(environment=around(NVIDIA_DRIVER_CAPABILITIES="utility"))) == []


def test_rocm() -> None:
    cards = (amd(), amd("0000:84:00.0"))
    finding = only(NAME, machine(*cards, environment=around(HIP_VISIBLE_DEVICES="0")))
    assert (finding.severity, finding.subject) == ("info", "HIP_VISIBLE_DEVICES")
    assert only(NAME, machine(*cards, environment=around(ROCR_VISIBLE_DEVICES="-1"))).severity == "warning"
    assert names(machine(*cards, environment=around(HIP_VISIBLE_DEVICES="0,1"))) == []
    assert names(two(environment=around(HIP_VISIBLE_DEVICES="0"))) == []


def test_unchecked_without_the_environment() -> None:
    assert missing(NAME, machine(gpu(), environment=None)) == ("environment.variables",)
    assert missing(NAME, machine(gpu(), environment=Environment())) == ("environment.variables",)
    assert missing(NAME, machine(amd(), environment=None)) == ()
    assert missing(NAME, machine(gpus=None)) == ("gpus",)
