"""Which PCI functions are GPUs: pure judgements over what was enumerated."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from gpucheck.facts import PciFunction
from gpucheck.text import say

GPU_CLASSES = frozenset({0x0300, 0x0302, 0x0380, 0x1200})
"""VGA, 3D and other display controllers, processing accelerators."""

_NVIDIA, _AMD, _AMD_CPU, _INTEL = 0x10DE, 0x1002, 0x1022, 0x8086

_BMC_VENDORS = frozenset(
    {
        0x1A03,  # ASPEED AST
        0x102B,  # Matrox G200 in iDRAC, iLO, Pilot, WPCM450
        0x18CA,  # XGI Z7, Z9, Z11
        0x126F,  # Silicon Motion SM7xx
    }
)
_BMC_DEVICES = frozenset(
    {
        (0x19E5, 0x1711),  # Huawei iBMC
        (0x1002, 0x515E),  # ATI ES1000
        (0x1002, 0x4752),  # ATI Rage XL
    }
)
_FPGA_VENDORS = frozenset({0x10EE, 0x1172})
"""Xilinx and Altera: their boards are processing accelerators too."""
_VIRTUAL_VENDORS = frozenset(
    {
        0x1234,  # QEMU, Bochs
        0x1AF4,  # virtio
        0x1B36,  # QXL
        0x15AD,  # VMware
        0x1414,  # Hyper-V and WSL
        0x80EE,  # VirtualBox
        0x1AB8,  # Parallels
    }
)
_VIRTUAL_DEVICES = frozenset(
    {
        (0x1013, 0x00B8),  # Cirrus GD 5446, as QEMU and Xen emulate it
        (0x1D0F, 0x1111),  # Amazon EC2
    }
)

DisplayKind = Literal["gpu", "bmc", "virtual", "processor", "same-card", "other"]

NOT_COUNTED: dict[DisplayKind, str] = {
    "bmc": "{address} ({id}) is the display of the server's management controller.",
    "virtual": "{address} ({id}) is a display that the hypervisor emulates.",
    "processor": "{address} ({id}) is part of the processor.",
    "same-card": "{address} ({id}) is a further function of the card at {card}.",
}
"""Why a display controller is not counted, as a template for :func:`gpucheck.text.say`."""


def kind_of_display(function: PciFunction, functions: Iterable[PciFunction] = ()) -> DisplayKind:
    """What a function is, as far as counting GPUs goes; ``other`` for what is no display at all.

    Args:
        function: The function in question.
        functions: All functions of the machine; without them an AMD processor's graphics cannot
            be told from a card.

    The rules, and where they can be wrong:

    * ``bmc``: the maker builds nothing else (ASPEED, Matrox since the G200, XGI, Silicon Motion), or
      the chip is a known one. A Matrox card for many screens is taken for it: it trains nothing.
    * ``virtual``: the maker's id belongs to a hypervisor.
    * ``processor``, Intel: a display at 0000:00:02, where Intel's graphics has always been, or an
      accelerator right on bus 0, which is the NPU. A card sits behind a root port. A virtual machine
      that shows a passed-through Intel card at that very address is misread.
    * ``other`` are FPGA boards too, which share the class of accelerators: Xilinx, Altera, and Intel,
      none of whose GPUs has that class.
    * ``processor``, AMD: graphics in the processor shares its device with functions of the vendor
      1022 (security processor, USB), which no card carries; older ones are at 0000:00:01.0 under an
      AMD host bridge. Chipset graphics from before 2012 is not recognised.
    """
    if function.class_id >> 8 not in GPU_CLASSES:
        return "other"
    ids = (function.vendor_id, function.device_id)
    if function.vendor_id in _VIRTUAL_VENDORS or ids in _VIRTUAL_DEVICES:
        return "virtual"
    if function.vendor_id in _BMC_VENDORS or ids in _BMC_DEVICES:
        return "bmc"
    if function.class_id >> 8 == 0x1200:
        if function.vendor_id == _INTEL:
            return "processor" if function.address.startswith("0000:00:") else "other"
        if function.vendor_id in _FPGA_VENDORS:
            return "other"
    elif _is_processor_graphics(function, functions):
        return "processor"
    return "gpu" if function.address.endswith(".0") else "same-card"


def _is_processor_graphics(function: PciFunction, functions: Iterable[PciFunction]) -> bool:
    if function.vendor_id == _INTEL:
        return function.address.startswith("0000:00:02.")
    if function.vendor_id != _AMD:
        return False
    device = function.address[:-1]
    at_old_place = function.address == "0000:00:01.0"
    return any(
        other.vendor_id == _AMD_CPU
        and (other.address.startswith(device) or (at_old_place and other.address == "0000:00:00.0"))
        for other in functions
    )


def gpu_functions(functions: Iterable[PciFunction]) -> tuple[PciFunction, ...]:
    """GPU functions of every vendor, one per GPU, in the order given; see :func:`kind_of_display`.

    Xeon Phi and other co-processors of class 0x0b40 are not GPUs; NVSwitches are not either.
    """
    known = tuple(functions)
    return tuple(function for function in known if kind_of_display(function, known) == "gpu")


def known_as(function: PciFunction) -> str:
    """Vendor and device id of a function; its name where a listing gives only that."""
    return function.pci_id or function.name or f"{function.vendor_id:04x}"


def why_not_counted(function: PciFunction, functions: Iterable[PciFunction] = ()) -> str | None:
    """A sentence on why a display controller is no GPU; None for a GPU and for what is no display."""
    template = NOT_COUNTED.get(kind_of_display(function, functions))
    if template is None:
        return None
    return say(template, address=function.address, id=known_as(function), card=f"{function.address[:-1]}0")


def vendor_of(function: PciFunction) -> Literal["nvidia", "amd", "intel", "other"]:
    """Vendor of a GPU by its PCI vendor id."""
    match function.vendor_id:
        case 0x10DE:
            return "nvidia"
        case 0x1002:
            return "amd"
        case 0x8086:
            return "intel"
    return "other"


def is_nvswitch(function: PciFunction) -> bool:
    """NVLink switch of an HGX or DGX board: NVIDIA, class 0x0680. Ids below 0x1000 are NVIDIA's old chipsets,
    whose network controllers are of that class too."""
    old = function.device_id is not None and function.device_id < 0x1000
    return function.vendor_id == _NVIDIA and function.class_id >> 8 == 0x0680 and not old
