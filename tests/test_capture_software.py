"""Environment and Python in captures: recorded as they are read, replayed the same, and without names."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from machines import build
from machines.golden import MACHINES
from readers.test_software import CUDA
from test_capture_script import INSTALLED, SHELLS, run, script

from gpucheck import capture as reading
from gpucheck.assemble import assemble
from gpucheck.capture import CaptureHost
from gpucheck.catalog import load
from gpucheck.errors import InputError
from gpucheck.facts import Machine
from gpucheck.host import Host, LiveHost
from gpucheck.packages import BUILD_INFO
from gpucheck.probing import read
from gpucheck.recording import RecordingHost, capture, document, dump
from gpucheck.redact import redact

__all__ = ["script"]
Document = dict[str, Any]

PERSON = "/" + "home/alice"
HOME = f"{PERSON}/venv/lib/python3.11/site-packages"
UUID = "GPU-5e1f0c2a-77aa-4b1d-9c3e-2f60b1a4d7c8"


def furnished() -> Document:
    """Two P40s, and a person's Python with TensorFlow."""
    made = MACHINES["r730-two-p40"]().capture()
    names = ("tensorflow-2.21.0.dist-info", "nvidia_cudnn_cu12-9.28.0.42.dist-info", "secret_project-1.0.dist-info")
    made["files"] |= {f"{HOME}/{name}/METADATA": "" for name in names}
    made["files"] |= {
        f"{HOME}/{BUILD_INFO}": CUDA,
        "/etc/ld.so.cache": "libcudart.so.12\0/usr/lib/libcudart.so.12\0libsecret.so.1\0",
        "/scratch/alice/cuda/libcufft.so.11": "",
        "/scratch/alice/cuda/thesis.txt": "",
    }
    made["nvml"]["calls"] = [
        call | {"value": UUID} if call["call"] == "nvmlDeviceGetUUID" and call["device"] == 0 else call
        for call in made["nvml"]["calls"]
    ]
    made["environment"] = {
        "CUDA_VISIBLE_DEVICES": "GPU-5e1f",
        "LD_LIBRARY_PATH": "/scratch/alice/cuda",
        "PATH": f"{PERSON}/bin",
    }
    made["python"] = {"version": "3.11.7", "folders": [HOME]}
    return made


def host(made: Document) -> CaptureHost:
    return reading.parse_json("x.json", json.dumps(made).encode())


def machine(host: Host) -> Machine:
    return assemble(read(host), load())


def recorded(made: Document) -> tuple[Machine, Document]:
    recorder = RecordingHost(host(made))
    seen = machine(recorder)
    written: Document = json.loads(dump(document(recorder)))
    return seen, written


def test_it_replays() -> None:
    seen, written = recorded(furnished())
    again = machine(host(written))
    assert (again.software, again.environment) == (seen.software, seen.environment)
    assert seen.software is not None
    assert seen.software.version("tensorflow") == "2.21.0"
    assert seen.software.build is not None
    assert seen.software.libraries == ("libcudart.so.12", "libcufft.so.11")
    assert seen.environment is not None
    assert seen.environment.variables is not None
    assert sorted(seen.environment.variables) == ["CUDA_VISIBLE_DEVICES", "LD_LIBRARY_PATH"]


def test_no_more_than_it_takes() -> None:
    _, written = recorded(furnished())
    text = json.dumps(written)
    for word in ("secret_project", "libsecret", "thesis", f"{PERSON}/bin"):
        assert word not in text, word
    assert written["python"] == {"version": "3.11.7", "folders": [HOME]}


def test_a_redacted_one_replays_without_names() -> None:
    seen = machine(host(furnished()))
    made = capture(host(furnished()))
    text = json.dumps(made)
    assert "alice" not in text
    assert "GPU-5e1f" not in text
    again = machine(host(made))
    assert again.software is not None
    assert seen.software is not None
    assert (again.software.packages, again.software.build) == (seen.software.packages, seen.software.build)
    assert again.software.libraries == seen.software.libraries
    # The beginning of a UUID still means the card that it meant.
    assert again.environment is not None
    assert again.gpus is not None
    assert again.gpus[0].nvml is not None
    assert again.environment.get("CUDA_VISIBLE_DEVICES") == again.gpus[0].nvml.uuid
    assert redact(made) == made


def test_this_machine() -> None:
    made = capture(LiveHost(), redact=False)
    assert made["python"]["version"] == sys.version.partition(" ")[0]
    assert isinstance(made["environment"], dict)


@pytest.mark.parametrize(
    "part",
    [
        {"environment": []},
        {"environment": {"A": 1}},
        {"python": "3.11"},
        {"python": {"version": 3, "folders": []}},
        {"python": {"version": "3", "folders": ["relative"]}},
        {"python": {"version": "3", "folders": ["/x/../etc"]}},
    ],
)
def test_a_damaged_one_is_refused(part: Document) -> None:
    with pytest.raises(InputError, match="damaged"):
        host({"schema": reading.SCHEMA, **part})


# --- capture.sh ---------------------------------------------------------------------------------


@pytest.mark.parametrize("shell", [SHELLS[name] for name in INSTALLED], ids=INSTALLED)
def test_the_script_finds_it_too(shell: list[str], script: Path) -> None:
    home = script.parent / "home" / "alice"
    packages = home / "venv" / "lib" / "python3.11" / "site-packages"
    for name in ("tensorflow-2.21.0.dist-info", "nvidia_cudnn_cu12-9.28.0.42.dist-info", "numpy-2.0.dist-info"):
        (packages / name).mkdir(parents=True)
    (packages / BUILD_INFO).parent.mkdir(parents=True)
    (packages / BUILD_INFO).write_text(CUDA)
    (home / "cuda").mkdir()
    (home / "cuda" / "libcufft.so.11.0.12").touch()
    done = run(
        script,
        "c.tar.gz",
        shell=shell,
        VIRTUAL_ENV=str(home / "venv"),
        LD_LIBRARY_PATH=f"{home}/cuda:/nonexistent",
        CUDA_VISIBLE_DEVICES="0,GPU-5e1f0c2a",
        TF_CONFIG="{}",
        TF_VAR_password="hush",
    )
    assert done.returncode == 0, done.stderr
    data = (script.parent / "c.tar.gz").read_bytes()
    seen = machine(reading.from_archive("c.tar.gz", data))
    assert seen.software is not None
    assert [(p.name, p.version) for p in seen.software.packages or ()] == [
        ("nvidia-cudnn-cu12", "9.28.0.42"),
        ("tensorflow", "2.21.0"),
    ]
    assert seen.software.build is not None
    assert seen.software.build.cuda_version == "12.5.1"
    assert "libcufft.so.11.0.12" in (seen.software.libraries or ())
    assert seen.environment is not None
    assert seen.environment.get("CUDA_VISIBLE_DEVICES") == "0,GPU-00000000-0000-0000-0000-000000000000"
    assert seen.environment.get("TF_CONFIG") == "set"
    import gzip

    unpacked = gzip.decompress(data)
    assert b"home/alice" not in unpacked
    assert b"hush" not in unpacked
    assert b"5e1f0c2a" not in unpacked


def test_the_script_finds_what_the_readers_find(script: Path) -> None:
    """The same libraries of the loader's cache as on the live machine."""
    if shutil.which("ldconfig") is None and not Path("/sbin/ldconfig").exists():
        pytest.skip("no cache of the loader")
    done = run(script, "c.tar.gz", VIRTUAL_ENV=sys.prefix, LD_LIBRARY_PATH="")
    assert done.returncode == 0, done.stderr
    seen = machine(reading.from_archive("c.tar.gz", (script.parent / "c.tar.gz").read_bytes()))
    live = machine(LiveHost())
    assert seen.software is not None
    assert live.software is not None
    assert (seen.software.packages, seen.software.build) == (live.software.packages, live.software.build)
    assert seen.software.libraries == live.software.libraries


def test_another_root_is_no_process(script: Path) -> None:
    root = build.as_tree(furnished(), script.parent / "machine")
    done = run(script, "--root", root, "c.tar.gz", CUDA_VISIBLE_DEVICES="0")
    assert done.returncode == 0, done.stderr
    seen = machine(reading.from_archive("c.tar.gz", (script.parent / "c.tar.gz").read_bytes()))
    assert seen.software is None
    assert seen.environment is not None
    assert seen.environment.variables is None
