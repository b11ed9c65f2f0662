"""What the documents say is what the program does."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text("utf-8")


def script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def gpucheck(*arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "gpucheck", *arguments],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env={**os.environ, "COLUMNS": "100", "NO_COLOR": "1"},
    )
    return done.stdout


@pytest.mark.parametrize("path", list(script("generate").generated()), ids=lambda path: path.name)
def test_generated_files_are_fresh(path: Path) -> None:
    assert path.read_text("utf-8") == script("generate").generated()[path], "run make docs"


def test_the_first_answer_in_the_readme_is_real() -> None:
    block = re.search(r"```console\n\$ gpucheck (advise .*?)\n(.*?)```", README, re.DOTALL)
    assert block is not None
    shown = [line.rstrip() for line in block[2].splitlines() if line.strip() and "…" not in line]
    real = [line.rstrip() for line in gpucheck(*block[1].split()).splitlines()]
    assert len(shown) > 10
    for line in shown:
        assert line in real


def commands() -> list[list[str]]:
    """Every command of the program, found by walking the help pages."""
    found: list[list[str]] = []
    waiting: list[list[str]] = [[]]
    while waiting:
        words = waiting.pop()
        page = gpucheck(*words, "--help")
        listed = page.partition("Commands")[2] if "Commands" in page else ""
        names = re.findall(r"^│ ([a-z]+) ", listed, re.MULTILINE)
        waiting += [[*words, name] for name in names]
        if words and not names:
            found.append(words)
    return found


def test_every_command_is_in_the_readme_and_its_help_has_an_example() -> None:
    found = commands()
    assert len(found) >= 7
    for words in found:
        assert f"`gpucheck {words[0]}" in README
        assert words[-1] in README
        page = gpucheck(*words, "--help")
        assert f"Example: gpucheck {' '.join(words)}" in page
        assert "--lang" in page
        assert "--json" in page


def test_the_readme_names_every_exit_code() -> None:
    table = README.partition("## Exit codes")[2].partition("## Install")[0]
    assert re.findall(r"^\| (\d) \|", table, re.MULTILINE) == ["0", "1", "2", "3"]
