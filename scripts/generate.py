"""Write what is made from the code: JSON Schemas, the page of findings, the table in the README.

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
