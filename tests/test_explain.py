from importlib import import_module
from pathlib import Path

import pytest

from gpucheck.errors import UsageError
from gpucheck.explain import HEADINGS, all_codes, explain, sections, table_markdown
from gpucheck.findings import CODES
from gpucheck.rules import machine_rules, module_name

TESTS = Path(__file__).parent / "rules"
RULES = machine_rules()


@pytest.mark.parametrize("name", CODES)
def test_every_code_is_explained_under_all_headings(name: str) -> None:
    explanation = explain(name)
    assert tuple(explanation.sections) == HEADINGS
    assert all(explanation.sections.values())
    assert explanation.summary == CODES[name].summary


@pytest.mark.parametrize("name", RULES)
def test_every_rule_has_its_three_tests(name: str) -> None:
    text = (TESTS / f"test_{name.replace('-', '_')}.py").read_text()
    for kind in ("fires", "quiet", "unchecked"):
        assert f"def test_{kind}" in text, kind


@pytest.mark.parametrize("name", RULES)
def test_every_rule_has_the_form_of_a_rule(name: str) -> None:
    module = import_module(module_name(name))
    assert isinstance(module.NEEDS, tuple)
    assert callable(module.check)
    assert (module.__doc__ or "").partition("\n")[0] == CODES[name].summary


def test_every_module_that_judges_is_asked() -> None:
    judging = {name for name in CODES if hasattr(import_module(module_name(name)), "check")}
    assert judging == set(RULES)


def test_no_rule_without_a_code() -> None:
    import gpucheck.rules

    modules = {p.stem.replace("_", "-") for p in Path(gpucheck.rules.__file__).parent.glob("[!_]*.py")}
    assert modules <= set(CODES)


@pytest.mark.parametrize("name", ["GC601", "gc601", "bar-unassigned", "bar_unassigned", " BAR-Unassigned "])
def test_names_and_codes_in_any_spelling(name: str) -> None:
    assert (explain(name).code, explain(name).name) == ("GC601", "bar-unassigned")


@pytest.mark.parametrize(
    ("xid", "name"), [("Xid 79", "gpu-fell-off-bus"), ("xid79", "gpu-fell-off-bus"), ("XID: 62", "xid-reported")]
)
def test_an_xid_leads_to_its_finding(xid: str, name: str) -> None:
    assert explain(xid).name == name


@pytest.mark.parametrize(
    ("wrong", "meant"),
    [("bar-unasigned", "bar-unassigned"), ("nouveau", "nouveau-bound"), ("GC6011", "GC601"), ("", "")],
)
def test_unknown_name_is_answered_with_the_nearest(wrong: str, meant: str) -> None:
    with pytest.raises(UsageError) as caught:
        explain(wrong)
    assert caught.value.hint is not None
    assert meant in caught.value.hint


def test_sections_of_a_docstring() -> None:
    text = """Title.

    What it means
    One line.
    What to do is a phrase here, not a heading.

    What to do:
    -----------
    Another.

    - First,
    - second.

    Sources
    One
    Two
    """
    assert sections(text) == {
        "What it means": "One line. What to do is a phrase here, not a heading.",
        "What to do": "Another.\n\n- First,\n- second.",
        "Sources": "One\nTwo",
    }
    assert sections("Nothing.") == {}


def test_table_holds_every_code_once() -> None:
    table = table_markdown()
    assert [code.code for code in all_codes()] == sorted(code.code for code in CODES.values())
    for code in all_codes():
        assert table.count(f"| `{code.name}` | {code.code} |") == 1
