"""Every key of a policy, met and unmet and not to be judged, on golden machines."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from machines.build import NvmlCard, nvml
from machines.golden import MACHINES, SLOT_4, SLOT_6, r730, two_p40
from rules.machines import gpu, machine, seen, view

from gpucheck.catalog import load
from gpucheck.checking import CheckReport, check, gres_count
from gpucheck.facts import Expected, Gpu, Machine, Power, Psu
from gpucheck.findings import Finding, finding
from gpucheck.gate import PolicyCheck, Situation, _redundancy, judge, named, works
from gpucheck.policy import parse
from gpucheck.policy_init import policy_text
from gpucheck.probing import judge as judge_machine
from gpucheck.probing import probe
from gpucheck.smoke.report import SmokeReport, Verdict

DAY = date(2026, 6, 1)
FOLDER = Path(__file__).resolve().parent.parent / "machines"


def judged(machine: str | Path, policy: str = "", **how: Any) -> CheckReport:
    """A golden machine by its name, or a capture file, by a policy's text."""
    source = machine if isinstance(machine, Path) else FOLDER / machine / "capture.json"
    return check([str(source)], policy=parse("p.toml", policy), today=DAY, **how)


def rows(report: CheckReport, topic: str) -> list[PolicyCheck]:
    return [row for row in report.checks if row.topic == topic]


def outcomes(report: CheckReport, topic: str) -> list[tuple[str, str, str | None]]:
    return [(row.outcome, row.subject, row.finding) for row in rows(report, topic)]


def captured(folder: Path, made: Any) -> Path:
    place = folder / "capture.json"
    place.write_text(json.dumps(made.capture()))
    return place


# --- how many cards -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("machine", "policy", "verdict", "gpus"),
    [
        ("r730-two-p40", "", "pass", "pass"),
        ("r730-two-p40", "gpus.count = 2", "pass", "pass"),
        ("r730-two-p40", "gpus.count = 3", "fail", "fail"),
        ("r730-fell-off-bus", "gpus.count = 2", "fail", "fail"),
        ("r730-fell-off-bus", "gpus.count = 1", "fail", "pass"),  # the card is an error all the same
        ("bmc-only", "", "fail", "fail"),  # a gate expects at least one
        ("bmc-only", "gpus.count = 0", "pass", "pass"),
        ("k80-one-card", "gpus.count = 2", "pass", "pass"),
        ("r730-nvml-timeout", "gpus.count = 2", "unknown", "unknown"),
        ("amd-one-mi100", "gpus.count = 1", "pass", "pass"),
        ("wsl-one-rtx-3060", "gpus.count = 1", "pass", "pass"),
    ],
)
def test_count(machine: str, policy: str, verdict: str, gpus: str) -> None:
    report = judged(machine, policy)
    assert report.verdict == verdict
    assert [row.outcome for row in rows(report, "gpus")] == [gpus]
    assert report.exit_code == {"pass": 0, "fail": 1, "unknown": 3}[verdict]


def test_an_option_beats_the_policy_and_a_number_stands_with_who_says_it() -> None:
    report = judged("r730-two-p40", "gpus.count = 8", expect_gpus=2)
    assert report.verdict == "pass"
    assert "GPUs expected: 2 (--expect-gpus)" in rows(report, "gpus")[0].message
    assert "(the policy: gpus.count)" in rows(judged("r730-two-p40", "gpus.count = 8"), "gpus")[0].message
    assert "(gpucheck check)" in rows(judged("r730-two-p40"), "gpus")[0].message


def test_a_machine_that_was_not_looked_at_is_unknown(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    report = check([str(tmp_path)], policy=parse("p.toml", "gpus.count = 1\n[gpus.models]\nP40 = 1"))
    assert report.verdict == "unknown"
    assert [row.outcome for row in report.checks] == ["unknown"] * 3
    assert report.advice is not None
    assert "another try gives the same" in report.advice


@pytest.mark.parametrize(
    ("machine", "name", "count", "outcome"),
    [
        ("r730-two-p40", "P40", 2, "pass"),
        ("r730-two-p40", "nvidia-tesla-p40", 2, "pass"),
        ("r730-two-p40", "10de:1b38", 2, "pass"),
        ("r730-two-p40", "P40", 3, "fail"),
        ("r730-two-p40", "V100", 1, "fail"),
        ("r730-two-p40", "no such card", 1, "fail"),
        ("r730-fell-off-bus", "P40", 2, "fail"),
        ("vm-four-v100", "Tesla V100-SXM2-16GB", 4, "pass"),
    ],
)
def test_models(machine: str, name: str, count: int, outcome: str) -> None:
    report = judged(machine, f'[gpus.models]\n"{name}" = {count}')
    assert outcomes(report, "model") == [(outcome, "machine", "gpu-count-mismatch")]
    assert (report.verdict == "pass") == (outcome == "pass")


@pytest.mark.parametrize("catalog_gpu", ["nvidia-geforce-rtx-3060-ti", None])
def test_a_near_name_is_another_card(catalog_gpu: str | None) -> None:
    card = Gpu(address=SLOT_4, vendor="nvidia", catalog_gpu=catalog_gpu, name="NVIDIA GeForce RTX 3060 Ti")
    assert named("RTX 3060", load())(card) is False
    assert named("RTX 3060 Ti", load())(card) is True


def test_a_link_is_asked_of_a_card_that_must_be_there() -> None:
    policy = '[link.at."0000:ff:00.0"]\nlanes = 8'
    assert outcomes(judged("r730-two-p40", policy), "address") == [("fail", "0000:ff:00.0", "gpu-count-mismatch")]


def test_memory_of_cards_that_were_not_looked_at_is_no_pass(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    report = check([str(tmp_path)], policy=parse("p.toml", "gpus.count = 0\nmemory.uncorrectable = 0"), today=DAY)
    assert [row.outcome for row in rows(report, "memory")] == ["unknown"]


def test_a_card_of_which_nothing_is_known_may_be_the_one() -> None:
    is_p40 = named("P40", load())
    assert is_p40(Gpu(address=SLOT_4, vendor="nvidia")) is None
    assert is_p40(Gpu(address=SLOT_4, vendor="nvidia", name="Tesla V100")) is False


@pytest.mark.parametrize(
    ("machine", "address", "outcome"),
    [
        ("r730-two-p40", SLOT_4, "pass"),
        ("r730-two-p40", "0000:ff:00.0", "fail"),
        ("r730-fell-off-bus", SLOT_4, "fail"),
        ("r730-fell-off-bus", SLOT_6, "pass"),
    ],
)
def test_addresses(machine: str, address: str, outcome: str) -> None:
    assert outcomes(judged(machine, f'gpus.addresses = ["{address}"]'), "address") == [
        (outcome, address, "gpu-count-mismatch")
    ]


# --- links, power, memory -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("machine", "policy", "topic", "wanted"),
    [
        ("r730-two-p40", "link.lanes = 16", "link-width", [("pass", "machine", None)]),
        ("r730-link-x8", "link.lanes = 16", "link-width", [("fail", SLOT_4, "link-width-reduced")]),
        ("r730-link-x8", f'link.lanes = 16\n[link.at."{SLOT_4}"]\nlanes = 8', "link-width",
         [("pass", "machine", None)]),
        ("r730-link-x8", "", "link-width", []),
        ("r730-idle-link", "link.gen = 3", "link-generation", [("pass", "machine", None)]),
        ("r730-two-p40", "link.gen = 4", "link-generation",
         [("fail", SLOT_6, "link-speed-reduced"), ("fail", SLOT_4, "link-speed-reduced")]),
        ("wsl-one-rtx-3060", "link.lanes = 8", "link-width", None),
        ("r730-two-p40", "power.supplies = 2", "power-supplies", [("pass", "machine", "psu-missing")]),
        ("r730-psu-missing", "power.supplies = 2", "power-supplies", [("fail", "machine", "psu-missing")]),
        ("r730-psu-unplugged", "power.supplies = 2", "power-supplies", [("fail", "machine", "psu-missing")]),
        ("vm-four-v100", "power.supplies = 2", "power-supplies", None),
        ("r730-psu-unplugged", "power.redundancy = true", "power-redundancy",
         [("fail", "machine", "psu-redundancy-lost")]),
        ("r730-two-p40", "power.redundancy = true", "power-redundancy",
         [("unknown", "machine", "psu-redundancy-lost")]),
        ("r730-two-p40", "memory.uncorrectable = 0", "memory", [("pass", "machine", None)]),
        ("r730-two-p40", "memory.remapped_rows = 0", "memory",
         [("unknown", SLOT_6, "memory-retired"), ("unknown", SLOT_4, "memory-retired")]),
    ],
)  # fmt: skip
def test_links_power_and_memory(
    machine: str, policy: str, topic: str, wanted: list[tuple[str, str, str | None]] | None
) -> None:
    found = outcomes(judged(machine, policy), topic)
    if wanted is None:
        assert found
        assert {outcome for outcome, _, _ in found} <= {"pass", "unknown"}
    else:
        assert found == wanted


def test_memory_above_what_is_allowed() -> None:
    card = gpu(nvml=seen(retired_pages_single_bit=3, ecc_aggregate_uncorrected=1))
    made = machine(card)
    report = judge_machine(made, view(made, 1).expected, load())
    policy = parse("p.toml", "[memory]\nretired_pages = 2\nuncorrectable = 1\nremapped_rows = 0")
    situation = Situation(policy=policy, expected=Expected(n=1, origin="test"), probe=report, catalog=load(), today=DAY)
    told = [(row.outcome, row.finding) for row in judge(situation) if row.topic == "memory"]
    assert told == [("pass", None), ("fail", "memory-retired"), ("unknown", "memory-retired")]


def test_what_the_bmc_says_of_redundancy() -> None:
    for state, outcome in (("full", "pass"), ("lost", "fail"), ("none", "fail"), (None, "unknown")):
        assert _redundancy(Machine(power=Power(redundancy=state))).outcome == outcome
    assert _redundancy(Machine(psus=(Psu(present=True, plugged=True, failed=True),))).outcome == "fail"


@pytest.mark.parametrize(
    ("psu", "answer"),
    [
        (Psu(present=True, plugged=True), True),
        (Psu(present=True, plugged=False), False),
        (Psu(present=False), False),
        (Psu(present=True, plugged=True, failed=True), False),
        (Psu(present=True), None),
        (Psu(), None),
    ],
)
def test_a_supply_works(psu: Psu, answer: bool | None) -> None:
    assert works(psu) is answer


# --- findings, allowances, baseline -------------------------------------------------------------

ALLOW = '[[allow]]\nfinding = "{name}"\nreason = "on order"\nuntil = {until}\n'


def test_warnings_fail_with_strict_only() -> None:
    assert judged("r730-link-x8").verdict == "pass"
    assert judged("r730-link-x8", "strict = true").verdict == "fail"
    assert judged("r730-link-x8", strict=True).verdict == "fail"


def test_an_allowed_finding_passes_and_is_told() -> None:
    policy = "gpus.count = 2\n" + ALLOW.format(name="gpu-fell-off-bus", until="2026-06-01")
    report = judged("r730-fell-off-bus", policy)
    assert report.verdict == "pass"
    (row,) = rows(report, "finding")
    assert row.message.startswith("Allowed until 2026-06-01 (on order): ")
    assert row.allowance is not None
    assert "allowed to be missing: 1" in rows(report, "gpus")[0].message
    assert "One finding is allowed." in report.headline


def test_an_allowance_that_ended_fails_with_the_finding_s_name() -> None:
    report = judged("r730-fell-off-bus", ALLOW.format(name="gpu-fell-off-bus", until="2026-05-31"))
    assert report.verdict == "fail"
    (row,) = rows(report, "finding")
    assert row.finding == "gpu-fell-off-bus"
    assert "Its allowance ended on 2026-05-31 (on order)." in row.message
    # Also where the finding alone, a warning, would not fail.
    assert judged("r730-link-x8", ALLOW.format(name="link-width-reduced", until="2026-06-01")).verdict == "pass"
    assert judged("r730-link-x8", ALLOW.format(name="link-width-reduced", until="2026-05-31")).verdict == "fail"


def test_an_allowance_holds_for_its_subject_and_name_only() -> None:
    other = ALLOW.format(name="gpu-fell-off-bus", until="2026-12-31") + f'subject = "{SLOT_6}"\n'
    assert judged("r730-fell-off-bus", other).verdict == "fail"
    assert judged("r730-fell-off-bus", ALLOW.format(name="nouveau-bound", until="2026-12-31")).verdict == "fail"
    own = ALLOW.format(name="gpu-fell-off-bus", until="2026-12-31") + f'subject = "{SLOT_4}"\n'
    assert judged("r730-fell-off-bus", own).verdict == "pass"


def test_a_pass_with_cards_missing_says_how_many() -> None:
    report = judged("bmc-only", "gpus.count = 2\n" + ALLOW.format(name="gpu-count-mismatch", until="2026-12-31"))
    assert report.headline == (
        "Dell Inc. PowerEdge R730 passes 2 checks. Of 2 expected GPUs 0 can be used. One finding is allowed. Nothing "
        "was trained."
    )


def test_by_a_clock_that_is_wrong_no_allowance_ends() -> None:
    source, policy = str(FOLDER / "r730-fell-off-bus" / "capture.json"), "gpus.count = 2\n"
    policy += ALLOW.format(name="gpu-fell-off-bus", until="2026-12-31")
    report = check([source], policy=parse("p.toml", policy), today=date(1970, 1, 1))
    assert (report.verdict, [row.outcome for row in rows(report, "clock")]) == ("unknown", ["unknown"])
    assert rows(judged("r730-fell-off-bus", policy), "clock") == []


def test_a_container_that_hides_a_card_is_not_to_be_drained() -> None:
    hidden = judged("container-one-of-two", "gpus.count = 2")
    assert (hidden.verdict, hidden.exit_code) == ("fail", 1)
    assert hidden.advice is not None
    assert hidden.advice.startswith("The machine may be good: ")
    gone = judged("container-one-of-two", "gpus.count = 3")
    assert gone.advice is not None
    assert gone.advice.startswith("Drain ")


def test_an_ended_allowance_of_something_that_was_not_read_is_no_pass() -> None:
    report = judged("vm-four-v100", ALLOW.format(name="psu-redundancy-lost", until="2026-05-31"))
    assert report.verdict == "unknown"
    assert rows(report, "finding")[0].finding == "psu-redundancy-lost"
    # One that is mended is no longer spoken of.
    assert judged("r730-two-p40", ALLOW.format(name="gpu-fell-off-bus", until="2026-05-31")).verdict == "pass"


def test_an_address_may_be_missing_as_long_as_its_finding_is_allowed() -> None:
    policy = f'gpus.addresses = ["{SLOT_4}"]\n[gpus.models]\nP40 = 2\n'
    allowed = policy + ALLOW.format(name="gpu-fell-off-bus", until="2026-06-01")
    assert judged("r730-fell-off-bus", allowed).verdict == "pass"
    assert judged("r730-fell-off-bus", policy).verdict == "fail"


def test_a_baseline(tmp_path: Path) -> None:
    before = FOLDER / "r730-two-p40" / "capture.json"
    same = judged("r730-two-p40", f'baseline = "{before}"')
    assert (same.verdict, [row.outcome for row in rows(same, "baseline")]) == ("pass", ["pass"])
    gone = captured(tmp_path, r730(two_p40()[0]))
    report = judged(gone, f'baseline = "{before}"')
    assert report.verdict == "fail"
    assert "gpu-lost-since-baseline" in [row.finding for row in report.checks if row.outcome == "fail"]
    assert report.probe.counts.expected is not None
    assert report.probe.counts.expected.n == 2


# --- training -----------------------------------------------------------------------------------


def trained(verdict: Verdict, *findings: Finding, policy: str = "", machine_of: Machine | None = None) -> Situation:
    """A healthy machine whose training ended so."""
    made = machine(gpu()) if machine_of is None else machine_of
    report = SmokeReport(
        headline="The training.",
        verdict=verdict,
        exit_code=0,
        proves_gpu=verdict == "pass",
        findings=findings,
    )
    return Situation(
        policy=parse("p.toml", policy),
        expected=Expected(n=1, origin="test"),
        probe=judge_machine(made, Expected(n=1, origin="test"), load()),
        catalog=load(),
        today=DAY,
        smoke=report,
        asked_training=True,
    )


def training_rows(situation: Situation) -> list[tuple[str, str | None, bool]]:
    return [(row.outcome, row.finding, row.transient) for row in judge(situation) if row.topic == "training"]


BUSY = finding("gpu-busy", "error", SLOT_6, "Somebody else computes.")
UNUSED = finding("gpu-unused-in-training", "error", SLOT_6, "It took no part.")
SLOW = finding("gpu-slower-than-peers", "warning", SLOT_6, "It is slow.")
NO_TENSORFLOW = finding("tensorflow-missing", "error", "machine", "TensorFlow is not installed.")


@pytest.mark.parametrize(
    ("situation", "wanted"),
    [
        (trained("pass"), [("pass", None, False)]),
        (trained("pass", SLOW), [("pass", None, False)]),
        (trained("pass", SLOW, policy="strict = true"), [("pass", None, False), ("fail", SLOW.name, False)]),
        (trained("fail", UNUSED), [("fail", UNUSED.name, False)]),
        (trained("fail"), [("fail", None, False)]),
        (trained("not-run", BUSY), [("unknown", BUSY.name, True)]),
        (trained("not-run", NO_TENSORFLOW), [("unknown", NO_TENSORFLOW.name, False)]),
        (trained("fail", UNUSED, policy=ALLOW.format(name=UNUSED.name, until="2026-06-01")),
         [("pass", UNUSED.name, False)]),
        (trained("fail", UNUSED, policy=ALLOW.format(name=UNUSED.name, until="2026-05-31")),
         [("fail", UNUSED.name, False)]),
    ],
)  # fmt: skip
def test_a_training(situation: Situation, wanted: list[tuple[str, str | None, bool]]) -> None:
    assert training_rows(situation) == wanted


def test_a_training_that_could_not_start_for_want_of_a_card() -> None:
    assert training_rows(replace(trained("pass", machine_of=machine()), smoke=None)) == [
        ("fail", "gpu-count-mismatch", False)
    ]
    assert training_rows(replace(trained("pass", machine_of=Machine()), smoke=None)) == [
        ("unknown", "gpu-count-mismatch", False)
    ]
    assert training_rows(replace(trained("pass"), smoke=None, asked_training=False)) == []


# --- tries --------------------------------------------------------------------------------------


def test_trouble_is_tried_again_and_every_try_is_told(tmp_path: Path) -> None:
    place = captured(tmp_path, MACHINES["r730-nvml-timeout"]())
    waited: list[float] = []

    def mend(seconds: float) -> None:
        waited.append(seconds)
        captured(tmp_path, MACHINES["r730-two-p40"]())

    report = judged(place, "[retry]\ntimes = 3\nwait_seconds = 7", wait=mend)
    assert waited == [7]
    assert (report.verdict, [one.verdict for one in report.attempts]) == ("pass", ["unknown", "pass"])
    assert "NVML did not answer in time" in report.attempts[0].headline
    assert [row.topic for row in report.attempts[0].checks] == ["probe", "gpus"]
    assert report.headline.endswith("This was try 2.")


def test_a_failure_after_trouble_stays_a_failure(tmp_path: Path) -> None:
    place = captured(tmp_path, MACHINES["r730-nvml-timeout"]())
    report = judged(
        place, "retry.times = 5", wait=lambda _: captured(tmp_path, MACHINES["r730-fell-off-bus"]()) and None
    )
    assert (report.verdict, len(report.attempts)) == ("fail", 2)


def test_a_bad_machine_and_what_no_try_can_mend_are_not_tried_again(tmp_path: Path) -> None:
    def never(_: float) -> None:
        raise AssertionError("waited")

    policy = "retry.times = 5\n"
    assert len(judged("r730-fell-off-bus", policy, wait=never).attempts) == 1
    assert len(judged("r730-two-p40", policy, wait=never).attempts) == 1
    assert judged("r730-two-p40", policy + "power.redundancy = true", wait=never).verdict == "unknown"
    # Trouble beside a failure does not hide it.
    cards = two_p40(dead=True)
    hung = MACHINES["r730-nvml-timeout"]().nvml
    both = judged(captured(tmp_path, replace(r730(*cards), nvml=hung)), policy, wait=never)
    assert (both.verdict, [row.outcome for row in rows(both, "probe")]) == ("fail", ["unknown"])


def test_advice() -> None:
    assert judged("r730-two-p40").advice is None
    drain = judged("r730-fell-off-bus").advice
    assert drain is not None
    assert drain.startswith("Drain this machine")
    assert "gpucheck explain gpu-fell-off-bus" in drain
    retry = judged("r730-nvml-timeout").advice
    assert retry is not None
    assert "on another machine" in retry


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("gpu:2", 2),
        ("gpu:p40:2(S:0-1)", 2),
        ("gpu:a100:4(S:0-1),gpu:v100:2(S:0,2),shard:8", 6),
        ("gres/gpu:8", 8),
        ("craynetwork:4", None),
        ("(null)", None),
        ("", None),
        ("gpu:a100_1g.5gb:7", None),
    ],
)
def test_gres(text: str, count: int | None) -> None:
    assert gres_count(text) == count


def test_a_job_s_grant_comes_before_the_gate_s_one(tmp_path: Path) -> None:
    document = MACHINES["r730-two-p40"]().capture() | {"environment": {"SLURM_GPUS_ON_NODE": "3"}}
    (tmp_path / "c.json").write_text(json.dumps(document))
    report = judged(tmp_path / "c.json")
    assert report.verdict == "fail"
    assert "(SLURM_GPUS_ON_NODE)" in rows(report, "gpus")[0].message
    assert judged(tmp_path / "c.json", "gpus.count = 2").verdict == "pass"


def test_every_golden_machine_meets_the_policy_made_from_it() -> None:
    """So far as it has no error and was read."""
    met = 0
    for folder in sorted(path for path in FOLDER.iterdir() if (path / "capture.json").is_file()):
        looked = probe([str(folder / "capture.json")])
        if looked.machine.gpus is None:
            continue
        report = check([str(folder / "capture.json")], policy=parse("p.toml", policy_text(looked)), today=DAY)
        assert report.verdict == {"ok": "pass", "problem": "fail", "unknown": "unknown"}[looked.verdict], folder.name
        met += report.verdict == "pass"
    assert met > 10


def test_nvml_that_lists_one_of_two(tmp_path: Path) -> None:
    made = r730(*two_p40(), nvml=nvml(NvmlCard(SLOT_6)))
    report = judged(captured(tmp_path, made), "gpus.count = 2")
    assert report.verdict == "fail"
