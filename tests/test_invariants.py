"""Rules of the house that no single module's test can hold: what loads what, who may start a process,
which calls NVML gets, and what the tree may not say."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpucheck.findings import CODES
from gpucheck.rules import module_name

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "gpucheck"
MODULES = {path.relative_to(PACKAGE).as_posix(): path for path in PACKAGE.rglob("*.py")}
HEALTHY = str(ROOT / "tests" / "machines" / "r730-two-p40" / "capture.json")

HEAVY = {"typer", "rich", "pynvml", "psutil", "tensorflow", "numpy", "pydantic"}


# --- what a command loads -----------------------------------------------------------------------

_LOADED = """
import json, sys
{code}
print(json.dumps(sorted({{name.partition(".")[0] for name in sys.modules}})), file=sys.stderr)
"""
_COMMAND = """
sys.argv = ["gpucheck", *{arguments!r}]
from gpucheck.__main__ import main
try:
    main()
except SystemExit:
    pass
"""


def loaded(code: str) -> set[str]:
    """Packages that a fresh interpreter has loaded after that code."""
    command = [sys.executable, "-c", _LOADED.format(code=code)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True, cwd=ROOT)
    names: list[str] = json.loads(done.stderr.splitlines()[-1])
    return set(names)


def loaded_by(*arguments: str) -> set[str]:
    return loaded(_COMMAND.format(arguments=arguments))


def test_importing_the_package_loads_nothing() -> None:
    assert loaded("import gpucheck; gpucheck.__version__").isdisjoint({*HEAVY, "argparse", "subprocess"})


def test_the_version_costs_nothing() -> None:
    assert loaded_by("--version").isdisjoint({*HEAVY, "subprocess"})


@pytest.mark.parametrize(
    "arguments",
    [
        ("probe", "--json"),
        ("probe", "--from", HEALTHY, "--json"),
        ("advise", "--model", "R730", "--gpu", "P40", "--count", "2", "--json"),
        ("explain", "GC601", "--json"),
        ("catalog", "list", "--json"),
    ],
    ids=lambda arguments: arguments[0],
)
def test_json_needs_neither_tensorflow_nor_a_renderer(arguments: tuple[str, ...]) -> None:
    assert loaded_by(*arguments).isdisjoint({"tensorflow", "numpy", "pynvml", "psutil", "rich"})


@pytest.mark.parametrize("command", ["probe", "advise", "smoke", "explain", "catalog"])
def test_help_never_loads_tensorflow(command: str) -> None:
    assert loaded_by(command, "--help").isdisjoint({"tensorflow", "numpy", "pynvml", "psutil"})


# --- who may do what ----------------------------------------------------------------------------


def imports(path: Path) -> Iterator[str]:
    """Top packages that a module imports, anywhere in it."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield node.module.partition(".")[0]


def importers(package: str) -> set[str]:
    return {name for name, path in MODULES.items() if package in imports(path)}


def test_tensorflow_stays_in_the_worker() -> None:
    assert importers("tensorflow") == {"smoke/worker.py"}


def test_processes_are_started_in_four_places() -> None:
    assert importers("subprocess") <= {"host.py", "readers/nvml.py", "smoke/run.py", "fleet/slurm.py"}
    assert importers("multiprocessing") == {"fleet/report.py"}
    # A training over several hosts connects to its peers; the others ask for this machine's name.
    assert importers("socket") <= {"smoke/peers.py", "smoke/hosts.py", "checking.py", "fleet/collect.py"}
    assert importers("urllib") == importers("httpx") == {"redfish.py"}  # asked of a BMC on request, and of nobody else


def test_pynvml_is_loaded_in_the_child_alone() -> None:
    assert importers("pynvml") == {"readers/nvml_child.py"}


@pytest.mark.parametrize("name", MODULES)
def test_nothing_goes_through_a_shell_or_runs_text(name: str) -> None:
    for node in ast.walk(ast.parse(MODULES[name].read_text("utf-8"))):
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            assert called not in ("os.system", "os.popen", "eval", "exec", "pickle.loads"), called
            assert not any(keyword.arg == "shell" for keyword in node.keywords), called


@pytest.mark.parametrize("room", ["rules", "fit", "render"])
def test_rooms_that_judge_or_print_read_no_files(room: str) -> None:
    for name, path in MODULES.items():
        if name.startswith(f"{room}/"):
            assert "open(" not in re.sub(r"os\.open\(os\.devnull", "", path.read_text("utf-8")), name
            assert {"subprocess", "socket", "shutil"}.isdisjoint(imports(path)), name


def modules_imported(path: Path) -> set[str]:
    """Modules of the package that a module imports, anywhere in it but for the type checker alone."""
    found: set[str] = set()
    for node in _at_run_time(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return {name.removeprefix("gpucheck.") for name in found if name.startswith("gpucheck.")}


def _at_run_time(node: ast.AST) -> Iterator[ast.AST]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING":
            continue
        yield child
        yield from _at_run_time(child)


_READ = {"host", "readers", "dumps", "capture", "recording", "sources", "redfish"}
_JOIN = {"merging", "assemble", "probing"}
_JUDGE = {"rules", "fit"}
_SPEAK = {"render", "cli", "commands"}
_NOT_FOR = {
    "readers": {*_JOIN, *_JUDGE, *_SPEAK, "dumps"},
    "dumps": {*_JOIN, *_JUDGE, *_SPEAK},
    "rules": {*_READ, *_JOIN, *_SPEAK, "fit"},
    "fit": {*_READ, *_JOIN, *_SPEAK, "rules"},
}
_DOORS = {"fit/ask.py": {"assemble", "probing"}}
"""Where a question comes in: it has the machine read that it is about."""


@pytest.mark.parametrize("room", _NOT_FOR)
def test_facts_flow_one_way(room: str) -> None:
    """Host, readers, parts, assemble, machine, rules, findings, render: nobody reaches back or ahead."""
    wrong = {
        (name, other)
        for name, path in MODULES.items()
        if name.startswith(f"{room}/")
        for other in modules_imported(path)
        if other.partition(".")[0] in _NOT_FOR[room] - _DOORS.get(name, set())
    }
    assert wrong == set()


def test_nvml_is_only_read() -> None:
    """Nothing that sets, resets or clears is even named."""
    reads = re.compile(r"nvml(?:DeviceGet\w+|SystemGet\w+|Init\w*|Shutdown|EventSet\w*|Return_t)")
    named = {
        (name, word)
        for name, path in MODULES.items()
        for word in re.findall(r"\bnvml[A-Z]\w*", path.read_text("utf-8"))
    }
    assert len(named) > 20
    assert {(name, word) for name, word in named if not reads.fullmatch(word)} == set()


# --- the registry of findings -------------------------------------------------------------------


def test_every_code_has_its_module_and_every_module_its_code() -> None:
    wanted = {f"{module_name(name).removeprefix('gpucheck.').replace('.', '/')}.py" for name in CODES}
    there = {name for name in MODULES if name.startswith("rules/") and not name.startswith("rules/_")}
    assert there == wanted


def test_codes_and_names_are_well_formed_and_unique() -> None:
    codes = [code.code for code in CODES.values()]
    assert len(set(codes)) == len(codes)
    assert all(re.fullmatch(r"GC[1-9]\d\d", code) for code in codes)
    assert all(re.fullmatch(r"[a-z0-9]+(?:-[a-z0-9]+)*", name) for name in CODES)


# --- what the tree may not say ------------------------------------------------------------------

_PRIVATE = re.compile(
    r"(?<![\w./-])/w[o]rk/|(?<![\w./-])/home/\w|(?<![\w./-])/Users/\w|\bshared/(?:machines|facts|cases|hooks|sketches)"
    r"|\bpypi[.]org|pythonhosted[.]org|\bregistry[.]npmjs|\bconda\.anaconda\.org|\bdocker\.io|\bghcr\.io"
)
_HOLDS_PATHS = (Path(__file__).resolve(), ROOT / "tests" / "secretive.py", ROOT / "tests" / "test_redact.py")
"""Their home folders are invented: the redaction is tested on them."""
_TEXT = {".py", ".md", ".toml", ".json", ".txt", ".c", ".sh", ""}


def _texts() -> Iterator[Path]:
    for folder in ("catalog", "docs", "gpucheck", "scripts", "tests", ".ci"):
        for path in (ROOT / folder).rglob("*"):
            hidden = any(part in ("__pycache__", "build") for part in path.parts)
            if path.is_file() and path.suffix in _TEXT and not hidden and path not in _HOLDS_PATHS:
                yield path
    yield from (path for path in ROOT.glob("*") if path.is_file() and path.suffix in _TEXT)


def test_no_private_paths_and_no_registry_in_the_tree() -> None:
    found = [
        f"{path.relative_to(ROOT)}: {match[0]}"
        for path in _texts()
        for match in _PRIVATE.finditer(path.read_text("utf-8", "replace"))
    ]
    assert found == []


@pytest.mark.parametrize(
    "text",
    ["see /wor" + "k/main", "in /home/me", "../shared/machines/dmi", "https://pypi" + ".org/simple", "ghcr.io/x"],
)
def test_the_pattern_finds_what_it_should(text: str) -> None:
    assert _PRIVATE.search(text)
