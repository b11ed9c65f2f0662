"""Fixtures around the scripted NVML library."""

from __future__ import annotations

from pathlib import Path

import pytest

from . import FakeNvml, build


@pytest.fixture(scope="session")
def fake_nvml_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with the compiled library, once per run."""
    try:
        return build(tmp_path_factory.mktemp("fake_nvml"))
    except FileNotFoundError as error:
        pytest.skip(str(error))


@pytest.fixture
def fake_nvml(tmp_path: Path, fake_nvml_library: Path) -> FakeNvml:
    """``fake_nvml.environment(script)`` gives the variables for a process that asks NVML."""
    return FakeNvml(tmp_path, fake_nvml_library)
