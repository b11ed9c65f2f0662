from __future__ import annotations

from pathlib import Path

import pytest
from support import Content, tree, unpacked

from gpucheck.facts import Cpu
from gpucheck.host import LiveHost
from gpucheck.readers import cpu
from gpucheck.readers.gaps import in_container


def x86(packages: int = 2, flags: str = "fpu sse2 avx avx2") -> str:
    return "\n".join(
        f"processor\t: {index}\nmodel name\t: Intel(R) Xeon(R) CPU E5-2680 v4 @ 2.40GHz\n"
        f"physical id\t: {index % packages}\nflags\t\t: {flags}\n"
        "address sizes\t: 46 bits physical, 48 bits virtual\n"
        for index in range(4)
    )


ARM = "processor\t: 0\nBogoMIPS\t: 2000.00\nFeatures\t: fp asimd\nCPU implementer\t: 0x41\n"
POWER = "processor\t: 0\ncpu\t\t: POWER9, altivec supported\n\nprocessor\t: 1\n"
SERVER: dict[str, Content] = {
    "/proc/cpuinfo": x86(),
    "/proc/meminfo": "MemTotal:       131923456 kB\nMemFree:  1 kB\n",
    "/sys/devices/system/node/has_cpu": "0-1\n",
    "/sys/class/dmi/id/sys_vendor": "Dell Inc.\n",
}


def test_a_two_socket_server(tmp_path: Path) -> None:
    parts = cpu.read(tree(tmp_path, SERVER))
    assert parts.gaps == ()
    assert parts.memory_bytes == 131923456 * 1024
    assert parts.cpu == Cpu(
        model="Intel(R) Xeon(R) CPU E5-2680 v4 @ 2.40GHz",
        packages=2,
        numa_nodes=2,
        logical_cpus=4,
        physical_address_bits=46,
        has_avx=True,
        hypervisor=None,
    )


def test_avx_is_a_whole_word(tmp_path: Path) -> None:
    parts = cpu.read(tree(tmp_path, SERVER | {"/proc/cpuinfo": x86(flags="sse2 avx512f_not")}))
    assert parts.cpu is not None
    assert parts.cpu.has_avx is False


@pytest.mark.parametrize(
    ("vendor", "release", "kind", "name"),
    [
        ("QEMU\n", "", "", "QEMU"),
        ("VMware, Inc.\n", "", "", "VMware"),
        ("Microsoft Corporation\n", "", "", "Hyper-V"),
        ("Amazon EC2\n", "", "", "Amazon EC2"),
        ("Dell Inc.\n", "", "", "unknown"),
        (None, "", "", "unknown"),
        (None, "5.15.153.1-microsoft-standard-WSL2\n", "", "Hyper-V"),
        (None, "", "xen\n", "Xen"),
    ],
)
def test_hypervisor_by_name(tmp_path: Path, vendor: str | None, release: str, kind: str, name: str) -> None:
    files = SERVER | {
        "/proc/cpuinfo": x86(flags="avx hypervisor"),
        "/proc/sys/kernel/osrelease": release,
        "/sys/hypervisor/type": kind,
    }
    if vendor is None:
        del files["/sys/class/dmi/id/sys_vendor"]
    else:
        files["/sys/class/dmi/id/sys_vendor"] = vendor
    parts = cpu.read(tree(tmp_path, files))
    assert parts.cpu is not None
    assert parts.cpu.hypervisor == name


def test_a_cloud_that_rents_whole_machines_is_no_hypervisor(tmp_path: Path) -> None:
    parts = cpu.read(tree(tmp_path, SERVER | {"/sys/class/dmi/id/sys_vendor": "Amazon EC2\n"}))
    assert parts.cpu is not None
    assert parts.cpu.hypervisor is None


def test_arm_leaves_gaps(tmp_path: Path) -> None:
    parts = cpu.read(tree(tmp_path, SERVER | {"/proc/cpuinfo": ARM}))
    assert parts.cpu == Cpu(logical_cpus=1, numa_nodes=2)
    assert {gap.fact for gap in parts.gaps} == {
        "cpu.model",
        "cpu.packages",
        "cpu.physical_address_bits",
        "cpu.has_avx",
        "cpu.hypervisor",
    }
    assert {gap.reason for gap in parts.gaps} == {"not-supported"}


def test_arm_in_qemu_is_known_to_be_virtual(tmp_path: Path) -> None:
    files = SERVER | {"/proc/cpuinfo": ARM, "/sys/class/dmi/id/sys_vendor": "QEMU\n"}
    parts = cpu.read(tree(tmp_path, files))
    assert parts.cpu is not None
    assert parts.cpu.hypervisor == "QEMU"


def test_power_names_its_model() -> None:
    info = cpu.parse_cpuinfo(POWER)
    assert (info.model, info.logical_cpus, info.packages) == ("POWER9, altivec supported", 2, None)


def test_a_file_without_processors_is_refused() -> None:
    with pytest.raises(ValueError, match="no processor"):
        cpu.parse_cpuinfo("nothing\n")


@pytest.mark.parametrize(("text", "count"), [("0\n", 1), ("0-1", 2), ("0,8\n", 2), ("0-3,8-9\n\x00", 6)])
def test_count_list(text: str, count: int) -> None:
    assert cpu.count_list(text) == count


@pytest.mark.parametrize("text", ["", "\n", "all", "0-"])
def test_count_list_refuses(text: str) -> None:
    with pytest.raises(ValueError, match="invalid literal"):
        cpu.count_list(text.replace("0-", "0-x"))


def test_nodes_are_counted_where_the_list_is_empty(tmp_path: Path) -> None:
    nodes = "/sys/devices/system/node"
    files = SERVER | {f"{nodes}/has_cpu": "", f"{nodes}/node0/x": "", f"{nodes}/node1/x": ""}
    parts = cpu.read(tree(tmp_path, files))
    assert parts.cpu is not None
    assert parts.cpu.numa_nodes == 2


@pytest.mark.parametrize(
    ("path", "fact"),
    [
        ("/proc/cpuinfo", "cpu"),
        ("/proc/meminfo", "memory_bytes"),
        ("/sys/devices/system/node/has_cpu", "cpu.numa_nodes"),
    ],
)
def test_an_absent_file_is_a_gap(tmp_path: Path, path: str, fact: str) -> None:
    parts = cpu.read(tree(tmp_path, {key: value for key, value in SERVER.items() if key != path}))
    assert [(gap.fact, gap.reason) for gap in parts.gaps] == [(fact, "file-absent")]


def test_nothing_at_all(tmp_path: Path) -> None:
    parts = cpu.read(tree(tmp_path, {}))
    assert (parts.cpu, parts.memory_bytes) == (None, None)
    assert [gap.fact for gap in parts.gaps] == ["cpu", "memory_bytes", "cpu.numa_nodes"]


@pytest.mark.parametrize(
    ("files", "inside"),
    [
        ({"/.dockerenv": ""}, True),
        ({"/run/.containerenv": ""}, True),
        ({"/proc/1/cgroup": "0::/kubepods/besteffort/pod1\n"}, True),
        ({"/proc/1/cgroup": "0::/init.scope\n"}, False),
        ({}, False),
    ],
)
def test_containers(tmp_path: Path, files: dict[str, Content], inside: bool) -> None:
    assert in_container(tree(tmp_path, files)) is inside


def test_this_machine_agrees_with_psutil() -> None:
    import psutil

    parts = cpu.read(LiveHost())
    assert parts.cpu is not None
    assert parts.cpu.logical_cpus == psutil.cpu_count()
    assert parts.memory_bytes == psutil.virtual_memory().total


@pytest.mark.parametrize(
    ("name", "packages", "nodes", "bits"),
    [
        ("hwloc_64amd64-4s2n4ca2co.tar.bz2", 4, 8, 48),
        ("hwloc_40intel64-2g2n4c+pcilocality.tar.bz2", 4, 4, 44),
        ("hwloc_nvidia-dgx-gb10.tar.bz2", None, 1, None),
        ("hwloc_nvidiagpunumanodes.tar.bz2", None, 2, None),
        ("ghw_linux-amd64-61797caf7c0b6bca1725ad7975ed4773.tar.gz", 1, 1, 43),
    ],
)
def test_real_trees(
    shared_machines: Path, tmp_path: Path, name: str, packages: int | None, nodes: int, bits: int | None
) -> None:
    found = cpu.read(unpacked(shared_machines / "sysfs" / name, tmp_path)).cpu
    assert found is not None
    assert (found.packages, found.numa_nodes, found.physical_address_bits) == (packages, nodes, bits)
