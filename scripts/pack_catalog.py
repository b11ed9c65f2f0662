"""Pack catalog/*.toml into one JSON index, gpucheck/_catalog.json: parsing it is a few milliseconds.

The wheel carries the index; a checkout uses it while it is newer than every TOML file.
"""

from __future__ import annotations

import json
import os
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SECTIONS = ("servers", "gpus", "software", "cpus")


def pack(catalog: Path) -> dict[str, dict[str, object]]:
    """Section → id → the TOML document as it stands. ValueError names the file that is not TOML."""
    index: dict[str, dict[str, object]] = {}
    for section in SECTIONS:
        index[section] = {}
        for path in sorted((catalog / section).rglob("*.toml")):
            try:
                index[section][path.stem] = tomllib.loads(path.read_text(encoding="utf-8"))
            except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
                raise ValueError(f"{path}: {error}") from None
    return index


def write(root: Path = ROOT) -> Path:
    """Write the index beside the package's modules, whole or not at all."""
    target = root / "gpucheck" / "_catalog.json"
    scratch = target.with_suffix(".new")
    scratch.write_text(json.dumps(pack(root / "catalog"), separators=(",", ":"), default=str), "utf-8")
    os.replace(scratch, target)
    return target


if __name__ == "__main__":
    try:
        write()
    except ValueError as error:
        sys.exit(str(error))
