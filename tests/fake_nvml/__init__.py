"""A C library that answers as ``libnvidia-ml.so.1``, driven by a script. See README.md."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

Script = dict[str, Any]

SOURCE = Path(__file__).with_name("fake_nvml.c")


def build(folder: Path) -> Path:
    """Compile the library into a folder and return the folder. FileNotFoundError without a compiler."""
    compiler = next((found for name in ("cc", "gcc", "clang") if (found := shutil.which(name))), None)
    if compiler is None:
        raise FileNotFoundError("no C compiler")
    library = folder / "libnvidia-ml.so.1"
    command = [compiler, "-shared", "-fPIC", "-Wall", "-Wextra", "-o", str(library), str(SOURCE)]
    subprocess.run(command, check=True, timeout=60)
    return folder


class FakeNvml:
    """Writes scripts and names the environment in which a process meets the scripted library.

    Args:
        folder: Where the scripts go.
        library: Folder that holds the library.
    """

    def __init__(self, folder: Path, library: Path) -> None:
        self.folder = folder
        self.library = library

    def environment(self, script: Script) -> dict[str, str]:
        """The variables that a process needs; ``script`` is described in README.md."""
        (self.folder / "nvml.json").write_text(json.dumps(script, indent=1))
        lines = self.folder / "nvml.script"
        lines.write_text("".join(f"{path}\t{value}\n" for path, value in _flat("", script)))
        earlier = ",".join(str(child.pid) for child in psutil.Process().children())
        search = [str(self.library), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])]
        return {
            "LD_LIBRARY_PATH": ":".join(search),
            "GPUCHECK_FAKE_NVML": str(lines),
            "GPUCHECK_FAKE_NVML_EARLIER": f",{earlier},",
        }


def _flat(path: str, value: Any) -> Iterator[tuple[str, str]]:
    """Leaves of a script: ``devices.0.name`` and its value, safe within one line."""
    if isinstance(value, dict):
        items = [(str(key), item) for key, item in value.items()]
    elif isinstance(value, (list, tuple)):
        items = [(str(place), item) for place, item in enumerate(value)]
    elif value is None:  # as if the key were not there: the function answers "not supported"
        return
    else:
        text = str(int(value) if isinstance(value, bool) else value)
        raw = text.encode("utf-8", "surrogateescape")
        yield path, "".join(chr(b) if 0x20 <= b < 0x7F and b != 0x25 else f"%{b:02x}" for b in raw)
        return
    for key, item in items:
        yield from _flat(f"{path}.{key}" if path else key, item)


def script(*devices: Script, **more: Any) -> Script:
    """A healthy driver with these devices; ``more`` adds or replaces keys of the whole."""
    return {
        "driver_version": "550.163.01",
        "nvml_version": "12.550.163.01",
        "cuda_version": 12040,
        "devices": list(devices),
        **more,
    }


def device(index: int, **more: Any) -> Script:
    """A healthy idle 24 GiB card; ``more`` adds or replaces keys."""
    return {
        "address": f"0000:{4 + 0x40 * index:02x}:00.0",
        "pci_id": "10de:2204",
        "subsystem_id": "1043:87d5",
        "name": "NVIDIA GeForce RTX 3090",
        "uuid": f"GPU-00000000-0000-0000-0000-{index:012d}",
        "minor": index,
        "memory_total_bytes": 24576 << 20,
        "memory_used_bytes": 300 << 20,
        "bar1_bytes": 256 << 20,
        "compute_capability": "8.6",
        "vbios": "94.02.42.00.b4",
        "link_width": 16,
        "link_max_width": 16,
        "link_gen": 1,
        "link_max_gen": 3,
        "gpu_max_gen": 4,
        "pcie_replays": 0,
        "temperature_c": 35,
        "power_mw": 31250,
        "power_limit_mw": 300000,
        "power_default_limit_mw": 350000,
        "power_min_limit_mw": 100000,
        "power_max_limit_mw": 366000,
        "performance_state": 8,
        "utilization_percent": 0,
        "sm_clock_mhz": 210,
        "sm_max_clock_mhz": 2100,
        "throttle_reasons": 1,
        "energy_mj": 1_000_000,
        "persistence": 0,
        "p2p_status": 1,
        "processes": [],
        **more,
    }
