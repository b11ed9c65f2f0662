"""The real ipmitool against the real IPMI simulator of OpenIPMI, on loopback."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpucheck.facts import Power, Psu
from gpucheck.host import LiveHost
from gpucheck.merging import merge
from gpucheck.readers import psu

PROGRAMS = ("ipmi_sim", "ipmitool")
MISSING = [name for name in PROGRAMS if shutil.which(name) is None]
pytestmark = pytest.mark.skipif(bool(MISSING), reason=f"not installed: {', '.join(MISSING)} (openipmi, ipmitool)")

LAN = """\
name "bmc"
set_working_mc 0x20
  startlan 1
    addr 127.0.0.1 {port}
    priv_limit admin
    allowed_auths_admin none md2 md5 straight
    guid a123456789abcdefa123456789abcdef
  endlan
  user 2 true "reader" "test" admin 10 none md2 md5 straight
"""


def octets(data: bytes) -> str:
    return " ".join(f"0x{byte:02x}" for byte in data)


def sensor(number: int, entity: tuple[int, int], kind: int, reading: int, states: int, name: str) -> list[str]:
    """Commands that add a discrete sensor with its record (type 2, compact)."""
    mask = states.to_bytes(2, "little")
    fields = bytes([0x20, 0, number, *entity, 0, 0x40, kind, reading, *mask, *mask, *mask, 0xC0, 0, 0, 1, *bytes(7)])
    text = name.encode()
    record = bytes([0, 0, 0x51, 2, len(fields) + 1 + len(text)]) + fields + bytes([0xC0 | len(text)]) + text
    bits = f"{states:015b}"
    return [
        f"sensor_add 0x20 0 {number} {kind} {reading}",
        f"main_sdr_add 0x20 {octets(record)}",
        f"sensor_set_event_support 0x20 0 {number} enable scanning per-state {bits} {bits} {bits} {bits}",
    ]


def inventory(number: int, name: str, *strings: str) -> list[str]:
    """Commands that add an inventory with a board area, and the record that names it (type 17)."""
    board = bytes([25, 0, 0, 0]) + b"".join(bytes([0xC0 | len(text)]) + text.encode() for text in strings) + b"\xc0\xc1"
    board += bytes(-(len(board) + 3) % 8)
    board = bytes([1, (len(board) + 3) // 8]) + board
    head = bytes([1, 0, 0, 1, 0, 0, 0])
    data = b"".join(area + bytes([-sum(area) & 0xFF]) for area in (head, board))
    fields = bytes([0x20, number, 0x80, 0, 0, 0x10, 0, 10, number, 0, 0xC0 | len(name)]) + name.encode()
    return [
        f"mc_add_fru_data 0x20 {number} {len(data)} data {octets(data)}",
        f"main_sdr_add 0x20 {octets(bytes([0, 0, 0x51, 0x11, len(fields)]) + fields)}",
    ]


PRESENCE, FAILURE, AC_LOST = 0, 1, 3
FULL, LOST = 0, 1


def emulation(first: int, redundancy: int, *second: int) -> str:
    """A BMC with two supplies: states of the second, and what it says of redundancy."""
    lines = ["mc_setbmc 0x20", "mc_add 0x20 0 no-device-sdrs 0x23 9 8 0x9f 0x1291 0xf02", "sel_enable 0x20 1000 0x0a"]
    for number in (1, 2):
        lines += sensor(number, (10, number), 0x08, 0x6F, 0b1011, f"PS{number} Status")
        lines += inventory(number, f"PS{number}", "ACME", "PWR SPLY,1100W,RDNT", f"S{number}", "0ABC")
    lines += sensor(3, (7, 1), 0x09, 0x0B, 0b11, "PS Redundancy")
    lines += ["mc_enable 0x20", f"sensor_set_bit 0x20 0 1 {first} 1 0", f"sensor_set_bit 0x20 0 3 {redundancy} 1 0"]
    lines += [f"sensor_set_bit 0x20 0 2 {state} 1 1" for state in second]
    return "\n".join(lines) + "\n"


@pytest.fixture
def bmc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[LiveHost]:
    """This machine, whose ipmitool reaches the simulator instead of a BMC of its own."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    (tmp_path / "lan.conf").write_text(LAN.format(port=port))
    (tmp_path / "bmc.emu").write_text(request.param)
    (tmp_path / "bin").mkdir()
    wrapper = tmp_path / "bin" / "ipmitool"
    real = shutil.which("ipmitool")
    wrapper.write_text(f'#!/bin/sh\nexec {real} -I lan -H 127.0.0.1 -p {port} -U reader -P test "$@"\n')
    wrapper.chmod(0o755)
    words = ["ipmi_sim", "-c", "lan.conf", "-f", "bmc.emu", "-s", str(tmp_path), "-n"]
    with subprocess.Popen(words, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as simulator:
        try:
            monkeypatch.setenv("PATH", f"{wrapper.parent}{os.pathsep}{os.environ['PATH']}")
            for _ in range(50):
                assert simulator.poll() is None, "the simulator has ended"
                asked = subprocess.run([wrapper, "mc", "info"], capture_output=True, check=False, timeout=30)
                if asked.returncode == 0:
                    break
                time.sleep(0.1)
            yield LiveHost()
        finally:
            simulator.terminate()


UNIT = {"model": "PWR SPLY,1100W,RDNT", "part": "0ABC", "manufacturer": "ACME", "watts": 1100, "present": True}


@pytest.mark.parametrize("bmc", [emulation(PRESENCE, LOST, PRESENCE, AC_LOST)], indirect=True)
def test_a_unit_without_mains(bmc: LiveHost) -> None:
    units, state = psu.read(bmc, ask_ipmi=True), psu.read_state(bmc)
    assert [(unit.location, unit.watts) for unit in units.psus or ()] == [("PS1", 1100), ("PS2", 1100)]
    assert state.power == Power(redundancy="lost", redundancy_text="PS Redundancy: Redundancy Lost")
    assert [event.split(" | ")[-2:] for event in state.bmc_events or ()] == [
        ["Presence detected", "Asserted"],
        ["Power Supply AC lost", "Asserted"],
    ]
    assert merge([units, state]).psus == (Psu(location="PS1", **UNIT), Psu(location="PS2", plugged=False, **UNIT))


@pytest.mark.parametrize("bmc", [emulation(PRESENCE, LOST, PRESENCE, FAILURE)], indirect=True)
def test_a_unit_that_failed(bmc: LiveHost) -> None:
    assert psu.read_state(bmc).psus == (
        Psu(location="Power Supply 1", present=True),
        Psu(location="Power Supply 2", present=True, failed=True),
    )


@pytest.mark.parametrize("bmc", [emulation(PRESENCE, FULL, PRESENCE)], indirect=True)
def test_all_is_well(bmc: LiveHost) -> None:
    state = psu.read_state(bmc)
    assert state.power is not None
    assert state.power.redundancy == "full"
    assert [(unit.present, unit.plugged, unit.failed) for unit in state.psus or ()] == [(True, None, None)] * 2
