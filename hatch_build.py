"""Build hook: the wheel (and an editable install) gets the packed catalog."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class PackCatalog(BuildHookInterface):  # type: ignore[type-arg]
    """Write gpucheck/_catalog.json before files are collected."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        spec = importlib.util.spec_from_file_location("pack_catalog", Path(self.root) / "scripts" / "pack_catalog.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        module.write(Path(self.root))
        build_data["artifacts"].append("gpucheck/_catalog.json")
