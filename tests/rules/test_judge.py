"""The runner, and what holds for all rules: healthy machines are silent, odd facts raise nothing."""

import gzip
import re
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpucheck import facts
from gpucheck.facts import DriverReport, Machine, Nvml
from gpucheck.findings import CODES, SEVERITY_ORDER
from gpucheck.readers.kernel_log import parse
from gpucheck.rules import View, judge
from rules.machines import MIB, amd, bar, blind, bridge, gpu, log, machine, names, no_driver, sockets, view


@pytest.mark.parametrize(
    "made",
    [
        machine(gpu(), gpu("0000:82:00.0")),
        machine(*(gpu(f"0000:{bus:02x}:00.0") for bus in range(0xC0, 0xC9))),
        machine(
            amd(report=DriverReport(power_cap_watts=290)),
            driver=no_driver(loaded_modules=("amdgpu",)),
            nvml=Nvml(status="library-absent"),
        ),
        machine(gpu("10001:80:05.0")),
        machine(gpu(numa_node=None, socket=None, slot=None)),
    ],
    ids=["two", "nine", "AMD alone", "five-digit domain", "no locality"],
)
def test_healthy_machines_are_silent(made: Machine) -> None:
    assert names(made) == []
    assert judge(made, view(made))[1] == ()


def test_nothing_read_is_nothing_found_and_everything_unchecked() -> None:
    findings, unchecked = judge(Machine(), View())
    assert findings == ()
    assert len(unchecked) == len({u.name for u in unchecked}) >= 15


def test_order_is_severity_then_triage() -> None:
    made = machine(
        blind("0000:82:00.0", bars=(bar(1, 256 * MIB, assigned=False),)),
        blind("0000:83:00.0", driver="nouveau"),
        blind("0000:84:00.0", driver="nvidia", config_dead=True),
        cpu_sockets=sockets(True, False),
    )
    findings, _ = judge(made, view(made))
    assert [f.name for f in findings] == [
        "gpu-fell-off-bus",
        "bar-unassigned",
        "nouveau-bound",
        "cpu-socket-empty",
    ]


ADDRESSES = st.sampled_from(["0000:04:00.0", "0000:82:00.0", "10001:80:05.0", "0000:00:03.0", "", "none"])
WIDTHS = st.sampled_from([None, 0, -1, 1, 4, 16, 255])
TEXTS = st.sampled_from(
    ["", "CPU1", "nvidia", "nouveau", "vfio-pci", "10de:1b38", "x{y}", "570.1", "\x1b[31m", "カード"]
)
LINES = st.sampled_from(
    [
        "",
        "NVRM: BAR1 is 0M @ 0x0 (PCI:30000000:01.0)",
        "NVRM: BAR1 is 0M @ 0x0 (PCI:0000:04:00.0)",
        "NVRM: Xid (PCI:zz): 79, x",
        "NVRM: Xid (PCI:0000:04:00): 79, x",
        "fallen off the bus",
        "pci 0000:04:00.0: BAR 1: no space for [mem size 0x0 64bit pref]",
        "pci 0000:04:00.0: BAR 99999999999: failed to assign [mem size 0x10 64bit pref]",
        "pci 0000:04:00.0: bridge window [mem size 0x10]: can't assign; no space",
        "pci_bus 0000:00: root bus resource [mem 0xfffffffffffffffffffff-0x0 window]",
        "NVRM: API mismatch: the client has the version 1.2, but",
        "{0} {name}",
    ]
)
NVML_GPUS = st.builds(
    facts.NvmlGpu,
    index=st.integers(-1, 3),
    address=st.none() | ADDRESSES,
    link=st.builds(facts.Link, width=WIDTHS, max_width=WIDTHS),
    errors=st.dictionaries(st.sampled_from(["nvmlDeviceGetName"]), st.sampled_from([0, 15, 999])),
)
NVMLS = st.builds(
    facts.Nvml,
    status=st.sampled_from(["ok", "library-absent", "failed", "timed-out"]),
    call=st.none() | TEXTS,
    code=st.sampled_from([None, -1, 0, 9, 15, 18, 999]),
    message=st.none() | TEXTS,
    gpus=st.none() | st.lists(NVML_GPUS, max_size=2).map(tuple),
)
GPUS = st.builds(
    facts.Gpu,
    address=ADDRESSES,
    vendor=st.sampled_from(["nvidia", "amd", "intel", "other"]),
    name=st.none() | TEXTS,
    pci_id=st.none() | TEXTS,
    card=st.none() | ADDRESSES,
    driver=st.none() | TEXTS,
    driver_read=st.booleans(),
    slot=st.none() | TEXTS,
    link=st.builds(facts.Link, width=WIDTHS, max_width=WIDTHS),
    port_link=st.none() | st.builds(facts.Link, width=WIDTHS, max_width=WIDTHS),
    bars=st.none()
    | st.lists(
        st.builds(
            facts.Bar,
            index=st.sampled_from([-1, 0, 1, 5, 6, 99]),
            bytes=st.sampled_from([None, -1, 0, 1, 1 << 20, 1 << 70]),
            assigned=st.booleans(),
        ),
        max_size=3,
    ).map(tuple),
    config_dead=st.sampled_from([None, True, False]),
    on_pci=st.sampled_from([None, True, False]),
    nvml=st.none() | NVML_GPUS,
)
FUNCTIONS = st.builds(
    facts.PciFunction,
    address=ADDRESSES,
    vendor_id=st.just(0x10DE),
    device_id=st.just(0x1B38),
    class_id=st.sampled_from([0, 0x030000, 0x060400, 0xFFFFFF]),
    parent=st.none() | ADDRESSES,
)
DRIVERS = st.builds(
    facts.Driver,
    loaded_modules=st.none() | st.lists(TEXTS, max_size=2).map(tuple),
    nvidia_version=st.none() | TEXTS,
    nvidia_flavour=st.sampled_from([None, "open", "proprietary"]),
    nvidia_module_installed=st.sampled_from([None, True, False]),
    library_versions=st.none() | st.lists(TEXTS, max_size=2).map(tuple),
    kernel_command_line=st.none() | TEXTS,
)
ENVIRONMENTS = st.builds(
    facts.Environment,
    variables=st.none()
    | st.dictionaries(
        st.sampled_from(["CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "SLURM_JOB_ID", "NVIDIA_VISIBLE_DEVICES"]),
        TEXTS | st.sampled_from(["0", "-1", "0,9", "GPU-", "MIG-1", "all", "9" * 50, ",", "{0}"]),
        max_size=3,
    ),
    container=st.sampled_from([None, "docker", "kubernetes"]),
    device_rules=st.none() | st.sampled_from([(), ("a",), ("c 195:* m",), ("",), ("c",)]),
)
SOFTWARE = st.builds(
    facts.Software,
    packages=st.none()
    | st.lists(
        st.builds(
            facts.Package,
            name=st.sampled_from(["tensorflow", "tensorflow-cpu", "nvidia-cudnn-cu12", "keras"]),
            version=st.sampled_from(["", "2.16.1", "9.99", "x", "{0}"]),
        ),
        max_size=3,
    ).map(tuple),
    build=st.none()
    | st.builds(
        facts.TensorFlowBuild,
        cuda=st.sampled_from([None, True, False]),
        cuda_version=st.sampled_from([None, "", "12.5", "99", "x"]),
        cudnn_version=st.sampled_from([None, "9", "x"]),
        compute_capabilities=st.none() | st.lists(st.sampled_from(["sm_60", "compute_90", "x", ""])).map(tuple),
    ),
    libraries=st.none() | st.sampled_from([(), ("libcudnn.so.9.12",), ("x",)]),
)
TENSORFLOW_LINES = st.sampled_from(
    [
        "",
        "Skipping registering GPU devices...",
        "Could not load dynamic library 'x'; dlerror: ",
        "Ignoring visible gpu device (device: 1, pci bus id: zz) with core count: 5",
        "CUDA_ERROR_TOO_MANY_PEERS {0}",
        "no kernel image is available",
        "The minimum required Cuda capability is",
    ]
)
MACHINES = st.builds(
    Machine,
    environment=st.none() | ENVIRONMENTS,
    software=st.none() | SOFTWARE,
    tensorflow_log=st.none()
    | st.lists(TENSORFLOW_LINES, max_size=3).map(lambda lines: facts.TensorFlowLog(lines=tuple(lines))),
    gpus=st.none() | st.lists(GPUS, max_size=3).map(tuple),
    pci=st.none() | st.lists(FUNCTIONS, max_size=3).map(tuple),
    nvml=st.none() | NVMLS,
    driver=st.none() | DRIVERS,
    kernel_log=st.none() | st.lists(LINES, max_size=4).map(lambda lines: log(*lines)),
    cpu=st.none() | st.builds(facts.Cpu, physical_address_bits=st.sampled_from([None, 0, 36, 64, 999])),
    cpu_sockets=st.none()
    | st.lists(
        st.builds(facts.CpuSocket, designation=TEXTS, populated=st.sampled_from([None, True, False])), max_size=3
    ).map(tuple),
    psus=st.none()
    | st.lists(
        st.builds(
            facts.Psu,
            location=st.none() | TEXTS,
            present=st.sampled_from([None, True, False]),
            plugged=st.sampled_from([None, True, False]),
        ),
        max_size=3,
    ).map(tuple),
)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(made=MACHINES, expect=st.sampled_from([None, 0, 1, 4]))
def test_no_rule_raises_for_odd_facts(made: Machine, expect: int | None) -> None:
    findings, unchecked = judge(made, view(made, expect))
    severities = [SEVERITY_ORDER[finding.severity] for finding in findings]
    assert severities == sorted(severities)
    assert {u.name for u in unchecked} <= set(CODES)
    assert len({(f.name, f.subject) for f in findings}) >= len({f.name for f in findings})


def test_real_kernel_logs_raise_no_false_alarm(shared_machines: Path) -> None:
    """Sixteen machines whose story is known; of three the log says what is wrong, and of one an Xid."""
    spoken = {}
    for file in sorted((shared_machines / "nvidia-bug-report").glob("*.log*")):
        raw = file.read_bytes()
        report = (gzip.decompress(raw) if file.suffix == ".gz" else raw).decode("utf-8", "replace")
        sections = re.split(r"^_{44}\n", report, flags=re.MULTILINE)
        dmesg = next(section for section in sections if re.match(r"\s*\S*dmesg", section))
        read = parse(dmesg.strip().partition("\n")[2], "dmesg")
        assert len(read.lines) > 500
        findings, _ = judge(Machine(kernel_log=read), View())
        spoken[file.name] = [finding.name for finding in findings]
    assert len(spoken) >= 16
    assert {name: said for name, said in spoken.items() if said} == {
        "qemu-960m-no-vbios.log.gz": ["gpu-init-failed"],
        "x670e-6000ada-4060ti.log.gz": ["xid-reported"],
        "z790-4090-mismatch.log.gz": ["driver-library-mismatch"],
        "z890-5080-gsp-dead.log.gz": ["gpu-init-failed"],
    }


def test_a_loop_of_bridges_ends() -> None:
    pci = (bridge("0000:00:01.0", "0000:00:02.0"), bridge("0000:00:02.0", "0000:00:01.0"))
    assert names(machine(gpu("0000:00:01.0"), pci=pci)) == []


def test_no_rule_reads_anything() -> None:
    """Rules are pure: none of them opens a file, starts a process or asks the clock."""
    import gpucheck.rules

    folder = Path(gpucheck.rules.__file__).parent
    for module in folder.glob("*.py"):
        text = module.read_text()
        assert not any(f"import {name}" in text for name in ("os", "subprocess", "pathlib", "time", "host")), module
