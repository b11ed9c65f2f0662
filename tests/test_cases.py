"""Every real case: the expected cause comes first, and what was never settled is not called certain."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cases import CASES, ELSEWHERE, Case, load
from machines.build import Golden, dump

from gpucheck.probing import Probe, probe

KNOWN = load()


def probed(case: Case, folder: Path) -> Probe:
    made = case.make()
    document: dict[str, Any] = made.capture() if isinstance(made, Golden) else made
    place = folder / "capture.json"
    place.write_text(dump(document), "utf-8")
    return probe([str(place)], expect_gpus=case.expect_gpus)


@pytest.mark.parametrize("id", KNOWN)
def test_the_cause_comes_first(id: str, tmp_path: Path) -> None:
    case = KNOWN[id]
    report = probed(case, tmp_path)
    names = [finding.name for finding in report.findings]
    if case.first is None:
        assert [f.name for f in report.findings if f.severity == "error"] == []
    else:
        assert names[:1] == [case.first], [(f.severity, f.name, f.message) for f in report.findings]
        assert report.findings[0].confidence == case.confidence
        told = json.dumps(report.findings[0].model_dump(), ensure_ascii=False)
        for words in case.says:
            assert words in told, told
    assert set(case.also) <= set(names)
    assert set(case.absent).isdisjoint(names)


def test_each_case_stands_once() -> None:
    assert CASES.keys().isdisjoint(ELSEWHERE)


def test_no_case_is_left_out(shared_machines: Path) -> None:

    text = (shared_machines.parent / "cases" / "cases.yaml").read_text("utf-8")
    assert set(re.findall(r"^- id: (C\d+)$", text, re.MULTILINE)) == {*CASES, *ELSEWHERE}


def test_a_case_can_fail(tmp_path: Path) -> None:
    wrong = replace(KNOWN["C001"], first="nouveau-bound")
    with pytest.raises(AssertionError):
        assert [finding.name for finding in probed(wrong, tmp_path).findings][:1] == [wrong.first]


def test_what_was_never_settled_is_not_certain(shared_machines: Path) -> None:
    text = (shared_machines.parent / "cases" / "cases.yaml").read_text("utf-8")
    blocks = re.split(r"^- id: ", text, flags=re.MULTILINE)[1:]
    never = {block[:4] for block in blocks if re.search(r"^  settled: 'no'$", block, re.MULTILINE)}
    assert len(never) > 15
    assert {id for id in never & KNOWN.keys() if KNOWN[id].confidence == "certain"} == set()
