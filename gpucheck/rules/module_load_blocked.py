"""NVIDIA's kernel module is there, but this kernel may not load it.

What it means
A module for the NVIDIA driver lies on the disk, and the running kernel refuses it: it carries no
signature that the firmware's keys vouch for, it was built for another kernel, or a setting keeps it
from being loaded.

How we know
The kernel log tells a refused signature, a wrong version magic or symbols of another kernel. Without
the log: the module lies in the folders of other kernels and not in that of the running one; a file
in /etc/modprobe.d or the kernel command line names it; or Secure Boot is on, the module is installed
and it is not loaded, which is only a possible cause.

Why it matters
No card has a driver, and installing the driver again changes nothing.

What to do
Signature: enrol the key with which the distribution signed the module (mokutil --import, then
confirm on the blue screen at the next boot), install the distribution's signed module, or turn Secure
Boot off in the firmware setup. Another kernel: install the headers of the running kernel and let DKMS
build the module, or boot the kernel that it was built for. Setting: take the line away and rebuild
the initial RAM disk.

When it is wrong
The lines about signatures name no module: another one may have been refused. "Module verification
failed ... tainting kernel" refuses nothing. A module that may not load by itself can still be loaded
by hand, and on laptops that is often meant.

Sources
https://docs.kernel.org/admin-guide/module-signing.html
https://wiki.debian.org/SecureBoot (keys of DKMS)
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from gpucheck.facts import Driver, Gpu, Machine
from gpucheck.findings import Confidence, Evidence, Finding, NextTest, Reading, finding
from gpucheck.rules import View
from gpucheck.rules._shared import (
    BELOW_THE_DRIVER,
    driver_evidence,
    explained,
    labels,
    log_evidence,
    log_lines,
    module_evidence,
    module_loaded,
    subject,
    without_driver,
)
from gpucheck.text import plural, say

NEEDS: tuple[str, ...] = ("gpus", "driver")

NOUVEAU = "nouveau"
"""Takes a card that NVIDIA's module did not get."""

_SIGNATURE = (
    r"(?i:loading of (?:unsigned module|module with un\w+ (?:key|crypto)) is rejected)"
    r"|Lockdown: .*unsigned module loading is restricted"
)
_OTHER_KERNEL = r"nvidia: (?:version magic |disagrees about version of symbol |Unknown symbol )"
_RESCUE = frozenset({"nomodeset", "recovery", "single", "rescue", "emergency"})
"""Words on the kernel command line of an entry that is for repair."""
_ON_COMMAND_LINE = r"(?:^|\s)((?:module_blacklist|modprobe\.blacklist)=(?:\S*,)?nvidia(?:,\S*)?)(?=\s|$)"


def secure_boot(machine: Machine) -> bool | None:
    """Whether Secure Boot is on, from the firmware or from what the kernel said of it."""
    if machine.driver is not None and machine.driver.secure_boot is not None:
        return machine.driver.secure_boot
    for _, line in log_lines(machine, "Secure boot ", "locked down from EFI Secure Boot"):
        if "Secure boot disabled" in line:
            return False
        if "Secure boot enabled" in line or "locked down" in line:
            return True
    return None


def _waits(machine: Machine) -> Driver | None:
    """The driver where its module is known not to be loaded although a card needs it."""
    driver = machine.driver
    if driver is None or driver.loaded_modules is None or not without_driver(machine, NOUVEAU):
        return None
    return None if module_loaded(machine) else driver


def lacks(machine: Machine) -> Iterator[str]:
    """What could tell why the module is not loaded."""
    driver = _waits(machine)
    if driver is not None and driver.nvidia_module_installed is not False:
        if driver.nvidia_module_installed is None:
            yield "driver.nvidia_module_installed"
        if secure_boot(machine) is None:
            yield "driver.secure_boot"
        if machine.kernel_log is None:
            yield "kernel_log"


def check(machine: Machine, view: View) -> Iterator[Finding]:
    """At most one finding, for all cards: a module is refused for all of them."""
    driver = _waits(machine)
    below = explained(view.found, machine, BELOW_THE_DRIVER)
    cards = [gpu for gpu in without_driver(machine, NOUVEAU) if gpu.address not in below]
    if driver is None or not cards:
        return
    if driver.nvidia_module_installed:
        found = (
            _of_other_kernel_by_log(machine, driver, cards)
            or _unsigned(machine, cards)
            or _blacklisted(driver, cards)
            or _perhaps_unsigned(machine, cards)
        )
    else:
        found = _for_other_kernels(driver, cards)
    if found is not None:
        yield found


def _made(
    cards: list[Gpu],
    message: str,
    evidence: tuple[Evidence, ...],
    remedy: tuple[str, ...],
    confidence: Confidence,
    next_test: tuple[NextTest, ...] = (),
) -> Finding:
    return finding(
        "module-load-blocked",
        "error",
        subject(cards),
        message,
        evidence=(*evidence, *(driver_evidence(gpu) for gpu in cards)),
        remedy=remedy,
        next_test=next_test,
        confidence=confidence,
    )


def _said(machine: Machine, pattern: str, *words: str) -> tuple[Evidence, ...]:
    """The last two different lines of the kernel log that match."""
    lines = dict.fromkeys(line for _, line in log_lines(machine, *words) if re.search(pattern, line))
    return tuple(log_evidence(machine.kernel_log, line) for line in list(lines)[-2:] if machine.kernel_log is not None)


def _of_other_kernel_by_log(machine: Machine, driver: Driver, cards: list[Gpu]) -> Finding | None:
    told = _said(machine, _OTHER_KERNEL, "nvidia: ")
    if not told:
        return None
    message = plural(
        len(cards),
        "The kernel refuses NVIDIA's module, which was built for another kernel, so {cards} has no driver.",
        "The kernel refuses NVIDIA's module, which was built for another kernel, so {cards} have no driver.",
    )
    # A symbol may also be missing because the kernel was built without what the module wants.
    sure = any("Unknown symbol" not in evidence.text for evidence in told)
    return _made(cards, say(message, cards=labels(cards)), told, _rebuild(driver), "certain" if sure else "likely")


def _rebuild(driver: Driver) -> tuple[str, ...]:
    kernel = driver.kernel_release or "$(uname -r)"
    return (
        say(
            "Install the headers of kernel {kernel} and let DKMS build the module: sudo dkms autoinstall", kernel=kernel
        ),
        say(
            "If that fails, read why in /var/lib/dkms/nvidia/*/build/make.log: an old driver may not fit a new kernel."
        ),
        say("Or boot the kernel that the module was built for, and make it the default."),
    )


def _boot_it(driver: Driver) -> Iterator[str]:
    """Steps where the module was built for a newer kernel, which is there: the one that runs was not meant."""
    newer = [kernel for kernel in driver.module_kernels or () if _order(kernel) > _order(driver.kernel_release or "")]
    if not newer or driver.kernel_release is None:
        return
    yield say("Boot kernel {kernel}, for which the module is built.", kernel=max(newer, key=_order))
    odd = [word for word in (driver.kernel_command_line or "").split() if word in _RESCUE]
    if odd:
        yield say(
            "The machine was started with {options} on the kernel command line, as for repair: choose the normal entry "
            "in the boot menu.",
            options=", ".join(odd),
        )
    yield say(
        "Or build it for the kernel that runs: install the headers of {kernel}, then sudo dkms autoinstall",
        kernel=driver.kernel_release,
    )


def _order(release: str) -> tuple[int, ...]:
    """Sort key of a kernel's release: its numbers."""
    return tuple(map(int, re.findall(r"\d+", release)[:5]))


def _sign(machine: Machine) -> tuple[str, ...]:
    return (
        say(
            "Enrol the key that signed the module: sudo mokutil --import /var/lib/shim-signed/mok/MOK.der (Debian: "
            "/var/lib/dkms/mok.pub), reboot, and choose Enroll MOK on the screen that comes up."
        ),
        say("Or install the module that the distribution signs itself, where it has one for this kernel."),
        say("Or turn Secure Boot off in the firmware setup."),
    )


def _unsigned(machine: Machine, cards: list[Gpu]) -> Finding | None:
    told = _said(machine, _SIGNATURE, "oading of", "Lockdown")
    if not told:
        return None
    message = plural(
        len(cards),
        "The kernel refuses modules whose signature it does not trust; NVIDIA's is installed and not loaded, so "
        "{cards} has no driver.",
        "The kernel refuses modules whose signature it does not trust; NVIDIA's is installed and not loaded, so "
        "{cards} have no driver.",
    )
    evidence = (*told, *_secure_boot_evidence(machine), *module_evidence(machine))
    return _made(cards, say(message, cards=labels(cards)), evidence, _sign(machine), "likely", _load_test())


def _secure_boot_evidence(machine: Machine) -> tuple[Evidence, ...]:
    return (Evidence(source="UEFI", text=say("Secure Boot is on")),) if secure_boot(machine) else ()


def _perhaps_unsigned(machine: Machine, cards: list[Gpu]) -> Finding | None:
    """Only a guess, and not for cards that nouveau took: that explains itself."""
    if not secure_boot(machine) or any(gpu.driver is not None for gpu in cards):
        return None
    message = plural(
        len(cards),
        "NVIDIA's module is installed but not loaded, and Secure Boot is on: perhaps the kernel does not trust its "
        "signature. {cards} has no driver.",
        "NVIDIA's module is installed but not loaded, and Secure Boot is on: perhaps the kernel does not trust its "
        "signature. {cards} have no driver.",
    )
    evidence = (*_secure_boot_evidence(machine), *module_evidence(machine))
    return _made(cards, say(message, cards=labels(cards)), evidence, _sign(machine), "possible", _load_test())


def _load_test() -> tuple[NextTest, ...]:
    return (
        NextTest(
            do=say("Load the module by hand: sudo modprobe nvidia"),
            outcomes=(
                Reading(
                    seen=say("Key was rejected by service, or: required key not available"),
                    means=say("Secure Boot refuses its signature."),
                ),
                Reading(
                    seen=say("Exec format error, or: invalid module format"), means=say("Built for another kernel.")
                ),
                Reading(seen=say("No such device"), means=say("The module found no card that it drives.")),
                Reading(seen=say("Nothing, and the card works"), means=say("Nobody had loaded it.")),
            ),
        ),
    )


def _blacklisted(driver: Driver, cards: list[Gpu]) -> Finding | None:
    option = re.search(_ON_COMMAND_LINE, driver.kernel_command_line or "")
    listed = "nvidia" in (driver.blacklisted_modules or ())
    if option is None and not listed:
        return None
    if option is not None:
        told = Evidence(source="/proc/cmdline", text=option[1])
    else:
        told = Evidence(source="/etc/modprobe.d", text=say("A file there blacklists the module nvidia"))
    message = plural(
        len(cards),
        "A setting keeps the kernel from loading NVIDIA's module, so {cards} has no driver.",
        "A setting keeps the kernel from loading NVIDIA's module, so {cards} have no driver.",
    )
    remedy = (
        say("Find the setting: grep -r nvidia /etc/modprobe.d /lib/modprobe.d /proc/cmdline"),
        say(
            "Take it away, rebuild the initial RAM disk (sudo update-initramfs -u, or sudo dracut --force) and reboot."
        ),
        say("On a laptop with two graphics, switch with its own tool instead: sudo prime-select nvidia"),
    )
    return _made(cards, say(message, cards=labels(cards)), (told,), remedy, "likely")


def _for_other_kernels(driver: Driver, cards: list[Gpu]) -> Finding | None:
    if driver.nvidia_module_installed is None or not driver.module_kernels:
        return None
    kernels = ", ".join(driver.module_kernels)
    running = driver.kernel_release or say("another one")
    message = plural(
        len(cards),
        "NVIDIA's module is built for kernel {kernels}, but {running} runs, so {cards} has no driver.",
        "NVIDIA's module is built for kernel {kernels}, but {running} runs, so {cards} have no driver.",
    )
    told = Evidence(source="/lib/modules", text=say("nvidia module for: {kernels}", kernels=kernels))
    text = say(message, kernels=kernels, running=running, cards=labels(cards))
    return _made(cards, text, (told,), tuple(_boot_it(driver)) or _rebuild(driver), "certain")
