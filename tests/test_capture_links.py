"""What is read of links, bridges and other makers' cards goes through both kinds of capture."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from machines import build, registers
from machines.golden import SLOT_6, r730, two_p40

from gpucheck import capture as reading
from gpucheck.assemble import assemble
from gpucheck.capture_script import script_text
from gpucheck.catalog import load
from gpucheck.facts import Machine
from gpucheck.host import LiveHost
from gpucheck.probing import read
from gpucheck.recording import RecordingHost, capture, document, dump

AER = {
    "aer_dev_correctable": "RxErr 0\nBadTLP 12\nTOTAL_ERR_COR 12\n",
    "aer_dev_nonfatal": "Undefined 0\nTOTAL_ERR_NONFATAL 0\n",
    "aer_dev_fatal": "Undefined 0\nTOTAL_ERR_FATAL 1\n",
}
AMD = {
    "product_name": "AMD INSTINCT MI210\n",
    "serial_number": "PCB12345678\n",
    "mem_info_vram_total": "68702699520\n",
    "gpu_busy_percent": "7\n",
    "hwmon/hwmon3/power1_cap": "300000000\n",
}


WHOLE = registers.bridge(presence=True, link=True, acs=registers.REDIRECTS)


def folder(root: Path) -> LiveHost:
    """An R730 with a P40 and, in slot 4, a card of AMD; bridges tell all, as to root."""
    first, second = two_p40()
    first = replace(first, more={**AER, "power_state": "D0\n"})
    second = replace(second, ids="1002:740f", class_id=0x038000, driver="amdgpu", more=AMD)
    made = r730(first, second)
    above = replace(made.functions[0], more={**AER, "config": build.packed(WHOLE)})
    document = replace(made, functions=(above, *made.functions[1:]), log=None).capture()
    document["folders"].append("/sys/kernel/iommu_groups/31")
    document["files"]["/sys/kernel/iommu_groups/31/type"] = "DMA-FQ\n"
    place = document["links"][f"/sys/bus/pci/devices/{SLOT_6}"]
    document["links"][f"{place}/iommu_group"] = "/sys/kernel/iommu_groups/31"
    for path, target in document["links"].items():
        document["links"][path] = os.path.relpath(target, os.path.dirname(path))
    return LiveHost(build.as_tree(document, root))


def machine(host: Any) -> Machine:
    return assemble(read(host), load())


def check(made: Machine, live: Machine) -> None:
    """Equal, and not for want of facts."""
    assert (made.gpus, made.pci) == (live.gpus, live.pci)
    first, second = made.gpus or ()
    assert first.errors is not None
    assert (first.errors.correctable, first.errors.fatal, first.power_state) == (12, 1, "D0")
    assert first.iommu_domain == "DMA-FQ"
    assert second.report is not None
    assert (second.name, second.report.power_cap_watts) == ("AMD INSTINCT MI210", 300.0)
    above = next(function for function in made.pci or () if function.address == "0000:00:02.0")
    assert above.port is not None
    assert above.port.link_active
    assert above.acs == ("SrcValid", "ReqRedir", "CmpltRedir", "UpstreamFwd")


def test_a_recording_replays(tmp_path: Path) -> None:
    recorder = RecordingHost(folder(tmp_path))
    live = machine(recorder)
    made = json.loads(dump(document(recorder)))
    check(machine(reading.parse_json("x.json", json.dumps(made).encode())), live)


@pytest.mark.parametrize("redact", [True, False])
def test_a_recording_holds_no_serial_number(tmp_path: Path, redact: bool) -> None:
    made = capture(folder(tmp_path), redact=redact)
    contents = [build.unpacked(content) for content in made["files"].values()]
    assert not any(b"PCB12345678" in content or registers.SERIAL in content for content in contents)
    assert WHOLE.replace(registers.SERIAL, bytes(8)) in contents


@pytest.mark.parametrize("shell", [["sh"], ["bash", "--posix"], ["busybox", "sh"]], ids=lambda argv: argv[0])
def test_the_script_takes_it_along(tmp_path: Path, shell: list[str]) -> None:
    if shutil.which(shell[0]) is None:
        pytest.skip(f"no {shell[0]}")
    host = folder(tmp_path / "machine")
    (tmp_path / "capture.sh").write_text(script_text())
    command = [*shell, "capture.sh", "--root", str(tmp_path / "machine"), "c.tar.gz"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    archive = tmp_path / "c.tar.gz"
    made = reading.from_archive(archive.name, archive.read_bytes())
    check(machine(made), machine(host))
    contents = [content for content in made._files.values() if isinstance(content, bytes)]
    assert not any(b"PCB12345678" in content or registers.SERIAL in content for content in contents)
