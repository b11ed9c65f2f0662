"""What the rules about TensorFlow share: which one is installed, for which cards it has code, its log.

They speak only where a TensorFlow is installed for the Python that was looked at and an NVIDIA card
is there, or where TensorFlow's own log says so. What packages show is a warning, because that Python
may not be the one that trains; what the log shows is an error.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from gpucheck.facts import Gpu, Machine, Package
from gpucheck.findings import Evidence
from gpucheck.packages import BUILD_INFO, TENSORFLOW

if TYPE_CHECKING:
    from gpucheck.rules import View

LOG = "TensorFlow's log"
CPU_ONLY = ("tensorflow-cpu", "tf-nightly-cpu", "tensorflow-intel", "intel-tensorflow", "tensorflow-macos")
"""Packages that never hold CUDA code."""
OFFICIAL = ("tensorflow", "tensorflow-gpu")
"""Packages whose content the catalog knows by their version."""

Code = Literal["machine", "ptx", "none"]


def cards(machine: Machine) -> list[Gpu]:
    """NVIDIA GPUs, on PCI or known to NVML alone (WSL 2)."""
    return [gpu for gpu in machine.gpus or () if gpu.vendor == "nvidia"]


def lacks(machine: Machine) -> Iterator[str]:
    """What these rules cannot do without, where a card is there."""
    if cards(machine) and (machine.software is None or machine.software.packages is None):
        yield "software.packages"


def installed(machine: Machine) -> Package | None:
    """The TensorFlow that is installed; the one with CUDA where there are two."""
    packages = machine.software.packages if machine.software is not None else None
    found = {package.name: package for package in packages or ()}
    return next((found[name] for name in TENSORFLOW if name in found), None)


def wheel(package: Package, view: View) -> Mapping[str, Any] | None:
    """What the catalog knows of an official package; None for others and for other versions."""
    if view.catalog is None or package.name not in OFFICIAL or "+" in package.version:
        return None
    wheels: Sequence[Mapping[str, Any]] = view.catalog.software.get("tensorflow", {}).get("wheels", ())
    minor = package.version.split(".")[:2]
    return next((row for row in wheels if row["version"].split(".")[:2] == minor), None)


def is_cuda_build(machine: Machine, view: View) -> bool | None:
    """Whether the installed TensorFlow was built for CUDA, by its own word or by its package."""
    package = installed(machine)
    if package is None or machine.software is None:
        return None
    build = machine.software.build
    if build is not None and build.cuda is not None:
        return build.cuda
    if package.name in CPU_ONLY:
        return False
    return True if wheel(package, view) is not None else None


def package_evidence(machine: Machine, package: Package) -> Evidence:
    """That a package is installed, and where."""
    folders = machine.software.folders if machine.software is not None else None
    return Evidence(source=folders[0] if folders else "pip list", text=f"{package.name} {package.version}")


def build_evidence(machine: Machine, text: str) -> Evidence:
    """What TensorFlow's build information says."""
    folders = machine.software.folders if machine.software is not None else None
    return Evidence(source=f"{folders[0]}/{BUILD_INFO}" if folders else BUILD_INFO, text=text)


def log_lines(machine: Machine, *words: str) -> list[str]:
    """Lines of TensorFlow's log that hold one of the words."""
    lines = machine.tensorflow_log.lines if machine.tensorflow_log is not None else ()
    return [line for line in lines if any(word in line for word in words)]


def log_evidence(lines: Iterable[str], most: int = 6) -> tuple[Evidence, ...]:
    """Lines of TensorFlow's log, each once."""
    return tuple(Evidence(source=LOG, text=line) for line in list(dict.fromkeys(lines))[:most])


def may_have_card(machine: Machine) -> bool:
    """Whether an NVIDIA card is there, or it was not looked at: then the log may speak."""
    return machine.gpus is None or bool(cards(machine))


def capability(gpu: Gpu, view: View) -> tuple[int, int] | None:
    """Compute capability, from NVML or, for a card that the catalog knows, from there."""
    text = gpu.nvml.compute_capability if gpu.nvml is not None else None
    if text is None and gpu.catalog_gpu is not None and view.catalog is not None:
        text = view.catalog.card(gpu.catalog_gpu).software.compute_capability
    found = re.fullmatch(r"(\d{1,2})\.(\d)", text or "")
    return (int(found[1]), int(found[2])) if found else None


def code_for(wanted: tuple[int, int], capabilities: Iterable[str]) -> Code | None:
    """Which code of a build runs on a card: machine code, PTX that the driver compiles at the first
    start, or none. None where an entry of the list is not understood.

    Machine code for X.Y runs on X.Z with Z >= Y and on no other X; PTX runs on anything newer.
    """
    best: Code = "none"
    for entry in capabilities:
        found = re.fullmatch(r"(sm|compute)_(\d{1,2})(\d)[af]?", entry)
        if found is None:
            return None
        have = int(found[2]), int(found[3])
        if have[0] == wanted[0] and have[1] <= wanted[1]:
            return "machine"
        if found[1] == "compute" and have <= wanted:
            best = "ptx"
    return best


def versions(text: str | None) -> tuple[int, ...]:
    """A version as numbers that compare; what follows the numbers is left out."""
    return tuple(int(part) for part in re.findall(r"\d{1,9}", (text or "").partition("+")[0])[:4])
