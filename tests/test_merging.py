"""Several sources of one machine become one machine; those of two are refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpucheck.capture import from_json
from gpucheck.cli import run
from gpucheck.errors import InputError
from gpucheck.facts import (
    Bar,
    Cpu,
    Driver,
    Gap,
    KernelLog,
    Link,
    Nvml,
    NvmlGpu,
    Parts,
    PciFunction,
    Psu,
    System,
    Topology,
)
from gpucheck.merging import merge
from gpucheck.probing import Probe, probe, read

FIRST, SECOND = "0000:04:00.0", "0000:82:00.0"
UUIDS = tuple(f"GPU-00000000-1b38-4000-8000-00000000000{number}" for number in (1, 2))
R730 = Path(__file__).parent / "machines" / "r730-two-p40" / "capture.json"

NAMES = f"GPU 0: Tesla P40 (UUID: {UUIDS[0]})\nGPU 1: Tesla P40 (UUID: {UUIDS[1]})\n"
TABLE = """\
+-----------------------------------------------------------------------------------------+
| NVIDIA-SMI 575.51.03              Driver Version: 575.51.03      CUDA Version: 12.9     |
|-----------------------------------------+------------------------+----------------------+
|   0  Tesla P40                      Off |   00000000:04:00.0 Off |                    0 |
| N/A   31C    P8              9W /  250W |       2MiB /  23040MiB |      0%      Default |
+-----------------------------------------+------------------------+----------------------+
|   1  Tesla P40                      Off |   00000000:82:00.0 Off |                    0 |
| N/A   31C    P8              9W /  250W |       2MiB /  23040MiB |      0%      Default |
+-----------------------------------------+------------------------+----------------------+
"""
MATRIX = "\tGPU0\tGPU1\tCPU Affinity\nGPU0\t X \tSYS\t0-15\nGPU1\tSYS\t X \t16-31\n"
LSPCI = """\
00:00.0 Host bridge [0600]: Intel Corporation Xeon E7 v4/Xeon [8086:6f00]
04:00.0 3D controller [0302]: NVIDIA Corporation GP102GL [Tesla P40] [10de:1b38] (rev a1)
82:00.0 3D controller [0302]: NVIDIA Corporation GP102GL [Tesla P40] [10de:1b38] (rev a1)
"""
DETAILS = """\
82:00.0 3D controller: NVIDIA Corporation GP102GL [Tesla P40] (rev a1)
	Control: I/O- Mem+ BusMaster+
	NUMA node: 1
	Region 1: Memory at 39000000000 (64-bit, prefetchable) [size=32G]
	Capabilities: [78] Express (v2) Endpoint, MSI 00
		LnkCap:	Port #0, Speed 8GT/s, Width x16, ASPM not supported
		LnkSta:	Speed 8GT/s, Width x8
	Kernel driver in use: nvidia
	Kernel modules: nvidiafb, nouveau, nvidia

"""
DMIDECODE = """\
# dmidecode 3.3

Handle 0x0100, DMI type 1, 27 bytes
System Information
	Manufacturer: Dell Inc.
	Product Name: PowerEdge R730

"""
DMESG = """\
[    0.000000] Linux version 6.8.0-48-generic (buildd@example)
[    9.046885] NVRM: loading NVIDIA UNIX x86_64 Kernel Module  575.51.03
"""
LSCPU = "Architecture:        x86_64\nSocket(s):           2\nNUMA node(s):        2\nModel name:          Xeon\n"
LSMOD = "Module                  Size  Used by\nnvidia 56819712 2 nvidia_uvm\n"
DEVICES = "".join(f"crw-rw-rw- 1 root root 195, {n} Nov  3 10:00 /dev/nvidia{n}\n" for n in (0, 1))


def function(address: str = FIRST, **known: Any) -> PciFunction:
    return PciFunction(**{"address": address, "vendor_id": 0x10DE, "device_id": 0x1B38, "class_id": 0x030200} | known)


def gpu(index: int = 0, **known: Any) -> NvmlGpu:
    return NvmlGpu(index=index, **known)


def nvml(*gpus: NvmlGpu, **known: Any) -> Nvml:
    return Nvml(**{"status": "ok", "gpus": gpus} | known)


def merged(*parts: Parts) -> Parts:
    return merge([part.model_copy(update={"origin": f"{number}.txt"}) for number, part in enumerate(parts)])


def reasons(whole: Parts) -> dict[str, str]:
    return {gap.fact: gap.reason for gap in whole.gaps}


def contradictions(whole: Parts) -> list[str]:
    return [gap.fact for gap in whole.gaps if gap.reason == "contradiction"]


Looked = Callable[..., Probe]


@pytest.fixture
def look(tmp_path: Path) -> Looked:
    """Probe several texts as files."""

    def looked(*texts: str) -> Probe:
        places = [tmp_path / f"{number}.txt" for number in range(len(texts))]
        for place, text in zip(places, texts, strict=True):
            place.write_text(text)
        return probe([str(place) for place in places])

    return looked


# --- one machine --------------------------------------------------------------------------------


def test_texts_of_one_machine_in_any_order(look: Looked) -> None:
    texts = [LSPCI, DETAILS, TABLE, NAMES, MATRIX, DMIDECODE, DMESG, LSCPU, LSMOD, DEVICES]
    for order in (texts, texts[::-1]):
        report = look(*order)
        machine = report.machine
        assert machine.system is not None
        assert machine.system.product == "PowerEdge R730"
        assert (report.counts.pci, report.counts.nvml, report.counts.device_files) == (2, 2, 2)
        first, second = machine.gpus or ()
        assert (first.pci_id, second.pci_id) == ("10de:1b38", "10de:1b38")
        assert (second.driver, second.numa_node, second.link.width) == ("nvidia", 1, 8)
        assert first.nvml is not None
        assert second.nvml is not None
        assert (first.nvml.uuid, second.nvml.uuid) == UUIDS
        assert machine.topology.matrix == (("X", "SYS"), ("SYS", "X"))
        assert machine.cpu == Cpu(model="Xeon", packages=2, numa_nodes=2)
        assert machine.driver is not None
        assert machine.driver.loaded_modules == ("nvidia",)
        assert machine.driver.device_files == ("/dev/nvidia0", "/dev/nvidia1")
        assert machine.kernel_log is not None
        assert not [gap for gap in machine.gaps if gap.reason == "contradiction"]
        told = {gap.fact for gap in machine.gaps}
        closed = {"topology", "driver.loaded_modules", "driver.device_files", f"gpus.{SECOND}.link", "cpu.packages"}
        assert not told & closed
        assert f"gpus.{FIRST}.link" in told


def test_an_excerpt_fills_the_list_and_does_not_shorten_it() -> None:
    whole = merged(
        Parts(pci=(function(SECOND, numa_node=1),), pci_complete=False), Parts(pci=(function(), function(SECOND)))
    )
    assert [(f.address, f.numa_node) for f in whole.pci or ()] == [(FIRST, None), (SECOND, 1)]
    assert whole.pci_complete


def test_what_readers_found_goes_before_a_listing() -> None:
    listed = function(name="Tesla P40", driver="nouveau", bars=(Bar(index=1, bytes=4, assigned=True),), parent="?")
    found = function(driver="nvidia", numa_node=0, parent=None, link=Link(width=8))
    for order in ((listed, found), (found, listed)):
        whole = merged(*(Parts(pci=(one,)) for one in order))
        (one,) = whole.pci or ()
        assert (one.driver, one.numa_node, one.parent, one.link.width, one.name) == ("nvidia", 0, None, 8, "Tesla P40")
        assert one.bars == listed.bars
        assert contradictions(whole) == [f"gpus.{FIRST}.driver"]


def test_bars_that_one_source_calls_unassigned_are_a_contradiction() -> None:
    bars = [(Bar(index=1, bytes=4, assigned=assigned),) for assigned in (True, False)]
    whole = merged(*(Parts(pci=(function(bars=one),)) for one in bars))
    assert contradictions(whole) == [f"gpus.{FIRST}.bars"]


def test_a_card_that_the_kernel_no_longer_shows_does_not_come_back() -> None:
    bridge = function("0000:00:02.0", class_id=0x060400, vendor_id=0x8086)
    before = Parts(pci=(bridge, function(name="Tesla P40")))
    whole = merged(before, Parts(pci=(bridge,)))
    assert [f.address for f in whole.pci or ()] == ["0000:00:02.0"]
    assert contradictions(whole) == [f"pci.{FIRST}"]


def test_lists_of_nvml_are_joined_by_address_uuid_and_index() -> None:
    table = nvml(gpu(0, address=FIRST, name="P40"), gpu(1, address=SECOND, name="P40"))
    names = nvml(gpu(0, uuid=UUIDS[0]), gpu(1, uuid=UUIDS[1]))
    log = nvml(gpu(0, address=SECOND, uuid=UUIDS[1], minor=1, errors={"nvmlDeviceGetName": 15}), complete=False)
    for order in ((table, names, log), (log, names, table), (names, log, table)):
        whole = merged(*(Parts(nvml=one) for one in order))
        assert whole.nvml is not None
        assert whole.nvml.complete
        assert {(one.address, one.uuid, one.minor) for one in whole.nvml.gpus or ()} == {
            (FIRST, UUIDS[0], None),
            (SECOND, UUIDS[1], 1),
        }
        assert not contradictions(whole)
        assert any(one.errors for one in whole.nvml.gpus or ())


def test_two_whole_lists_that_differ_count_nothing() -> None:
    """One of them was made before a card was lost or in a container: nobody can say which is true."""
    whole = merged(
        Parts(nvml=nvml(gpu(0, address=FIRST))), Parts(nvml=nvml(gpu(0, address=FIRST), gpu(1, address=SECOND)))
    )
    assert whole.nvml is not None
    assert not whole.nvml.complete
    assert contradictions(whole) == ["nvml.gpus"]


def test_nvml_that_failed_and_nvml_that_works_contradict_each_other() -> None:
    failed = Nvml(status="failed", code=9, message="Driver not loaded")
    whole = merged(Parts(nvml=failed), Parts(nvml=nvml(gpu(0, address=FIRST))))
    assert whole.nvml == failed
    assert contradictions(whole) == ["nvml"]


def test_an_excerpt_of_nvml_is_no_count(look: Looked) -> None:
    log = f"GPU 00000000:04:00.0\n    Product Name : Tesla P40\n    GPU UUID : {UUIDS[0]}\n"
    report = look(LSPCI, log)
    assert report.counts.nvml is None
    assert report.verdict == "ok"
    assert "nvml.complete" in {gap.fact for gap in report.machine.gaps}
    assert {"gpu-count-mismatch"} <= {unchecked.name for unchecked in report.unchecked}


def test_the_matrix_of_indexes_needs_a_whole_list() -> None:
    pairs = Topology(addresses=("0", "1"), matrix=(("X", "NV4"), ("NV4", "X")))
    gap = Gap(fact="topology", reason="not-in-input", how="nvidia-smi")
    cards = (gpu(0, address=SECOND), gpu(1, address=FIRST))
    whole = merged(Parts(topology=pairs, gaps=(gap,)), Parts(nvml=nvml(*cards)))
    assert whole.topology is not None
    assert whole.topology.addresses == (SECOND, FIRST)
    assert "topology" not in reasons(whole)
    for other in (Parts(), Parts(nvml=nvml(*cards, complete=False)), Parts(nvml=nvml(cards[0]))):
        whole = merged(Parts(topology=pairs, gaps=(gap,)), other)
        assert whole.topology is None
        assert reasons(whole)["topology"] == "not-in-input"


def test_driver_and_processor_are_filled_field_by_field() -> None:
    gaps = (Gap(fact="driver.device_files", reason="not-in-input", how="ls"),)
    whole = merged(
        Parts(driver=Driver(loaded_modules=("nvidia",), kernel_release="6.8.0"), gaps=gaps, cpu=Cpu(packages=2)),
        Parts(driver=Driver(device_files=(), kernel_release="5.4.0"), cpu=Cpu(packages=1, numa_nodes=2)),
    )
    assert whole.driver == Driver(loaded_modules=("nvidia",), kernel_release="6.8.0", device_files=())
    assert whole.cpu == Cpu(packages=2, numa_nodes=2)
    assert "driver.device_files" not in reasons(whole)
    assert contradictions(whole) == ["driver.kernel_release", "cpu.packages"]
    (how,) = (gap.how for gap in whole.gaps if gap.fact == "driver.kernel_release")
    assert how == "0.txt says 6.8.0, 1.txt 5.4.0."


def test_two_logs_of_one_boot_are_one() -> None:
    start = KernelLog(source="journal", lines=("Linux version 6.8.0-48 (x)", "early", "both"), complete=True)
    end = KernelLog(source="dmesg", lines=("both", "NVRM: Xid (PCI:0000:82:00): 79"), complete=False)
    for order in ((start, end), (end, start)):
        log = merged(*(Parts(kernel_log=one) for one in order)).kernel_log
        assert log is not None
        assert log.lines == ("Linux version 6.8.0-48 (x)", "early", "both", "NVRM: Xid (PCI:0000:82:00): 79")
        assert log.complete


def test_logs_of_two_kernels_are_not_mixed() -> None:
    logs = [KernelLog(source="file", lines=(f"Linux version {n}.0 (x)", f"of {n}"), complete=True) for n in (5, 6)]
    whole = merged(*(Parts(kernel_log=log) for log in logs))
    assert whole.kernel_log == logs[0]
    assert contradictions(whole) == ["kernel_log"]


def test_an_old_log_or_driver_is_a_contradiction_and_no_refusal() -> None:
    log = KernelLog(source="file", lines=("Linux version 5.4.0-1 (x)",), complete=True)
    driver = Driver(kernel_release="6.8.0", nvidia_version="535.54.03")
    whole = merged(Parts(kernel_log=log), Parts(driver=driver), Parts(nvml=nvml(driver_version="575.51.03")))
    assert contradictions(whole) == ["driver.nvidia_version", "kernel_log"]


def test_a_name_is_better_than_none(look: Looked) -> None:
    (card, _) = look(LSPCI.replace("10de:1b38", "10de:ffee")).machine.gpus or ()
    assert card.name == "NVIDIA Corporation GP102GL [Tesla P40]"


# --- two machines -------------------------------------------------------------------------------

OTHER_CARD = LSPCI.replace("Tesla P40", "GeForce RTX 3090").replace("10de:1b38", "10de:2204")
OTHER_HOST = "the names of the hosts differ"
TWO_MACHINES = {
    "cards on PCI": (LSPCI, OTHER_CARD, "0000:04:00.0 is 10de:2204, not 10de:1b38"),
    "PCI and NVML": (
        LSPCI.replace("NVIDIA Corporation GP102GL [Tesla P40] [10de:1b38]", "AMD [1002:738c]"),
        TABLE,
        "0000:04:00.0 is Tesla P40, not 1002:738c",
    ),
    "UUIDs of cards": (
        TABLE + NAMES,
        TABLE + NAMES.replace("000000000001", "000000000009"),
        "the GPU at 0000:04:00.0 has another UUID",
    ),
    "hosts in prompts": (
        f"me@alpha:~$ lspci -nn\n{LSPCI}",
        f"me@beta:~$ nvidia-smi\n{TABLE}",
        OTHER_HOST,
    ),
    "host in a journal": (
        f"me@alpha:~$ lspci -nn\n{LSPCI}",
        "Nov 03 10:00:00 beta.example.org kernel: Linux version 6.8.0-48\nNov 03 10:00:00 beta kernel: NVRM: a\n",
        OTHER_HOST,
    ),
    "host of uname": (
        "Linux alpha 6.8.0-48-generic #48-Ubuntu SMP x86_64 GNU/Linux\n",
        f"[root@beta ~]# lsmod\n{LSMOD}",
        OTHER_HOST,
    ),
}


@pytest.mark.parametrize("kind", TWO_MACHINES)
def test_texts_of_two_machines_are_refused(kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, second, words = TWO_MACHINES[kind]
    for name, text in (("first.txt", first), ("second.txt", second)):
        (tmp_path / name).write_text(text)
    places = [str(tmp_path / name) for name in ("first.txt", "second.txt")]
    for order in (places, places[::-1]):
        assert run(["probe", "--from", order[0], "--from", order[1]]) == 2
        out, line = capsys.readouterr()
        assert (out, line.count("\n")) == ("", 1)
        assert all(place in line for place in places)
        assert not {"alpha", "beta"} & set(line.split())
    assert words in line or order == places[::-1]


def test_the_words_of_a_refusal(look: Looked) -> None:
    for first, second, words in TWO_MACHINES.values():
        with pytest.raises(InputError) as caught:
            look(first, second)
        assert words in caught.value.message


@pytest.mark.parametrize(
    ("first", "second"),
    [
        # a pod or container on the same machine, placeholders, a name with and without its domain
        (f"me@alpha:~$ lspci -nn\n{LSPCI}", f"root@3f2a9b8c1d0e:/# nvidia-smi\n{TABLE}"),
        (f"me@alpha:~$ lspci -nn\n{LSPCI}", f"user@host:~$ nvidia-smi\n{TABLE}"),
        (f"me@alpha:~$ lspci -nn\n{LSPCI}", f"root@alpha.example.org:~# nvidia-smi\n{TABLE}"),
        # one text with both names, as after ssh
        (f"me@laptop:~$ ssh beta\nme@beta:~$ lspci -nn\n{LSPCI}", f"me@beta:~$ nvidia-smi\n{TABLE}"),
        # renamed meanwhile: the cards are the same ones
        (f"me@alpha:~$ nvidia-smi -L\n{NAMES}", f"me@beta:~$ nvidia-smi -L\n{NAMES}"),
        # UUIDs that people have masked
        (TABLE + NAMES, TABLE + NAMES.replace("00000000", "xxxxxxxx")),
        # a disk was changed
        (
            LSPCI + "05:00.0 Non-Volatile memory controller [0108]: A B [144d:a804]\n",
            LSPCI + "05:00.0 Non-Volatile memory controller [0108]: C D [15b7:5006]\n",
        ),
    ],
)
def test_what_one_machine_may_show(look: Looked, first: str, second: str) -> None:
    assert look(first, second).machine is not None


def test_two_captures_with_stand_ins_and_a_text_are_not_compared_by_uuid() -> None:
    system = System(uuid="4c4c4544-005a-3110-8036-b4c04f4d3232")
    other = System(uuid="1d1d4544-005a-3110-8036-b4c04f4d3232")
    cards = [nvml(gpu(0, address=FIRST, uuid=uuid)) for uuid in UUIDS]
    merged(Parts(system=system, nvml=cards[0], redacted=True), Parts(system=other, nvml=cards[1]))
    with pytest.raises(InputError, match="another machine"):
        merged(Parts(system=system), Parts(system=other))
    with pytest.raises(InputError, match="another machine"):
        merged(Parts(system=system, redacted=True), Parts(system=other, redacted=True))


def test_a_bmc_that_tells_nothing_was_asked_all_the_same() -> None:
    not_asked = Parts(gaps=(Gap(fact="power", reason="not-requested", how="gpucheck probe --bmc"),))
    silent = Parts(gaps=(Gap(fact="power", reason="not-supported", how="The BMC does not tell it."),))
    for parts in ((not_asked, silent), (silent, not_asked)):
        assert [gap.reason for gap in merged(*parts).gaps if gap.fact == "power"] == ["not-supported"]


def test_names_of_hosts_are_not_kept(look: Looked) -> None:
    report = look(f"me@secretname:~$ lspci -nn\n{LSPCI}", f"me@secretname:~$ nvidia-smi\n{TABLE}")
    assert "secretname" not in report.model_dump_json()
    assert "secretname" not in repr(report)


# --- programs' output in a capture --------------------------------------------------------------

XML = f"""\
<nvidia_smi_log><driver_version>575.51.03</driver_version><attached_gpus>1</attached_gpus>
<gpu id="00000000:04:00.0"><product_name>Tesla P40</product_name><uuid>{UUIDS[0]}</uuid></gpu></nvidia_smi_log>
"""


def captured(commands: dict[str, Any], **changes: Any) -> tuple[Parts, ...]:
    document = json.loads(R730.read_bytes())
    document["commands"] = {
        line: {"returncode": 0, "stdout": output, "stderr": ""} if isinstance(output, str) else output
        for line, output in commands.items()
    }
    for key, value in changes.items():
        document[key] = value
    return read(from_json("capture.json", {key: value for key, value in document.items() if value is not None}))


def test_nvidia_smi_stands_in_for_answers_that_are_not_there() -> None:
    whole = merge(captured({"nvidia-smi -q -x": XML}, nvml=None))
    assert whole.nvml is not None
    assert [(one.address, one.name) for one in whole.nvml.gpus or ()] == [(FIRST, "Tesla P40")]


def test_direct_answers_go_before_programs() -> None:
    direct = merge(captured({}))
    assert merge(captured({"nvidia-smi -q -x": XML, "lspci -nn": LSPCI, "dmidecode": DMIDECODE})) == direct


def test_nvidia_smi_that_hung_is_nvml_that_hung() -> None:
    whole = merge(captured({"nvidia-smi -q -x": {"error": "ETIMEDOUT"}}, nvml=None))
    assert whole.nvml is not None
    assert (whole.nvml.status, whole.nvml.message) == ("timed-out", "nvidia-smi -q -x did not answer in time.")


def test_lspci_and_dmidecode_stand_in_for_sysfs() -> None:
    commands = {"/usr/bin/lspci -nn": LSPCI, "sudo dmidecode": DMIDECODE, "lscpu": LSCPU, "date": "Mon"}
    whole = merge(captured(commands, files={}, links={}, folders=[], nvml=None))
    assert [f.address for f in whole.pci or ()] == ["0000:00:00.0", FIRST, SECOND]
    assert whole.system is not None
    assert whole.system.product == "PowerEdge R730"
    assert whole.cpu is not None


def test_a_list_that_names_all_units_of_another_may_add_some() -> None:
    one, two = (Psu(location=f"PSU{number}", present=True) for number in (1, 2))
    rated = [unit.model_copy(update={"watts": 1100}) for unit in (one, two)]
    assert merge([Parts(psus=(one,)), Parts(psus=tuple(rated))]).psus == tuple(rated)
    stranger = Psu(location="Bay", present=True)
    assert merge([Parts(psus=(one, stranger)), Parts(psus=tuple(rated))]).psus == (rated[0], stranger)
