"""Data-parallel training that proves every card was recognised and used.

The package can be called: ``gpucheck.smoke("cpu:4")`` is :func:`gpucheck.api.smoke`, where the
parameters stand.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpucheck.smoke.report import SmokeReport


class _Callable(ModuleType):
    """The package and the library's function share the name ``gpucheck.smoke``. As soon as any module
    of the package is imported, Python sets the package as that attribute, whatever stood there: so the
    package itself must answer a call."""

    def __call__(self, *arguments: Any, **options: Any) -> SmokeReport:
        from gpucheck.api import smoke

        return smoke(*arguments, **options)


sys.modules[__name__].__class__ = _Callable
