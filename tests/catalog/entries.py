"""Small catalog entries for tests: a sound server and a sound card, and changes to them."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

SERVER: dict[str, Any] = {
    "id": "example-box",
    "vendor": "Example",
    "model": "Box",
    "names": ["Box", "Example Box"],
    "smbios": [{"vendor": ["Example Inc."], "product": ["Box"], "src": ["manual"]}],
    "form": {"kind": "rack", "units": 2, "src": ["manual"]},
    "sockets": {"count": 2, "max_cpu_watts": 100, "max_cpu_watts_src": ["manual"], "src": ["manual"]},
    "slots": [
        {
            "id": str(number),
            "smbios": [f"PCIe Slot {number}"],
            "socket": socket,
            "lanes": 16,
            "connector": 16,
            "gen": 3,
            "height": "full",
            "length": "full",
            "watts": 75,
            "max_wide": 2,
            "src": ["manual"],
        }
        for number, socket in ((1, 1), (2, 2))
    ],
    "power": {
        "bays": 2,
        "bays_src": ["manual"],
        "psus": [{"watts": 500, "src": ["manual"]}, {"watts": 1000, "src": ["manual"]}],
        "low_line": [{"rated_watts": 1000, "watts": 600, "src": ["manual"]}],
        "base": {"low_watts": 100, "high_watts": 200, "src": ["manual"]},
        "aux": [{"at": "board", "plug": "pcie-8", "count": 2, "src": ["manual"]}],
        "cables": [
            {"called": "8-pin cable", "parts": ["EX-8"], "from_plug": "pcie-8", "gives": ["pcie-8"], "src": ["manual"]}
        ],
    },
    "cooling": [{"passive": "yes", "active": "yes", "note": "Cools every card.", "src": ["manual"]}],
    "firmware": [{"purpose": "above-4g", "menu": "Above 4G", "value": "Enabled", "src": ["manual"]}],
    "sources": {
        "manual": {"confidence": "vendor", "title": "Manual"},
        "quote": {"confidence": "vendor-quoted", "title": "Manual, as others quote it"},
        "owner": {"confidence": "community", "title": "An owner"},
    },
}
"""Nothing about it is unknown, and nothing but CPU 2 and a cable has to be bought for a card."""

CARD: dict[str, Any] = {
    "id": "nvidia-example",
    "vendor": "nvidia",
    "name": "Example 200",
    "names": ["E200"],
    "family": "datacenter",
    "pci": [{"id": "10de:ffff", "src": ["brief"]}],
    "size": {"slots_wide": 2, "length_mm": 267, "profile": "full", "src": ["brief"]},
    "aux": {"plugs": [{"kind": "pcie-8"}], "src": ["brief"]},
    "power": {"watts": 200, "src": ["brief"]},
    "cooling": {"kind": "passive", "src": ["brief"]},
    "bus": {"gen": 3, "lanes": 16, "src": ["brief"]},
    "bar1": {"bytes": 1 << 28, "src": ["brief"]},
    "needs_above_4g": False,
    "needs_above_4g_src": ["brief"],
    "software": {"compute_capability": "7.5", "tensorflow_newest": "2.21", "src": ["brief"]},
    "sources": {"brief": {"confidence": "vendor", "title": "Product brief"}},
}

Changes = Mapping[str, Any]


def changed(entry: Mapping[str, Any], changes: Changes) -> dict[str, Any]:
    """A copy with changes: dotted path to the new value; None takes the key out. ``slots.0.lanes`` counts."""
    whole = copy.deepcopy(dict(entry))
    for path, value in changes.items():
        *way, last = path.split(".")
        place: Any = whole
        for step in way:
            place = place[int(step)] if isinstance(place, list) else place.setdefault(step, {})
        if isinstance(place, list):
            place[int(last)] = value
        elif value is None:
            place.pop(last, None)
        else:
            place[last] = value
    return whole


def write(folder: Path, *entries: Mapping[str, Any]) -> Path:
    """Write entries as the TOML files of a ``--catalog`` folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for entry in entries:
        (folder / f"{entry['id']}.toml").write_text(toml(entry), "utf-8")
    return folder


def toml(entry: Mapping[str, Any]) -> str:
    """TOML of an entry, every value inline."""
    return "".join(f"{key} = {_inline(value)}\n" for key, value in entry.items())


def _inline(value: Any) -> str:
    match value:
        case Mapping():
            return "{" + ", ".join(f'"{key}" = {_inline(item)}' for key, item in value.items()) + "}"
        case list() | tuple():
            return "[" + ", ".join(_inline(item) for item in value) + "]"
        case _:
            return json.dumps(value)
