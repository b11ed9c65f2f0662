"""gpucheck check as a person and a CI job start it: exit codes, files, GitHub's output."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from junitparser import Error, Failure, JUnitXml

import gpucheck
from gpucheck.checking import CheckReport
from gpucheck.cli import run
from gpucheck.errors import UsageError
from gpucheck.render import github

TESTS = Path(__file__).resolve().parent.parent
ROOT = TESTS.parent
MACHINES = TESTS / "machines"
HEALTHY, BROKEN, HUNG, HOSTILE = (
    str(MACHINES / name / "capture.json")
    for name in ("r730-two-p40", "r730-fell-off-bus", "r730-nvml-timeout", "hostile-strings")
)
REDUNDANT = "[power]\nredundancy = true\n"


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No policy lies in the current folder, and no CI around the tests is written to."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)


def document(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, Any]]:
    code = run(["check", *arguments, "--json"])
    out, err = capsys.readouterr()
    assert err == ""
    made = json.loads(out)
    assert isinstance(made, dict)
    return code, made


def started(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "gpucheck", "check", *arguments],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        env={**os.environ, "COLUMNS": "200", **environment},
    )


# --- exit codes and the document ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "code", "verdict"),
    [
        (["--from", HEALTHY], 0, "pass"),
        (["--from", HEALTHY, "--expect-gpus", "3"], 1, "fail"),
        (["--from", BROKEN], 1, "fail"),
        (["--from", HUNG], 3, "unknown"),
        (["--from", HEALTHY, "--policy", "nowhere.toml"], 2, "error"),
        (["--from", "nowhere.json"], 2, "error"),
        (["--from", HEALTHY, "--junit", "nowhere/x.xml"], 2, "error"),
        (["--from", HEALTHY, "--force"], 2, "error"),
        (["--from", HEALTHY, "--junit", "x", "--prometheus", "./x"], 2, "error"),
    ],
)
def test_exit_codes(capsys: pytest.CaptureFixture[str], arguments: list[str], code: int, verdict: str) -> None:
    got, made = document(capsys, *arguments)
    assert (got, made["verdict"]) == (code, verdict)
    assert made.get("exit_code", 2) == code


@pytest.mark.parametrize("source", [HEALTHY, BROKEN, HUNG, HOSTILE])
def test_the_document_follows_its_schema(capsys: pytest.CaptureFixture[str], source: str) -> None:
    _, made = document(capsys, "--from", source)
    assert list(made)[:7] == ["schema", "gpucheck", "time", "headline", "verdict", "exit_code", "policy"]
    assert set(made) >= {"checks", "probe", "smoke", "advice", "attempts"}
    assert made["schema"] == "gpucheck/check/1"
    assert made["probe"]["schema"] == "gpucheck/probe/1"
    assert made["smoke"] is None
    schema = CheckReport.model_json_schema(by_alias=True, mode="serialization")
    jsonschema.Draft202012Validator(schema).validate(made)
    CheckReport.model_validate(made)


def test_a_policy_in_the_current_folder_is_taken(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "gpucheck.toml").write_text("gpus.count = 3\n")
    code, made = document(capsys, "--from", HEALTHY)
    assert (code, made["policy_file"], made["policy"]["gpus"]["count"]) == (1, "gpucheck.toml", 3)
    (tmp_path / "gpucheck.toml").write_text("gpus.cuont = 3\n")
    assert run(["check", "--from", HEALTHY]) == 2
    assert capsys.readouterr().err == "gpucheck: gpucheck.toml: gpus.cuont: no such key (did you mean count?)\n"


def test_a_policy_that_points_nowhere_is_not_passed_over(tmp_path: Path) -> None:
    (tmp_path / "gpucheck.toml").symlink_to("nowhere.toml")
    assert run(["check", "--from", HEALTHY]) == 2


@pytest.mark.parametrize(("source", "code"), [(HEALTHY, 2), (BROKEN, 1), (HUNG, 3)])
def test_a_file_that_can_no_longer_be_written_does_not_hide_the_verdict(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, source: str, code: int
) -> None:
    def full(path: str, _: str) -> None:
        raise UsageError("it cannot be written: No space left on device", input=path)

    monkeypatch.setattr("gpucheck.output.replace_file", full)
    assert run(["check", "--from", source, "--junit", "x.xml", "--prometheus", "x.prom"]) == code
    out, err = capsys.readouterr()
    assert "PowerEdge R730" in out
    assert err.splitlines() == [f"gpucheck: x.{end}: it cannot be written: No space left on device"
                                for end in ("xml", "prom")]  # fmt: skip


def test_init_on_a_machine_without_a_card_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["check", "--init", "--from", str(MACHINES / "bmc-only" / "capture.json")]) == 0
    assert "It asks for no GPU, because none that can be used was found." in capsys.readouterr().out


def test_init_writes_what_the_machine_meets_and_overwrites_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["check", "--init", "--from", HEALTHY]) == 0
    text = (tmp_path / "gpucheck.toml").read_text()
    assert 'addresses = ["0000:04:00.0", "0000:82:00.0"]' in text
    assert (tmp_path / "gpucheck.toml").stat().st_mode & 0o777 == 0o666 & ~_umask()
    assert run(["check", "--from", HEALTHY]) == 0
    assert run(["check", "--from", BROKEN]) == 1
    capsys.readouterr()
    assert run(["check", "--init", "--from", BROKEN]) == 2
    assert "gpucheck.toml: it is there already" in capsys.readouterr().err
    assert (tmp_path / "gpucheck.toml").read_text() == text
    assert run(["check", "--init", "--force", "--from", BROKEN, "--policy", "gpucheck.toml"]) == 0
    assert "count = 1\n# not counted, because it cannot be used now: " in (tmp_path / "gpucheck.toml").read_text()
    assert run(["check", "--init", "--from", HOSTILE, "--policy", "hostile.toml"]) == 0
    assert run(["check", "--from", HOSTILE, "--policy", "hostile.toml"]) == 1  # a card of it fell off the bus
    os.symlink(tmp_path / "elsewhere", tmp_path / "link.toml")
    assert run(["check", "--init", "--from", HEALTHY, "--policy", "link.toml"]) == 2
    (tmp_path / "empty" / "proc").mkdir(parents=True)
    assert run(["check", "--init", "--from", "empty", "--policy", "none.toml"]) == 3
    assert not (tmp_path / "none.toml").exists()


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_text_and_markdown_say_what_and_what_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["check", "--from", BROKEN]) == 1
    text = capsys.readouterr().out
    assert text.startswith("fail  Dell Inc. PowerEdge R730 fails: ")
    assert "Drain this machine" in text
    assert "gpu-fell-off-bus" in text
    assert run(["check", "--from", BROKEN, "--markdown"]) == 1
    page = capsys.readouterr().out
    assert page.startswith("**fail**: ")
    assert "### error: GC103 gpu-fell-off-bus" in page


def test_the_library_does_the_same() -> None:
    report = gpucheck.check(None, [HEALTHY], expect_gpus=2)
    assert (report.verdict, report.exit_code) == ("pass", 0)


def test_only_check_imports_what_it_needs() -> None:
    code = (
        "import sys; from gpucheck.cli import run; run(['probe', '--from', sys.argv[1]]);"
        "print([name for name in sys.modules if name.startswith(('gpucheck.commands', 'gpucheck.policy',"
        " 'junitparser', 'prometheus'))])"
    )
    done = subprocess.run([sys.executable, "-c", code, HEALTHY], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.splitlines()[-1] == "[]"


# --- this machine -------------------------------------------------------------------------------


def test_this_machine_without_a_card_fails_unless_the_policy_allows_it(tmp_path: Path) -> None:
    if gpucheck.probe().machine.gpus:
        pytest.skip("this machine has GPUs")
    done = started("--json")
    made = json.loads(done.stdout)
    assert (done.returncode, made["verdict"], made["smoke"]) == (1, "fail", None)
    assert [row["outcome"] for row in made["checks"] if row["topic"] == "training"] == ["fail"]
    (tmp_path / "gpucheck.toml").write_text("gpus.count = 0\n")
    assert started("--no-smoke").returncode == 0


@pytest.mark.skipif(find_spec("tensorflow") is None, reason="needs the extra [smoke]")
def test_a_training_on_processors_is_told_to_prove_no_gpu(tmp_path: Path) -> None:
    policy = 'gpus.count = 0\nsmoke.devices = "cpu:2"\nsmoke.steps = 2\n'
    if gpucheck.probe(expect_gpus=0).verdict != "ok":
        pytest.skip("this machine has a problem of its own")
    (tmp_path / "gpucheck.toml").write_text(policy)
    done = started("--json", "--junit", "j.xml", "--prometheus", "m.prom")
    made = json.loads(done.stdout)
    assert (done.returncode, made["verdict"]) == (0, "pass"), made["headline"]
    assert made["smoke"]["schema"] == "gpucheck/smoke/1"
    assert "proves no GPU" in made["headline"]
    metrics = (tmp_path / "m.prom").read_text()
    assert "gpucheck_training_proves_gpus 0.0" in metrics
    assert len(re.findall(r"^gpucheck_training_used\{", metrics, re.MULTILINE)) == 2


# --- JUnit --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "policy", "failures", "errors"),
    [
        (HEALTHY, "", 0, 0),
        (HEALTHY, REDUNDANT, 0, 1),
        (BROKEN, "gpus.count = 2\n" + REDUNDANT, 2, 1),
        (HUNG, "", 0, 2),
        (HOSTILE, "gpus.count = 2\n", 2, 0),
    ],
)
def test_junit_is_read_back(tmp_path: Path, source: str, policy: str, failures: int, errors: int) -> None:
    (tmp_path / "gpucheck.toml").write_text(policy)
    run(["check", "--from", source, "--junit", "report.xml"])
    whole = JUnitXml.fromfile(str(tmp_path / "report.xml"))
    (suite,) = list(whole)
    assert (suite.name, suite.failures, suite.errors, suite.skipped) == ("gpucheck check", failures, errors, 0)
    assert (whole.failures, whole.errors, whole.tests) == (failures, errors, suite.tests)
    results = [(case, result) for case in suite for result in case.result]
    assert sum(isinstance(result, Failure) for _, result in results) == failures
    assert sum(isinstance(result, Error) for _, result in results) == errors
    for case, result in results:
        assert case.classname == "gpucheck.check"
        assert result.message
    if source == BROKEN:
        told = [result for _, result in results if result.type == "gpu-fell-off-bus"]
        assert "Configuration space reads all ones" in told[0].text
        assert "gpucheck explain gpu-fell-off-bus" in told[0].text


def test_junit_holds_every_try(tmp_path: Path) -> None:
    (tmp_path / "gpucheck.toml").write_text("[retry]\ntimes = 1\nwait_seconds = 0\n")
    run(["check", "--from", HUNG, "--junit", "report.xml"])
    (suite,) = list(JUnitXml.fromfile(str(tmp_path / "report.xml")))
    assert next(iter(suite)).name == "try 1"


def test_letters_that_xml_cannot_hold(tmp_path: Path) -> None:
    capture = json.loads(Path(HEALTHY).read_text())
    text = json.dumps(capture).replace("Tesla P40", "Tesla \\ufffe\\uffff<P40>")
    (tmp_path / "c.json").write_text(text)
    (tmp_path / "gpucheck.toml").write_text('[gpus]\naddresses = ["0000:82:00.0"]\n')
    assert run(["check", "--from", "c.json", "--junit", "report.xml"]) == 0
    assert "Tesla ??&lt;P40&gt; at 0000:82:00.0" in (tmp_path / "report.xml").read_text()
    assert list(JUnitXml.fromfile(str(tmp_path / "report.xml")))


# --- GitHub -------------------------------------------------------------------------------------

COMMAND = re.compile(r"^::(?P<level>error|warning|notice) title=(?P<title>[^:,\r\n]*)::(?P<data>.*)$")


def decoded(text: str) -> str:
    for code, letter in (("%2C", ","), ("%3A", ":"), ("%0A", "\n"), ("%0D", "\r"), ("%25", "%")):
        text = text.replace(code, letter)
    return text


def test_annotations_and_summary(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    summary = tmp_path / "summary.md"
    summary.write_text("# before\n")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    assert run(["check", "--from", BROKEN, "--github"]) == 1
    lines = capsys.readouterr().out.splitlines()
    token = lines[0].removeprefix("::stop-commands::")
    assert re.fullmatch(r"gpucheck-[0-9a-f]{32}", token)
    end = lines.index(f"::{token}::")
    told = [COMMAND.fullmatch(line) for line in lines[end + 1 :]]
    assert all(told)
    first = told[0]
    assert first is not None
    assert first["level"] == "error"
    assert decoded(first["title"]) == "gpucheck: gpu-fell-off-bus (0000:82:00.0)"
    assert "has fallen off the bus" in decoded(first["data"])
    page = summary.read_text()
    assert page.startswith("# before\n## gpucheck\n\n**fail**: ")


def test_what_hardware_says_starts_no_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "gpucheck.toml").write_text("link.gen = 4\n")
    text = Path(HEALTHY).read_text().replace("Tesla P40", "::add-mask::x ##[add-mask]y 100%0A::error::z,w:v")
    (tmp_path / "c.json").write_text(text)
    run(["check", "--from", "c.json", "--github"])
    lines = capsys.readouterr().out.splitlines()
    token = lines[0].removeprefix("::stop-commands::")
    assert "::add-mask::x" in "".join(lines)
    for line in lines[lines.index(f"::{token}::") + 1 :]:
        found = COMMAND.fullmatch(line)
        assert found is not None
        assert "%0A" not in found["data"].replace("%250A", "")
    assert github._annotation("error", "a:b,c%\n", "d:e,f%\r\n") == ("::error title=a%3Ab%2Cc%25%0A::d:e,f%25%0D%0A")


def test_with_json_annotations_leave_standard_output_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["check", "--from", BROKEN, "--github", "--json"]) == 1
    out, err = capsys.readouterr()
    assert json.loads(out)["verdict"] == "fail"
    assert err.startswith("::error title=")


def test_a_summary_that_cannot_be_written_does_not_hide_the_verdict(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", "/nowhere/summary.md")
    assert run(["check", "--from", BROKEN, "--github"]) == 1
    assert "the step summary cannot be written" in capsys.readouterr().err


def test_infrastructure_and_allowances_on_github(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "gpucheck.toml").write_text("[retry]\ntimes = 1\nwait_seconds = 0\n")
    assert run(["check", "--from", HUNG, "--github"]) == 3
    out = capsys.readouterr().out
    assert "::error title=gpucheck could not check%3A probe::" in out
    assert "::warning title=gpucheck%3A try 1 was not good::" in out
    (tmp_path / "gpucheck.toml").write_text(
        '[[allow]]\nfinding = "gpu-fell-off-bus"\nreason = "on order"\nuntil = 2999-12-31\n'
    )
    assert run(["check", "--from", BROKEN, "--github"]) == 0
    assert (
        "::notice title=gpucheck%3A allowed::Allowed until 2999-12-31 (on order): Tesla P40" in capsys.readouterr().out
    )
