"""Write what is made from the code: JSON Schemas, the pages of findings and of cases, the table in the README.

``python scripts/generate.py`` writes; ``--check`` says which files are stale and exits 1.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from gpucheck.explain import all_codes, explain, table_markdown
from gpucheck.findings import ErrorDocument
from gpucheck.fit.report import Advice
from gpucheck.probing import Probe
from gpucheck.smoke.report import SmokeReport

ROOT = Path(__file__).resolve().parent.parent
BEGIN, END = "<!-- findings: made by scripts/generate.py -->", "<!-- end of findings -->"

DOCUMENTS: dict[str, type[BaseModel]] = {
    "advice": Advice,
    "error": ErrorDocument,
    "probe": Probe,
    "smoke": SmokeReport,
}


def schema(name: str, model: type[BaseModel]) -> str:
    """JSON Schema of one document, as it is printed."""
    made: dict[str, Any] = model.model_json_schema(by_alias=True, mode="serialization")
    made = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": f"gpucheck/{name}/1", **made}
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
        "machine is built after the thread (`tests/cases`), and a test asks that `gpucheck probe` names the cause first: "
        f"{settled} were settled in their thread, and in the other {len(seen) - settled} nothing is called certain that "
        f"the thread left open. {len(answered)} more are answered by another command or a test; "
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


def readme() -> str:
    """The README with a fresh table of findings."""
    text = (ROOT / "README.md").read_text("utf-8")
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{table_markdown().strip()}\n{END}{after}"


def generated() -> dict[Path, str]:
    """Every generated file and what should stand in it."""
    files = {ROOT / "docs" / "schema" / f"{name}.json": schema(name, model) for name, model in DOCUMENTS.items()}
    files[ROOT / "docs" / "findings.md"] = findings_page()
    files[ROOT / "docs" / "cases.md"] = cases_page()
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
