"""The NVIDIA driver that is loaded does not drive this generation of cards.

What it means
Every driver branch ends the support of old generations, and none knows cards that came after it. The
card is healthy; the driver is the wrong one for it.

How we know
The module names the card and the legacy branch that drives it, or calls it unsupported by this
release; or the version that is loaded is newer than the last branch for this generation, and the card
has no driver. The module's word alone is enough, but then it is likely, not certain. A card whose equal
twin works under the same driver is not judged here: then it is not the generation.

Why it matters
lspci shows the card and nvidia-smi does not. It happens to P40, P100, V100 and M40 when a
distribution updates to 590 or later, and to the old one of two cards.

What to do
Install the branch that is named. One machine runs one driver: cards whose branches do not overlap
(Kepler beside Ada; Pascal or Volta beside cards that only newer branches know) cannot work together.
Hold the driver package, so that an update does not bring the new branch back.

When it is wrong
"Not supported by this release" also comes from a defective card. If an equal card works elsewhere
under the same driver, distrust the message.

Sources
https://docs.nvidia.com/datacenter/tesla/drivers/cuda-toolkit-driver-and-architecture-matrix.html
https://www.nvidia.com/en-us/drivers/unix/legacy-gpu/
https://github.com/NVIDIA/aicr/issues/1858 (the message from a defective card)
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from gpucheck.facts import Gpu, Machine, pci_address
from gpucheck.findings import Confidence, Evidence, Finding, finding
from gpucheck.rules import View
from gpucheck.rules._generations import branch_of, last_branch
from gpucheck.rules._nvml import nvml_evidence
from gpucheck.rules._shared import (
    ADDRESS,
    BELOW_THE_DRIVER,
    addresses_in,
    driver_evidence,
    explained,
    healthy_twins,
    label,
    log_evidence,
    log_lines,
    nvidia_on_pci,
    without_driver,
)
from gpucheck.text import say

NEEDS: tuple[str, ...] = ()

_LEGACY = r"supported through the NVIDIA (?:the NVIDIA )?(\d+)\.\S* Legacy drivers"
_IGNORED = r"The (\d+\.[\d.]+) NVIDIA driver will ignore this GPU"
_UNSUPPORTED = r"is not supported by the NVIDIA (\d+\.[\d.]+) driver release"
_NAMED = rf"The NVIDIA GPU ({ADDRESS}) \(PCI ID: (10de:[0-9a-f]{{4}})\)"


def lacks(machine: Machine) -> Iterator[str]:
    """The version, and what the module says; only where a card has no driver."""
    if machine.gpus is None:
        yield "gpus"
    if without_driver(machine):
        if machine.driver is None or (machine.driver.nvidia_version is None and machine.driver.loaded_modules is None):
            yield "driver.nvidia_version"
        if machine.kernel_log is None:
            yield "kernel_log"


def _refused(gpu: Gpu) -> bool:
    """No driver is known to hold it. A driver that does not know a card does not take it."""
    return gpu.nvml is None and gpu.driver is None


def check(machine: Machine, view: View) -> Iterator[Finding]:
    """One finding per card."""
    below = explained(view.found, machine, BELOW_THE_DRIVER)
    for gpu in nvidia_on_pci(machine):
        if _refused(gpu) and gpu.address not in below and not healthy_twins(machine, gpu):
            yield from _of_card(machine, view, gpu)
    if machine.pci is None or not machine.pci_complete:
        yield from _by_log_alone(machine, view)


def _of_card(machine: Machine, view: View, gpu: Gpu) -> Iterator[Finding]:
    legacy, line = _told_legacy(machine, view, gpu)
    last = legacy if legacy is not None else last_branch(gpu, view)
    version = _version(machine, line)
    newer = version is not None and last is not None and (branch_of(version) or 0) > last
    if last is not None and (legacy is not None or (newer and gpu.driver_read)):
        known = legacy is not None or gpu.catalog_gpu is not None
        confidence: Confidence = "certain" if known and gpu.driver_read else "likely"
        yield _dropped(machine, gpu.address, label(gpu), last, version, line, confidence, _bound(gpu))
        return
    for found, said in _unsupported(machine):
        if gpu.address in addresses_in(said):
            yield _refusal(machine, gpu, found, said, _bound(gpu))
            return


def _by_log_alone(machine: Machine, view: View) -> Iterator[Finding]:
    """Cards that only the module speaks of: PCI was not looked at, or the list of it is an excerpt."""
    listed = {gpu.address: gpu for gpu in machine.gpus or ()}
    told: set[str] = set()
    for version, line in _unsupported(machine):
        named = re.search(_NAMED, line)
        address = pci_address(named[1]) if named is not None else None
        if named is None or address is None or address in listed or address in told:
            continue
        told.add(address)
        gpu = _in_log(address, named[2], view)
        last = last_branch(gpu, view)
        if last is not None and (branch_of(version) or 0) > last:
            yield _dropped(machine, address, label(gpu), last, version, line, "likely")
        else:
            yield _refusal(machine, gpu, version, line)
    if any(gpu.on_pci and _refused(gpu) for gpu in listed.values()):
        return  # the card that the module means is one of these
    for branch, line in _legacy(machine):
        product = _product(line)
        works = any(_names(line, gpu) for gpu in listed.values())
        if product is not None and product not in told and not works:
            told.add(product)
            yield _dropped(machine, "machine", product, branch, _version(machine, line), line, "likely")


def _in_log(address: str, pci_id: str, view: View) -> Gpu:
    """The card that a line of the log names, by what the catalog knows of its id."""
    ids = view.catalog.cards_of(pci_id) if view.catalog is not None else ()
    name = " or ".join(view.catalog.card(id).name for id in ids) if view.catalog is not None else ""
    only = ids[0] if len(ids) == 1 else None
    return Gpu(address=address, vendor="nvidia", pci_id=pci_id, name=name or None, catalog_gpu=only)


def _unsupported(machine: Machine) -> Iterator[tuple[str, str]]:
    """Version of the driver that calls a card unsupported, and its line; what still holds."""
    for _, line in log_lines(machine, "is not supported by the NVIDIA"):
        found = re.search(_UNSUPPORTED, line)
        if found is not None and _is_current(machine, found[1]):
            yield found[1], line


def _bound(gpu: Gpu) -> tuple[Evidence, ...]:
    return (driver_evidence(gpu),) if gpu.driver_read else ()


def _dropped(
    machine: Machine,
    subject: str,
    card: str,
    last: int,
    version: str | None,
    line: str | None,
    confidence: Confidence,
    bound: tuple[Evidence, ...] = (),
) -> Finding:
    if version is not None:
        text = "{card} has no driver: branch {last} is the last that drives it, and {version} is installed."
        step = "Install branch {last} (the latest {last}.x) in place of {version}."
    else:
        text = "{card} has no driver: branch {last} is the last that drives it, and a later one is installed."
        step = "Install branch {last} (the latest {last}.x) in place of the driver that is installed."
    message = say(text, card=card, last=last, version=version)
    remedy = (
        say(step, last=last, version=version),
        say("Hold it there, so that an update does not replace it: sudo apt-mark hold, or dnf versionlock."),
        say("If another card in this machine needs a newer branch, the two cannot work together: one must go."),
    )
    return _found(machine, subject, message, line, remedy, confidence, bound)


def _refusal(machine: Machine, gpu: Gpu, version: str, line: str, bound: tuple[Evidence, ...] = ()) -> Finding:
    message = say("The NVIDIA driver {version} says that it does not support {card}.", version=version, card=label(gpu))
    remedy = (
        say("If the card is newer than the driver, install the newest branch."),
        say("If it is older, install the last branch that drives it: 580 for Maxwell to Volta, 470 for Kepler."),
        say("If an equal card works under this driver, the message is wrong and the card is at fault."),
    )
    return _found(machine, gpu.address, message, line, remedy, "likely", bound)


def _found(
    machine: Machine,
    subject: str,
    message: str,
    line: str | None,
    remedy: tuple[str, ...],
    confidence: Confidence,
    bound: tuple[Evidence, ...],
) -> Finding:
    told = (log_evidence(machine.kernel_log, line),) if line is not None and machine.kernel_log is not None else ()
    version = _version(machine, None)
    loaded = (Evidence(source="NVIDIA driver", text=version),) if version is not None else ()
    refused = nvml_evidence(machine.nvml) if machine.nvml is not None and machine.nvml.status == "failed" else ()
    return finding(
        "driver-dropped-gpu",
        "error",
        subject,
        message,
        evidence=(*told, *loaded, *bound, *refused),
        remedy=remedy,
        confidence=confidence,
    )


def _version(machine: Machine, line: str | None) -> str | None:
    """Of the loaded module; else of the library, where there is one; else as the module said."""
    driver = machine.driver
    if driver is not None and driver.nvidia_version is not None:
        return driver.nvidia_version
    if driver is not None and driver.library_versions is not None and len(driver.library_versions) == 1:
        return driver.library_versions[0]
    found = re.search(_IGNORED, line or "") or re.search(_UNSUPPORTED, line or "")
    return found[1] if found else None


def _is_current(machine: Machine, version: str) -> bool:
    """Whether what a version said still holds: no other version is loaded by now."""
    loaded = machine.driver.nvidia_version if machine.driver is not None else None
    if loaded is None and machine.nvml is not None:
        loaded = machine.nvml.driver_version
    return loaded is None or loaded == version


def _told_legacy(machine: Machine, view: View, gpu: Gpu) -> tuple[int | None, str | None]:
    """The branch that the module itself names, and its line. It names the product and no address."""
    bare = [other for other in nvidia_on_pci(machine) if _refused(other)]
    for branch, line in _legacy(machine):
        if len(bare) == 1 or _names(line, gpu) or last_branch(gpu, view) == branch:
            return branch, line
    return None, None


def _legacy(machine: Machine) -> Iterator[tuple[int, str]]:
    """Legacy branch that the module names for a card, and its line; what still holds."""
    for number, line in log_lines(machine, "Legacy drivers"):
        legacy = re.search(_LEGACY, line)
        if legacy is None or machine.kernel_log is None:
            continue
        ignored = re.search(_IGNORED, " ".join(machine.kernel_log.lines[number : number + 4]))
        if ignored is None or _is_current(machine, ignored[1]):
            yield int(legacy[1]), line


def _product(line: str) -> str | None:
    found = re.search(r"The NVIDIA (.*?) GPU installed in", line)
    return found[1] if found is not None else None


def _names(line: str, gpu: Gpu) -> bool:
    """Whether the module's product name is that of the card."""
    product = _product(line)
    return product is not None and gpu.name is not None and product.casefold() in gpu.name.casefold()
