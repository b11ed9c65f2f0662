"""Data-parallel training that proves every card was recognised and used.

The package can be called: ``gpucheck.smoke("cpu:4")`` is :func:`gpucheck.api.smoke`.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any


class _Callable(ModuleType):
    """``gpucheck.smoke`` is this package and, as the library's third question, a function."""

    def __call__(self, devices: str = "auto", **options: Any) -> Any:
        from gpucheck.api import smoke

        return smoke(devices, **options)


sys.modules[__name__].__class__ = _Callable
