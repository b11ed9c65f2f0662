"""Which driver drives a card, from its PCI id: NVIDIA gives ids in the order of its generations."""

from __future__ import annotations

import re

from gpucheck.facts import Gpu
from gpucheck.rules import View

FIRST_MAXWELL_ID, FIRST_TURING_ID = 0x1340, 0x1E00
"""PCI device ids of Maxwell and of Turing begin here. Ids below Maxwell's are Kepler's and older ones'."""
LAST_OF_MAXWELL_TO_VOLTA = 580
"""Last driver branch for Maxwell, Pascal and Volta."""


def device_id(pci_id: str | None) -> int | None:
    """The device half of an NVIDIA id; None for anything else."""
    found = re.fullmatch("10de:([0-9a-f]{4})", pci_id or "")
    return int(found[1], 16) if found else None


def before_turing(pci_id: str | None) -> bool | None:
    """Whether the open kernel modules do not drive it: it lacks the processor (GSP) that they need."""
    device = device_id(pci_id)
    return None if device is None else device < FIRST_TURING_ID


def last_branch(gpu: Gpu, view: View) -> int | None:
    """The last driver branch that drives a card: what the catalog says, else what its id tells.

    None where current drivers drive it, and where neither tells.
    """
    if view.catalog is not None and gpu.catalog_gpu is not None:
        branch = view.catalog.card(gpu.catalog_gpu).software.last_driver_branch
        return int(branch) if branch is not None and branch.isdecimal() else None
    device = device_id(gpu.pci_id)
    known = device is not None and FIRST_MAXWELL_ID <= device < FIRST_TURING_ID
    return LAST_OF_MAXWELL_TO_VOLTA if known else None


def branch_of(version: str) -> int | None:
    """The branch of a driver version: 580 of ``580.65.06``."""
    branch = version.partition(".")[0]
    return int(branch) if branch.isdecimal() else None
