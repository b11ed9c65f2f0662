"""Fixtures that all tests share."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

pytest_plugins = ["fake_nvml.plugin"]

# A training notes what it does: keep that out of the state folder of whoever runs the tests.
os.environ["XDG_STATE_HOME"] = tempfile.mkdtemp(prefix="gpucheck-state-")

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def shared_machines() -> Path:
    """Folder of real dumps of other people's machines; tests that want it skip without it."""
    folder = Path(os.environ.get("GPUCHECK_MACHINES", ROOT.parent / "shared" / "machines"))
    if not folder.is_dir():
        pytest.skip("no folder of real machine dumps (GPUCHECK_MACHINES)")
    return folder
