"""gpucheck.toml: what is read, and one clear line for what cannot be."""

from __future__ import annotations

import importlib.util
import json
import os
import tomllib
from datetime import date
from pathlib import Path

import jsonschema
import pytest

from gpucheck.errors import InputError
from gpucheck.policy import Policy, load, parse

ROOT = Path(__file__).resolve().parent.parent.parent
WHOLE = """
strict = true
baseline = "before.json"
[gpus]
count = 2
addresses = ["04:00.0", "0000:82:00.0"]
[gpus.models]
P40 = 2
[link]
lanes = 16
gen = 3
[link.at."82:00.0"]
lanes = 8
[power]
supplies = 2
redundancy = true
[memory]
uncorrectable = 0
retired_pages = 4
remapped_rows = 4
[smoke]
run = false
devices = "cpu:2"
steps = 3
timeout_seconds = 60
if_busy = "wait"
[retry]
times = 2
wait_seconds = 0
[[allow]]
finding = "GC201"
subject = "82:00.0"
reason = "the riser has eight lanes"
until = 2026-12-31
"""


def schema() -> dict[str, object]:
    spec = importlib.util.spec_from_file_location("generate", ROOT / "scripts" / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    made = json.loads(module.policy_schema())
    assert isinstance(made, dict)
    return made


def test_every_key_is_read() -> None:
    policy = parse("gpucheck.toml", WHOLE)
    assert policy.gpus.addresses == ("0000:04:00.0", "0000:82:00.0")
    assert policy.link.of("0000:82:00.0").lanes == 8
    assert policy.link.of("0000:04:00.0").lanes == 16
    (allowance,) = policy.allow
    assert allowance.finding == "link-width-reduced"
    assert (allowance.subject, allowance.until) == ("0000:82:00.0", date(2026, 12, 31))
    given = tomllib.loads(WHOLE)
    for part, model in (("", Policy), *((name, type(getattr(policy, name))) for name in ("gpus", "power", "memory"))):
        assert set(model.model_fields) == set(given[part] if part else given)
    assert set(type(policy.smoke).model_fields) == set(given["smoke"])
    assert set(type(policy.retry).model_fields) == set(given["retry"])


def test_nothing_is_asked_by_default() -> None:
    assert parse("gpucheck.toml", "") == Policy()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('gpus.count = "2"', "gpus.count: it must be a whole number, without quotes (it is '2')"),
        ("gpus.count = true", "gpus.count: it must be a whole number, without quotes (it is True)"),
        ("gpus.count = -1", "gpus.count: it must be 0 or more (it is -1)"),
        ("gpus.count = 5000", "gpus.count: it must be 1024 or less (it is 5000)"),
        ("gpus.cuont = 2", "gpus.cuont: no such key (did you mean count?)"),
        ("gpus = 2", "gpus: it must be a table: write its keys below a [heading] of this name (it is 2)"),
        ("[gpus.models]\nP40 = 1.5", "gpus.models.P40: it must be a whole number, without quotes (it is 1.5)"),
        ('gpus.addresses = ["x"]', "gpus.addresses[1]: no PCI address, such as 0000:04:00.0 (it is 'x')"),
        ("link.lanes = 3", "link.lanes: it must be 1, 2, 4, 8 or 16 (it is 3)"),
        ("link.lanes = true", "link.lanes: it must be a whole number, without quotes (it is True)"),
        ("link.lanes = 16.0", "link.lanes: it must be a whole number, without quotes (it is 16.0)"),
        ('[gpus.models]\n" " = 1', 'gpus.models."": it must not be empty (it is \' \')'),
        ('[[allow]]\nfinding = "GC201"\nreason = " "\nuntil = 2026-12-31',
         "allow[1].reason: it must not be empty (it is ' ')"),
        ('[[allow]]\nfinding = "GC201"\nsubject = ""\nreason = "x"\nuntil = 2026-12-31',
         "allow[1].subject: it must not be empty (it is '')"),
        ('[[allow]]\nfinding = "GC201"\nreason = "x"\nuntil = 1796083200',
         "allow[1].until: it must be a date such as 2026-12-31 (it is 1796083200)"),
        ('[[allow]]\nfinding = "GC201"\nreason = "x"\nuntil = "1796083200"',
         "allow[1].until: it must be a date such as 2026-12-31 (it is '1796083200')"),
        ("link.gen = 9", "link.gen: it must be 6 or less (it is 9)"),
        ('[link.at."4:0"]\nlanes = 8', 'link.at."4:0": no PCI address, such as 0000:04:00.0 (it is \'4:0\')'),
        ('[link.at."04:00.0"]\nlane = 8', 'link.at."04:00.0".lane: no such key (did you mean lanes?)'),
        ('strict = "yes"', "strict: it must be true or false (it is 'yes')"),
        ("power.redundancy = 1", "power.redundancy: it must be true or false (it is 1)"),
        ('smoke.devices = "tpu"', "smoke.devices: it must be auto, gpu or cpu:N (it is 'tpu')"),
        ('smoke.if_busy = "no"', "smoke.if_busy: it must be 'fail', 'skip' or 'wait' (it is 'no')"),
        ("zzz = 1", "zzz: no such key (keys: strict, baseline, gpus, link, power, memory, smoke, retry, allow)"),
        ("= 1", "no TOML: Invalid statement (at line 1, column 1) (mend that line, or compare it with gpucheck check "
                "--init)"),
        ('[[allow]]\nfinding = "link-width-reduced"\nuntil = 2026-12-31',
         "allow[1].reason: it is missing (every [[allow]] needs finding, reason and until)"),
        ('[[allow]]\nfinding = "link-width-reduced"\nreason = "x"',
         "allow[1].until: it is missing (every [[allow]] needs finding, reason and until)"),
        ('[[allow]]\nfinding = "link-width-reduce"\nreason = "x"\nuntil = 2026-12-31',
         "allow[1].finding: no finding has this name; the nearest is link-width-reduced (it is 'link-width-reduce')"),
        ('[[allow]]\nfinding = "GC201"\nreason = ""\nuntil = 2026-12-31',
         "allow[1].reason: it must not be empty (it is '')"),
        ('[[allow]]\nfinding = "GC201"\nreason = "x"\nuntil = "soon"',
         "allow[1].until: it must be a date such as 2026-12-31 (it is 'soon')"),
        ('[[allow]]\nfinding = "GC201"\nreason = "x"\nuntil = 2026-12-31T12:00:00',
         "allow[1].until: a date without a time of the day, such as 2026-12-31 (it is '2026-12-31 12:00:00')"),
        ('[[allow]]\nfinding = "GC201"\nreason = "x"\nuntil = "soon"\nwhy = "x"',
         "allow[1].until: it must be a date such as 2026-12-31 (it is 'soon'; then 1 more)"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_one_line_with_file_key_and_what_to_do(text: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        parse("gpucheck.toml", text)
    assert str(caught.value) == f"gpucheck.toml: {message}"
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        (None, "no such file"),
        (b"\xff\xfe", "it is not UTF-8 text"),
        (b"# " + b"x" * (1 << 20), "larger than a policy can be"),
    ],
)
def test_files_that_are_no_policy(tmp_path: Path, content: bytes | None, fault: str) -> None:
    place = tmp_path / "p.toml"
    if content is not None:
        place.write_bytes(content)
    with pytest.raises(InputError, match=fault):
        load(str(place))


def test_a_folder_and_an_unreadable_name_are_no_policy(tmp_path: Path) -> None:
    for path, fault in ((str(tmp_path), "not a file"), ("", "no such file"), ("a\0b", "no such file|cannot be read")):
        with pytest.raises(InputError, match=fault):
            load(path)


def test_a_baseline_is_found_beside_the_policy(tmp_path: Path) -> None:
    (tmp_path / "p.toml").write_text('baseline = "before.json"\n')
    assert load(str(tmp_path / "p.toml")).baseline == os.path.join(str(tmp_path), "before.json")
    (tmp_path / "p.toml").write_text('baseline = "/srv/before.json"\n')
    assert load(str(tmp_path / "p.toml")).baseline == "/srv/before.json"


def test_the_schema_knows_the_same_keys() -> None:
    whole = json.loads(json.dumps(tomllib.loads(WHOLE), default=str))
    validator = jsonschema.Draft202012Validator(schema())
    validator.validate(whole)
    validator.validate({})
    for wrong in ({"gpus": {"cuont": 2}}, {"link": {"lanes": 3}}, {"allow": [{"finding": "GC201"}]}, {"strict": 1}):
        assert not validator.is_valid(wrong)
