"""Small machines for rule tests. What a test does not name is healthy, or was not read."""

from __future__ import annotations

from typing import Any

from gpucheck.facts import (
    Bar,
    Counts,
    Cpu,
    CpuSocket,
    Driver,
    Environment,
    ErrorCounts,
    Expected,
    Gpu,
    KernelLog,
    Link,
    Machine,
    Nvml,
    NvmlGpu,
    PciFunction,
    Power,
    Psu,
    Software,
)
from gpucheck.findings import Finding, Unchecked
from gpucheck.rules import View, judge

GIB = 1 << 30
MIB = 1 << 20

P40 = "10de:1b38"
V100 = "10de:1db4"
L40S = "10de:26b9"

X16 = Link(width=16, max_width=16, speed_gts=8.0, max_speed_gts=8.0)


def gpu(address: str = "0000:04:00.0", **known: Any) -> Gpu:
    """A healthy NVIDIA card on PCI, bound to its driver and listed by NVML; ``nvml=None`` unlists it."""
    listed = seen(address) if known.get("vendor", "nvidia") == "nvidia" else None
    healthy: dict[str, Any] = {
        "vendor": "nvidia",
        "name": "Tesla P40",
        "pci_id": P40,
        "driver": "nvidia",
        "link": X16,
        "port_link": X16,
        "bars": (bar(0, 16 * MIB), bar(1, 32 * GIB), bar(3, 32 * MIB)),
        "config_dead": False,
        "errors": ErrorCounts(correctable=0, nonfatal=0, fatal=0),
        "on_pci": True,
        "nvml": listed,
    }
    return Gpu(address=address, **{**healthy, **known})


def seen(address: str | None = "0000:04:00.0", **known: Any) -> NvmlGpu:
    """What NVML says of a healthy idle card that counts its memory's errors."""
    healthy: dict[str, Any] = {
        "index": 0,
        "utilization_percent": 0,
        "sm_clock_mhz": 544,
        "sm_max_clock_mhz": 1531,
        "clock_reasons": ("idle",),
        "ecc_enabled": True,
        "ecc_volatile_uncorrected": 0,
        "ecc_aggregate_uncorrected": 0,
        "retired_pages_single_bit": 0,
        "retired_pages_double_bit": 0,
        "retired_pages_pending": False,
        "mig_enabled": False,
        "power_limit_watts": 250.0,
    }
    return NvmlGpu(address=address, **{**healthy, **known})


def blind(address: str = "0000:04:00.0", **known: Any) -> Gpu:
    """An NVIDIA card that has no driver, so that NVML does not list it."""
    return gpu(address, **{"driver": None, "nvml": None, **known})


def amd(address: str = "0000:83:00.0", **known: Any) -> Gpu:
    """A healthy AMD card."""
    return gpu(address, **{"vendor": "amd", "name": "MI100", "pci_id": "1002:738c", "driver": "amdgpu", **known})


def bar(index: int, size: int | None, *, assigned: bool = True) -> Bar:
    return Bar(index=index, bytes=size, assigned=assigned)


def bridge(address: str, parent: str | None = None, **known: Any) -> PciFunction:
    return PciFunction(address=address, vendor_id=0x8086, device_id=0x6F08, class_id=0x060400, parent=parent, **known)


def function(address: str, ids: str, class_id: int, **known: Any) -> PciFunction:
    vendor, device = (int(part, 16) for part in ids.split(":"))
    return PciFunction(address=address, vendor_id=vendor, device_id=device, class_id=class_id, **known)


def log(*lines: str, complete: bool = True) -> KernelLog:
    return KernelLog(source="dmesg", lines=lines, complete=complete)


def driver(**known: Any) -> Driver:
    """NVIDIA's driver, installed and loaded."""
    loaded: dict[str, Any] = {
        "loaded_modules": ("nvidia", "nvidia_uvm"),
        "nvidia_version": "570.158.01",
        "nvidia_flavour": "proprietary",
        "nvidia_module_installed": True,
        "library_versions": ("570.158.01",),
        "kernel_release": "6.8.0-48-generic",
    }
    return Driver(**{**loaded, **known})


def no_driver(**known: Any) -> Driver:
    """A machine on which no NVIDIA driver was ever installed."""
    bare: dict[str, Any] = {
        "loaded_modules": (),
        "nvidia_version": None,
        "nvidia_flavour": None,
        "nvidia_module_installed": False,
        "library_versions": (),
    }
    return driver(**{**bare, **known})


def sockets(*populated: bool | None) -> tuple[CpuSocket, ...]:
    return tuple(CpuSocket(designation=f"CPU{n}", populated=p) for n, p in enumerate(populated, 1))


def machine(*gpus: Gpu, **known: Any) -> Machine:
    """A machine with these cards. NVML lists those that carry its facts, unless ``nvml`` is given."""
    listed = tuple(card.nvml for card in gpus if card.nvml is not None)
    facts: dict[str, Any] = {
        "gpus": gpus,
        "pci": (),
        "driver": driver(),
        "nvml": Nvml(status="ok", gpus=listed),
        "kernel_log": log(),
        "cpu": Cpu(physical_address_bits=46),
        "environment": Environment(variables={}),
        "software": Software(packages=(), libraries=()),
        "cpu_sockets": sockets(True, True),
        "psus": tuple(Psu(location=f"PSU{n}", watts=3000, present=True, plugged=True) for n in (1, 2)),
        "power": Power(redundancy="full"),
    }
    return Machine(**{**facts, **known})


def view(made: Machine, expect: int | None = None, **known: Any) -> View:
    nvml = made.nvml.gpus if made.nvml else None
    expected = Expected(n=expect, origin="--expect-gpus") if expect is not None else None
    counts: dict[str, Any] = {
        "pci": None if made.gpus is None else sum(bool(gpu.on_pci) for gpu in made.gpus),
        "nvml": None if nvml is None else len(nvml),
        "expected": expected,
        **known.pop("counts", {}),
    }
    return View(counts=Counts(**counts), expected=expected, **known)


def found(made: Machine, expect: int | None = None, **known: Any) -> list[Finding]:
    """All findings of a machine, in order."""
    return list(judge(made, view(made, expect, **known))[0])


def names(made: Machine, expect: int | None = None, **known: Any) -> list[str]:
    return [finding.name for finding in found(made, expect, **known)]


def only(name: str, made: Machine, expect: int | None = None, **known: Any) -> Finding:
    """The one finding of this name; any number but one fails the test."""
    (finding,) = [f for f in found(made, expect, **known) if f.name == name]
    return finding


def missing(name: str, made: Machine) -> tuple[str, ...]:
    """What a rule lacked; empty when it lacked nothing."""
    unchecked: list[Unchecked] = list(judge(made, view(made))[1])
    return next((u.missing for u in unchecked if u.name == name), ())
