"""The command line's contract: exit codes, one JSON document, help, terminals and pipes."""

from __future__ import annotations

import importlib.util
import json
import os
import pty
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import jsonschema
import pytest

from gpucheck.cli import run
from gpucheck.findings import CODES

TESTS = Path(__file__).resolve().parent.parent
ROOT = TESTS.parent
HEALTHY = str(TESTS / "machines" / "r730-two-p40" / "capture.json")
BROKEN = str(TESTS / "machines" / "r730-fell-off-bus" / "capture.json")
WARNED = str(TESTS / "machines" / "r730-link-x8" / "capture.json")
HOSTILE = str(TESTS / "machines" / "hostile-strings" / "capture.json")

COMMANDS = (
    ["probe"],
    ["advise"],
    ["smoke"],
    ["explain"],
    ["capture"],
    ["catalog", "list"],
    ["catalog", "show"],
    ["catalog", "validate"],
    ["check"],
    ["fleet", "collect"],
    ["fleet", "report"],
)


@pytest.fixture(scope="module")
def generate() -> ModuleType:
    """scripts/generate.py, which makes the JSON Schemas."""
    spec = importlib.util.spec_from_file_location("generate", ROOT / "scripts" / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def gpucheck(*arguments: str, **how: Any) -> subprocess.CompletedProcess[str]:
    """The program as a person starts it, without colours or width of the terminal that runs the tests."""
    environment = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "NO_COLOR", "FORCE_COLOR")}
    environment |= how.pop("env", {})
    command = [sys.executable, "-m", "gpucheck", *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=120, env=environment, check=False, cwd=ROOT, **how
    )


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, Any]]:
    """Exit code and the one JSON document; nothing may be printed beside it."""
    code = run([*arguments, "--json"])
    out, err = capsys.readouterr()
    assert err == ""
    document = json.loads(out)
    assert isinstance(document, dict)
    return code, document


# --- exit codes ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "code", "verdict"),
    [
        (["probe", "--from", HEALTHY], 0, "ok"),
        (["probe", "--from", HEALTHY, "--expect-gpus", "2"], 0, "ok"),
        (["probe", "--from", HEALTHY, "--expect-gpus", "3"], 1, "problem"),
        (["probe", "--from", BROKEN], 1, "problem"),
        (["probe", "--from", WARNED], 0, "ok"),
        (["probe", "--from", WARNED, "--strict"], 1, "ok"),
        (["probe", "--from", HEALTHY, "--strict"], 0, "ok"),
        (["advise", "--model", "R730", "--gpu", "P40", "--count", "2"], 0, "fits-with-changes"),
        (["advise", "--model", "R730", "--gpu", "P40", "--count", "2", "--strict"], 1, "fits-with-changes"),
        (["advise", "--model", "R730", "--gpu", "P40", "--count", "9"], 1, "does-not-fit"),
    ],
)
def test_exit_codes(capsys: pytest.CaptureFixture[str], arguments: list[str], code: int, verdict: str) -> None:
    got, document = printed(capsys, *arguments)
    assert (got, document["verdict"], document["exit_code"]) == (code, verdict, code)


def test_a_machine_of_which_nothing_was_looked_at_is_unknown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "proc").mkdir()
    code, document = printed(capsys, "probe", "--from", str(tmp_path), "--expect-gpus", "1")
    assert (code, document["verdict"]) == (3, "unknown")
    assert document["counts"]["pci"] is document["counts"]["nvml"] is None
    assert document["machine"]["gpus"] is None


def test_a_host_without_a_gpu(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """No GPU, no SMBIOS, no rights, no driver: an answer all the same, and what was not read is told."""
    (tmp_path / "sys" / "bus" / "pci" / "devices").mkdir(parents=True)
    code, document = printed(capsys, "probe", "--from", str(tmp_path))
    assert (code, document["verdict"]) == (0, "ok")
    assert [(f["name"], f["severity"]) for f in document["findings"]] == [("no-gpu-found", "info")]
    assert document["counts"]["pci"] == 0
    assert document["counts"]["nvml"] is None
    machine = document["machine"]
    assert machine["slots"] is machine["psus"] is machine["cpu_sockets"] is machine["system"] is None
    assert {"slots", "psus", "cpu_sockets", "system", "kernel_log", "nvml"} <= {g["fact"] for g in machine["gaps"]}
    assert all(gap["how"] for gap in machine["gaps"])
    code, document = printed(capsys, "probe", "--from", str(tmp_path), "--expect-gpus", "1")
    assert (code, document["verdict"]) == (1, "problem")
    assert document["findings"][0]["name"] == "gpu-count-mismatch"


@pytest.mark.skipif(os.name != "posix" or os.geteuid() != 0, reason="only root can become nobody")
def test_this_machine_as_nobody() -> None:
    become = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--inh-caps=-all"]
    if shutil.which("setpriv") is None:
        pytest.skip("no setpriv")
    if subprocess.run([*become, sys.executable, "-c", "import pydantic"], check=False, cwd=ROOT).returncode:
        pytest.skip("nobody cannot run this Python")
    command = [*become, sys.executable, "-m", "gpucheck", "probe", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, cwd=ROOT)
    document = json.loads(done.stdout)
    assert done.stderr == ""
    assert done.returncode == document["exit_code"] != 2
    assert document["machine"]["gaps"]


# --- JSON ---------------------------------------------------------------------------------------

HEAD = {"schema", "gpucheck", "time", "headline", "verdict", "exit_code"}


@pytest.mark.parametrize(
    ("kind", "arguments"),
    [
        ("probe", ["probe", "--from", HEALTHY, "--expect-gpus", "3"]),
        ("probe", ["probe", "--from", HOSTILE]),
        ("probe", ["probe", "--from", str(TESTS / "machines" / "vm-four-v100" / "capture.json")]),
        ("advice", ["advise", "--model", "R730", "--gpu", "P40", "--count", "2"]),
        ("advice", ["advise", "--model", "4028GR", "--gpu", "P40:8"]),
        ("advice", ["advise", "--from", HEALTHY, "--gpu", "P40:2"]),
        ("advice", ["advise", "--gpu", "P40:2"]),
        ("error", ["probe", "--from", "/nonexistent"]),
    ],
)
def test_documents_follow_their_schema(
    capsys: pytest.CaptureFixture[str], generate: ModuleType, kind: str, arguments: list[str]
) -> None:
    _, document = printed(capsys, *arguments)
    assert document["schema"] == f"gpucheck/{kind}/1"
    assert set(document) >= HEAD
    schema = json.loads(generate.schema(kind, generate.DOCUMENTS[kind]))
    jsonschema.Draft202012Validator(schema).validate(document)
    document["surprise"] = 1
    assert not jsonschema.Draft202012Validator(schema).is_valid(document)


def test_keys_of_a_probe(capsys: pytest.CaptureFixture[str]) -> None:
    _, document = printed(capsys, "probe", "--from", BROKEN, "--expect-gpus", "2")
    assert set(document) >= HEAD | {"counts", "machine", "findings", "unchecked"}
    assert set(document["counts"]) >= {"pci", "device_files", "nvml", "tensorflow", "expected"}
    assert document["counts"]["expected"] == {"n": 2, "origin": "--expect-gpus"}
    machine = document["machine"]
    assert set(machine["system"]) >= {"vendor", "product", "board", "bios_version", "bios_date"}
    assert set(machine["cpu_sockets"][0]) >= {"designation", "populated", "model"}
    slot_keys = {"designation", "in_use", "lanes", "connector", "gen", "socket", "address"}
    assert set(machine["slots"][0]) >= slot_keys
    assert set(machine["psus"][0]) >= {"location", "model", "watts", "present", "plugged"}
    card = machine["gpus"][0]
    card_keys = {"address", "vendor", "name", "pci_id", "catalog_gpu", "driver", "numa_node", "socket", "slot"}
    assert set(card) >= card_keys | {"link", "bars", "nvml"}
    assert set(card["link"]) >= {"width", "max_width", "speed_gts", "max_speed_gts"}
    assert set(card["bars"][0]) >= {"index", "bytes", "assigned"}
    assert machine["topology"] == {
        "addresses": ["0000:04:00.0", "0000:82:00.0"],
        "matrix": [["X", "SYS"], ["SYS", "X"]],
    }
    assert set(machine["gaps"][0]) >= {"fact", "reason", "how"}
    assert set(machine) >= {"catalog_model", "memory_bytes"}
    finding = document["findings"][0]
    finding_keys = {"code", "name", "severity", "subject", "message", "evidence", "remedy", "next_test"}
    assert set(finding) >= finding_keys | {"confidence", "sources"}
    assert set(finding["evidence"][0]) == {"source", "text"}


def test_no_identity_leaves_the_machine(capsys: pytest.CaptureFixture[str]) -> None:
    """Neither serial numbers nor UUIDs of the system are printed."""
    for form in ([], ["--json"], ["--markdown"]):
        run(["probe", "--from", HEALTHY, *form])
        assert "MADEUP1" not in (out := capsys.readouterr().out)
        assert "4c4c4544" not in out.lower()


@pytest.mark.parametrize("arguments", [["catalog", "list"], ["catalog", "show", "R730"], ["explain", "GC601"]])
def test_other_commands_print_one_document(capsys: pytest.CaptureFixture[str], arguments: list[str]) -> None:
    code, document = printed(capsys, *arguments)
    assert code == 0
    assert document


def test_catalog_validate(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, document = printed(capsys, "catalog", "validate")
    assert (code, document["faults"], document["verdict"]) == (0, [], "ok")
    place = tmp_path / "gpus" / "mine" / "my-card.toml"
    place.parent.mkdir(parents=True)
    place.write_text('id = "my-card"\nname = "My card"\nnames = []\n')
    code = run(["catalog", "validate", "--catalog", str(tmp_path), "--json"])
    out, err = capsys.readouterr()
    assert code in (1, 2)
    assert "my-card" in out + err


def test_smoke_on_processors(generate: ModuleType) -> None:
    pytest.importorskip("tensorflow")
    done = gpucheck("smoke", "--devices", "cpu:2", "--steps", "2", "--json")
    document = json.loads(done.stdout)
    assert done.returncode == document["exit_code"] == 0, done.stderr
    assert document["proves_gpu"] is False
    jsonschema.validate(document, json.loads(generate.schema("smoke", generate.DOCUMENTS["smoke"])))


def test_smoke_takes_a_strategy_a_mode_and_a_split() -> None:
    pytest.importorskip("tensorflow")
    options = ("--strategy", "central", "--mode", "infer", "--split", "auto")
    done = gpucheck("smoke", "--devices", "cpu:2", "--steps", "2", *options, "--json")
    document = json.loads(done.stdout)
    assert (done.returncode, document["strategy"], document["mode"]) == (0, "central", "infer")
    assert document["split"]["kind"] == "auto"
    assert gpucheck("smoke", "--devices", "cpu:3", "--strategy", "hybrid").returncode == 2
    assert gpucheck("smoke", "--devices", "cpu:2", "--strategy", "model", "--split", "auto").returncode == 2


def test_smoke_looks_closer_and_tells_of_it_later(generate: ModuleType, tmp_path: Path) -> None:
    pytest.importorskip("tensorflow")
    state = {"XDG_STATE_HOME": str(tmp_path)}
    none = gpucheck("smoke", "--last", "--json", env=state)
    assert (none.returncode, json.loads(none.stdout)["verdict"]) == (3, "not-run")
    done = gpucheck("smoke", "--devices", "cpu:2", "--steps", "2", "--deep", "--soak", "0.01", "--json", env=state)
    document = json.loads(done.stdout)
    jsonschema.validate(document, json.loads(generate.schema("smoke", generate.DOCUMENTS["smoke"])))
    assert [one["outcome"] for one in document["isolation"]] == ["pass"] * 3
    assert document["soak"]["rounds"] >= 2
    last = gpucheck("smoke", "--last", "--json", env=state)
    assert (last.returncode, json.loads(last.stdout)["verdict"]) == (0, "pass")
    assert gpucheck("smoke", "--devices", "cpu:2", "--soak", "1", "--mode", "infer").returncode == 2
    assert gpucheck("smoke", "--last", "--expect-gpus", "1").returncode == 2


# --- help ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_help_has_an_example_of_that_very_command(command: list[str]) -> None:
    done = gpucheck(*command, "--help", env={"COLUMNS": "200", "TERM": "dumb"})
    assert (done.returncode, done.stderr) == (0, "")
    assert f"Example: gpucheck {' '.join(command)}" in done.stdout
    assert "--json" in done.stdout
    assert "--lang" in done.stdout


def test_every_command_is_in_the_list_above() -> None:
    import typer.main

    from gpucheck.cli import _load_commands, app

    _load_commands(["--help"])
    group = typer.main.get_command(app)
    names = []
    for name, command in group.commands.items():  # type: ignore[attr-defined]
        names += [[name, sub] for sub in command.commands] if hasattr(command, "commands") else [[name]]
    assert sorted(names) == sorted(COMMANDS)


def test_examples_in_the_help_are_understood(capsys: pytest.CaptureFixture[str]) -> None:
    """Each is run, apart from those that train, look at this machine or need a folder of captures."""
    from gpucheck import cli

    modules = sorted(Path(cli.__file__).parent.glob("commands/*.py"))
    text = "".join(path.read_text("utf-8") for path in (Path(cli.__file__), *modules))
    examples = re.findall(r'epilog="Example: gpucheck ([^"]+)"', text)
    assert len(examples) == len(COMMANDS)
    for example in examples:
        if not example.startswith(("probe", "smoke", "capture", "catalog validate", "check", "fleet")):
            assert run(example.split()) in (0, 1), example
    capsys.readouterr()


def test_no_command_prints_the_help() -> None:
    for arguments in ([], ["catalog"]):
        done = gpucheck(*arguments)
        assert done.returncode == 2
        assert "Usage: gpucheck" in done.stdout + done.stderr
        assert "gpucheck: " not in done.stderr


def test_version() -> None:
    from gpucheck import __version__

    for option in ("--version", "-V"):
        assert gpucheck(option).stdout == f"gpucheck {__version__}\n"


@pytest.mark.parametrize("command", [["probe", "--from", HEALTHY], ["explain", "GC601"], ["catalog", "list"]])
def test_language(capsys: pytest.CaptureFixture[str], command: list[str]) -> None:
    assert run([*command, "--lang", "en"]) == 0
    assert capsys.readouterr().out
    assert run([*command, "--lang", "tlh"]) == 2
    assert "'tlh' is not one of 'en'" in capsys.readouterr().err


# --- terminals and pipes ------------------------------------------------------------------------


def on_terminal(arguments: Sequence[str], **environment: str) -> str:
    """What a terminal gets."""
    ours, theirs = pty.openpty()
    variables = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "NO_COLOR", "FORCE_COLOR", "TERM")}
    variables |= {"TERM": "xterm-256color", "COLUMNS": "100", **environment}
    command = [sys.executable, "-m", "gpucheck", *arguments]
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=theirs, stderr=subprocess.DEVNULL, env=variables, cwd=ROOT
    )
    os.close(theirs)

    def pieces() -> Iterator[bytes]:
        try:
            while piece := os.read(ours, 1 << 16):
                yield piece
        except OSError:  # Linux says so when the other end is closed
            return

    text = b"".join(pieces()).decode()
    process.wait(30)
    os.close(ours)
    return text


def test_colours_on_a_terminal_alone() -> None:
    command = ["probe", "--from", BROKEN]
    assert "\x1b[" in on_terminal(command)
    assert "\x1b[" not in re.sub(r"\x1b\[[0-9;]*m", "", on_terminal(command))
    without = on_terminal(command, NO_COLOR="1")
    assert not re.search(r"\x1b\[[0-9;]*3[0-7]", without)
    assert "\x1b" not in gpucheck(*command).stdout


def test_hostile_strings_never_reach_a_terminal() -> None:
    shown = on_terminal(["probe", "--from", HOSTILE], NO_COLOR="1")
    assert set(re.findall(r"\x1b.{0,6}", re.sub(r"\x1b\[[0-9;]*m", "", shown))) == set()
    assert not re.search(r"[\x00-\x08\x0b\x0c\x0e-\x1a\x7f-\x9f\u202a-\u202e]", shown)


@pytest.mark.parametrize("columns", [40, 60, 100, 200])
@pytest.mark.parametrize("machine", ["sm-4028gr-tr-eight-p40", "r730-fell-off-bus", "hostile-strings"])
def test_the_width_is_kept_and_nothing_is_lost(machine: str, columns: int) -> None:
    source = str(TESTS / "machines" / machine / "capture.json")
    text = gpucheck("probe", "--from", source, env={"COLUMNS": str(columns)}).stdout
    assert max(map(len, text.splitlines())) <= columns
    assert not [line for line in text.splitlines() if line != line.rstrip()]
    document = json.loads(gpucheck("probe", "--from", source, "--json").stdout)
    dense = re.sub(r"\s", "", text)
    for finding in document["findings"]:
        assert f"{finding['code']}{finding['name']}" in dense
    for card in document["machine"]["gpus"]:
        assert text.count(card["address"]) >= 2  # among the cards, and in the matrix or its slot: on one line each


def test_a_reader_that_leaves_early_is_no_fault() -> None:
    """As in ``gpucheck | head -1``: no traceback, and no exit code that means something else."""
    for arguments in ([], ["--help"], ["probe", "--from", HEALTHY], ["probe", "--from", HEALTHY, "--json"]):
        ours, theirs = os.pipe()
        os.close(ours)
        command = [sys.executable, "-m", "gpucheck", *arguments]
        done = subprocess.run(command, stdout=theirs, stderr=subprocess.PIPE, timeout=60, check=False, cwd=ROOT)
        os.close(theirs)
        assert (done.returncode, done.stderr) == (141, b""), arguments


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
def test_a_full_disk_is_one_line() -> None:
    for form in ([], ["--json"]):
        with open("/dev/full", "w") as full:
            command = [sys.executable, "-m", "gpucheck", "probe", "--from", HEALTHY, *form]
            done = subprocess.run(
                command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, check=False, cwd=ROOT
            )
        assert done.returncode == 2
        assert done.stderr == "gpucheck: standard output cannot be written: No space left on device\n"


def test_a_closed_standard_output() -> None:
    script = 'exec "$0" -m gpucheck probe --from "$1" >&-'
    command = ["sh", "-c", script, sys.executable, HEALTHY]
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True, timeout=60, check=False, cwd=ROOT)
    assert (done.returncode, done.stderr) == (0, "")


# --- installation -------------------------------------------------------------------------------


@pytest.mark.parametrize("metadata", ["gpucheck-1.0.dist-info", "Gpucheck-0.3.egg-info"])
def test_another_package_of_that_name_is_named(tmp_path: Path, metadata: str) -> None:
    shutil.copytree(ROOT / "gpucheck", tmp_path / "gpucheck", ignore=shutil.ignore_patterns("__pycache__"))
    command = [sys.executable, "-m", "gpucheck", "--version"]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}

    def start() -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command, capture_output=True, text=True, timeout=60, env=environment, cwd=tmp_path, check=False
        )

    (tmp_path / "gpucheck_server-0.1.0.dist-info").mkdir()
    assert start().returncode == 0
    (tmp_path / metadata).mkdir()
    done = start()
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1
    assert str(tmp_path) in done.stderr
    assert "pip uninstall gpucheck gpucheck-server" in done.stderr


def test_every_code_can_be_explained(capsys: pytest.CaptureFixture[str]) -> None:
    for name, code in CODES.items():
        for word in (name, code.code, name.upper(), name.replace("-", "_")):
            assert run(["explain", word]) == 0
        assert name in capsys.readouterr().out
