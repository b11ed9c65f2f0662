"""Write what is made from the code: JSON Schemas, the pages of findings, cases and models, the table in the README.

``python scripts/generate.py`` writes; ``--check`` says which files are stale and exits 1.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from gpucheck.catalog import load as load_catalog
from gpucheck.checking import CheckReport
from gpucheck.entries import Server
from gpucheck.explain import all_codes, explain, table_markdown
from gpucheck.findings import ErrorDocument
from gpucheck.fit.report import Advice
from gpucheck.fleet.report import Fleet
from gpucheck.policy import Policy
from gpucheck.probing import Probe
from gpucheck.smoke.report import SmokeReport

ROOT = Path(__file__).resolve().parent.parent
BEGIN, END = "<!-- findings: made by scripts/generate.py -->", "<!-- end of findings -->"

DOCUMENTS: dict[str, type[BaseModel]] = {
    "advice": Advice,
    "check": CheckReport,
    "error": ErrorDocument,
    "fleet": Fleet,
    "probe": Probe,
    "smoke": SmokeReport,
}


def schema(name: str, model: type[BaseModel]) -> str:
    """JSON Schema of one document, as it is printed."""
    made: dict[str, Any] = model.model_json_schema(by_alias=True, mode="serialization")
    made = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": f"gpucheck/{name}/1", **made}
    return json.dumps(made, indent=1, ensure_ascii=False) + "\n"


def policy_schema() -> str:
    """JSON Schema of a policy file, as it is written: defaults may be left out."""
    made: dict[str, Any] = Policy.model_json_schema(by_alias=True, mode="validation")
    made = {"$schema": "https://json-schema.org/draft/2020-12/schema", **made, "title": "gpucheck.toml"}
    return json.dumps(made, indent=1, ensure_ascii=False) + "\n"


def findings_page() -> str:
    """Every finding with its documentation, as Markdown."""
    lines = ["# Findings", "", "`gpucheck explain NAME` prints the same text.", ""]
    for code in all_codes():
        found = explain(code.name)
        lines += [f"## {found.code} {found.name}", "", found.summary, ""]
        for heading, text in found.sections.items():
            lines += [f"**{heading}**", "", text, ""]
    return "\n".join(lines).rstrip() + "\n"


def cases_page() -> str:
    """Every real case, what answers it, and how many are answered."""
    sys.path.insert(0, str(ROOT / "tests"))
    from cases import ELSEWHERE, load

    seen = load()
    answered = [row for row in ELSEWHERE.values() if row[2] != "nothing"]
    settled = sum(case.settled for case in seen.values())
    lines = [
        "# Real cases",
        "",
        f"{len(seen) + len(ELSEWHERE)} problems that people described in public threads. For {len(seen)} of them a "
        "machine is built after the thread (`tests/cases`), and a test asks that `gpucheck probe` names the cause "
        f"first: {settled} were settled in their thread, and in the other {len(seen) - settled} nothing is called "
        f"certain that the thread left open. {len(answered)} more are answered by another command or a test; "
        f"{len(ELSEWHERE) - len(answered)} are not answered.",
        "",
        "## What a probe sees",
        "",
        "| case | what the owner saw | settled | first finding | confidence |",
        "|---|---|---|---|---|",
    ]
    for case in seen.values():
        first = f"`{case.first}`" if case.first else "no error"
        settled_word = "yes" if case.settled else "no"
        lines.append(
            f"| [{case.id}]({case.thread}) | {case.title} | {settled_word} | {first} | {case.confidence or '-'} |"
        )
    for head, wanted in (("## Answered elsewhere", True), ("## Not answered, and why", False)):
        lines += [
            "",
            head,
            "",
            "| case | what the owner saw | by | how |" if wanted else "| case | what the owner saw | why |",
        ]
        lines.append("|---|---|---|---|" if wanted else "|---|---|---|")
        for id, (title, thread, by, how) in sorted(ELSEWHERE.items()):
            if (by != "nothing") is wanted:
                cells = [f"[{id}]({thread})", title, *([f"`{by}`"] if wanted else []), how]
                lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _share(known: Iterable[bool]) -> str:
    """``✓`` all, ``3/8`` some, ``–`` none."""
    marks = list(known)
    return "✓" if marks and all(marks) else f"{sum(marks)}/{len(marks)}" if any(marks) else "–"


def _facts(server: Server) -> dict[str, str]:
    """What is known of a model, in the words of the page's columns."""
    rows, power = server.slots, server.power
    cooled = {kind for row in server.cooling for kind in ("passive", "active") if getattr(row, kind) is not None}
    return {
        "SMBIOS": _share([bool(server.smbios)]),
        "slots": str(len({row.id for row in rows})),
        "lanes": _share(row.lanes is not None for row in rows),
        "owner": _share(row.socket is not None or server.sockets.count == 1 for row in rows),
        "watts": _share(row.watts is not None for row in rows),
        "width": _share(row.max_wide is not None for row in rows),
        "height": _share(row.height is not None for row in rows),
        "length": _share(row.length is not None for row in rows),
        "limits": str(len(server.gpu.limits) or "–"),
        "supplies": str(len(power.psus) or "–"),
        "base load": _share([power.base is not None]),
        "plugs": _share([power.aux is not None]),
        "cables": str(len(power.cables) or "–"),
        "cooling": _share(kind in cooled for kind in ("passive", "active")),
        "firmware": _share([any(one.purpose == "above-4g" for one in server.firmware)]),
        "builds": str(len(server.gpu.reports) or "–"),
    }


_MODELS = """# What is known of each model

Of the slots' facts: ✓ known for every slot, 3/8 for three of eight (a slot counts once for each riser that it comes
with), – for none. Numbers count what there is: slots, limits that a document states, sizes of power supplies, cables,
builds that somebody reported. *SMBIOS* is how a probe knows the model, *plugs* are the server's sockets for GPU power,
*firmware* the name of its setting for addresses above 4 GB. What is missing the advisor calls *unknown* and asks for.
"""


def models_page() -> str:
    """Which model has which facts, and which are unknown."""
    catalog = load_catalog()
    servers = [catalog.server(id) for id in sorted(catalog.servers)]
    facts = [_facts(server) for server in servers]
    columns = list(facts[0])
    whole = [str(sum(row[column] != "–" for row in facts)) for column in columns]
    lines = [_MODELS, f"| model | {' | '.join(columns)} |", f"|---|{'---|' * len(columns)}"]
    for server, row in zip(servers, facts, strict=True):
        lines.append(f"| {server.vendor} {server.model} | {' | '.join(row.values())} |")
    lines.append(f"| **of {len(servers)}, at least in part** | {' | '.join(whole)} |")
    lines += ["", "## Looked for and not found", ""]
    lines += [f"- **{one.vendor} {one.model}**: {'; '.join(one.not_known)}" for one in servers if one.not_known]
    return "\n".join(lines) + "\n"


def readme() -> str:
    """The README with a fresh table of findings."""
    text = (ROOT / "README.md").read_text("utf-8")
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{table_markdown().strip()}\n{END}{after}"


def generated() -> dict[Path, str]:
    """Every generated file and what should stand in it."""
    files = {ROOT / "docs" / "schema" / f"{name}.json": schema(name, model) for name, model in DOCUMENTS.items()}
    files[ROOT / "docs" / "schema" / "policy.json"] = policy_schema()
    files[ROOT / "docs" / "findings.md"] = findings_page()
    files[ROOT / "docs" / "cases.md"] = cases_page()
    files[ROOT / "docs" / "models.md"] = models_page()
    files[ROOT / "README.md"] = readme()
    return files


def main() -> int:
    stale = [path for path, content in generated().items() if not path.is_file() or path.read_text("utf-8") != content]
    if "--check" in sys.argv[1:]:
        for path in stale:
            print(f"{path.relative_to(ROOT)} is stale: run make docs", file=sys.stderr)
        return 1 if stale else 0
    for path in stale:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(generated()[path], "utf-8")
        print(f"wrote {path.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
