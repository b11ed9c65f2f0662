"""gpucheck: which GPUs a server can take, why a card is not seen, and whether every card works.

>>> import gpucheck
>>> report = gpucheck.probe(["capture.json"], expect_gpus=2)
>>> advice = gpucheck.advise("R730", "P40:2", cpus=2, psu="2x1100")
>>> proof = gpucheck.smoke("auto")
>>> gate = gpucheck.check("gpucheck.toml")
>>> fleet = gpucheck.fleet_report("captures", room="P40")

Importing it loads nothing but this file; each function imports what it needs when it is called.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from gpucheck.api import advise as advise
    from gpucheck.api import check as check
    from gpucheck.api import fleet_report as fleet_report
    from gpucheck.api import probe as probe

__all__ = ["__version__", "advise", "check", "fleet_report", "probe", "smoke"]


def __getattr__(name: str) -> Any:
    if name in ("advise", "check", "fleet_report", "probe"):
        from gpucheck import api

        return getattr(api, name)
    if name == "smoke":  # the package of that name can be called
        from importlib import import_module

        return import_module("gpucheck.smoke")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
