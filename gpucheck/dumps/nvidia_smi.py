"""What nvidia-smi printed: its table, ``-q``, ``-q -x``, ``-L``, CSV of ``--query-gpu``, ``topo -m``, errors.

Every form is brought to the same shape first, a card's values by the names that the form gives them;
one table of names (:data:`_FIELDS`) turns them into facts. One text may hold several forms of one
machine: cards are joined by their address. The index is nvidia-smi's, or the place in the output
where it does not say one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple
from xml.parsers import expat

from gpucheck.facts import NVIDIA_SMI, SPEED_GTS, Gap, GapReason, Link, Nvml, NvmlGpu, Parts, Topology, pci_address
from gpucheck.nvml_codes import GPU_IS_LOST, LIBRARY_NOT_FOUND, meaning
from gpucheck.readers.nvml import clock_reasons
from gpucheck.text import clean, say

LONGEST = 400
"""Most characters of a line of nvidia-smi, but for XML."""

_ADDRESS = r"[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7]"


class _Field(NamedTuple):
    call: str
    """The NVML function that nvidia-smi asks."""
    names: tuple[str, ...]
    """In ``-q``, ``-q -x`` and CSV, from the newest to the oldest, in small letters."""


def _field(call: str, *names: str) -> _Field:
    return _Field(call, names)


_FIELDS = {
    "address": _field("nvmlDeviceGetPciInfo", "pci/bus id", "pci/pci_bus_id", "pci.bus_id", "gpu_bus_id"),
    "name": _field("nvmlDeviceGetName", "product name", "product_name", "name", "gpu_name"),
    "uuid": _field("nvmlDeviceGetUUID", "gpu uuid", "uuid", "gpu_uuid"),
    "minor": _field("nvmlDeviceGetMinorNumber", "minor number", "minor_number"),
    "pci_id": _field("nvmlDeviceGetPciInfo", "pci/device id", "pci/pci_device_id", "pci.device_id"),
    "subsystem_id": _field("nvmlDeviceGetPciInfo", "pci/sub system id", "pci/pci_sub_system_id", "pci.sub_device_id"),
    "memory_total_bytes": _field(
        "nvmlDeviceGetMemoryInfo",
        "fb memory usage/total",
        "memory usage/total",
        "fb_memory_usage/total",
        "memory.total",
    ),
    "memory_used_bytes": _field(
        "nvmlDeviceGetMemoryInfo", "fb memory usage/used", "memory usage/used", "fb_memory_usage/used", "memory.used"
    ),
    "bar1_bytes": _field("nvmlDeviceGetBAR1MemoryInfo", "bar1 memory usage/total", "bar1_memory_usage/total"),
    "compute_capability": _field("nvmlDeviceGetCudaComputeCapability", "compute_cap"),
    "vbios": _field("nvmlDeviceGetVbiosVersion", "vbios version", "vbios_version"),
    "link.width": _field(
        "nvmlDeviceGetCurrPcieLinkWidth",
        "pci/gpu link info/link width/current",
        "pci/pci_gpu_link_info/link_widths/current_link_width",
        "pcie.link.width.current",
    ),
    "link.max_width": _field(
        "nvmlDeviceGetMaxPcieLinkWidth",
        "pci/gpu link info/link width/max",
        "pci/pci_gpu_link_info/link_widths/max_link_width",
        "pcie.link.width.max",
    ),
    "link.speed_gts": _field(
        "nvmlDeviceGetCurrPcieLinkGeneration",
        "pci/gpu link info/pcie generation/current",
        "pci/pci_gpu_link_info/pcie_gen/current_link_gen",
        "pcie.link.gen.current",
        "pcie.link.gen.gpucurrent",
    ),
    "link.max_speed_gts": _field(
        "nvmlDeviceGetMaxPcieLinkGeneration",
        "pci/gpu link info/pcie generation/max",
        "pci/pci_gpu_link_info/pcie_gen/max_link_gen",
        "pcie.link.gen.max",
    ),
    "temperature_c": _field(
        "nvmlDeviceGetTemperature",
        "temperature/gpu current temp",
        "temperature/gpu",
        "temperature/gpu_temp",
        "temperature.gpu",
    ),
    "power_watts": _field(
        "nvmlDeviceGetPowerUsage",
        "gpu power readings/instantaneous power draw",
        "gpu power readings/average power draw",
        "gpu power readings/power draw",
        "power readings/power draw",
        "gpu_power_readings/instant_power_draw",
        "gpu_power_readings/average_power_draw",
        "gpu_power_readings/power_draw",
        "power_readings/power_draw",
        "power.draw.instant",
        "power.draw",
        "power.draw.average",
    ),
    "power_limit_watts": _field(
        "nvmlDeviceGetEnforcedPowerLimit",
        "gpu power readings/current power limit",
        "power readings/enforced power limit",
        "power readings/power limit",
        "gpu_power_readings/current_power_limit",
        "power_readings/enforced_power_limit",
        "power_readings/power_limit",
        "enforced.power.limit",
        "power.limit",
    ),
    "power_default_limit_watts": _field(
        "nvmlDeviceGetPowerManagementDefaultLimit",
        "gpu power readings/default power limit",
        "power readings/default power limit",
        "gpu_power_readings/default_power_limit",
        "power_readings/default_power_limit",
        "power.default_limit",
    ),
    "power_max_limit_watts": _field(
        "nvmlDeviceGetPowerManagementLimitConstraints",
        "gpu power readings/max power limit",
        "power readings/max power limit",
        "gpu_power_readings/max_power_limit",
        "power_readings/max_power_limit",
        "power.max_limit",
    ),
    "performance_state": _field("nvmlDeviceGetPerformanceState", "performance state", "performance_state", "pstate"),
    "utilization_percent": _field(
        "nvmlDeviceGetUtilizationRates", "utilization/gpu", "utilization/gpu_util", "utilization.gpu"
    ),
    "sm_clock_mhz": _field("nvmlDeviceGetClockInfo", "clocks/sm", "clocks/sm_clock", "clocks.current.sm", "clocks.sm"),
    "sm_max_clock_mhz": _field("nvmlDeviceGetMaxClockInfo", "max clocks/sm", "max_clocks/sm_clock", "clocks.max.sm"),
    "clock_reasons": _field(
        "nvmlDeviceGetCurrentClocksEventReasons",
        "clocks_event_reasons.active",
        "clocks_throttle_reasons.active",
        "clocks event reasons",
        "clocks throttle reasons",
        "clocks_event_reasons",
        "clocks_throttle_reasons",
    ),
    "ecc_enabled": _field("nvmlDeviceGetEccMode", "ecc mode/current", "ecc_mode/current_ecc", "ecc.mode.current"),
    "ecc_volatile_corrected": _field("nvmlDeviceGetTotalEccErrors", "ecc.errors.corrected.volatile.total"),
    "ecc_volatile_uncorrected": _field("nvmlDeviceGetTotalEccErrors", "ecc.errors.uncorrected.volatile.total"),
    "ecc_aggregate_corrected": _field("nvmlDeviceGetTotalEccErrors", "ecc.errors.corrected.aggregate.total"),
    "ecc_aggregate_uncorrected": _field("nvmlDeviceGetTotalEccErrors", "ecc.errors.uncorrected.aggregate.total"),
    "retired_pages_single_bit": _field(
        "nvmlDeviceGetRetiredPages",
        "retired pages/single bit ecc",
        "retired_pages/multiple_single_bit_retirement/retired_count",
        "retired_pages.single_bit_ecc.count",
        "retired_pages.sbe",
    ),
    "retired_pages_double_bit": _field(
        "nvmlDeviceGetRetiredPages",
        "retired pages/double bit ecc",
        "retired_pages/double_bit_retirement/retired_count",
        "retired_pages.double_bit.count",
        "retired_pages.dbe",
    ),
    "retired_pages_pending": _field(
        "nvmlDeviceGetRetiredPagesPendingStatus",
        "retired pages/pending page blacklist",
        "retired pages/pending",
        "retired_pages/pending_blacklist",
        "retired_pages/pending_retirement",
        "retired_pages.pending",
    ),
    "remapped_rows_corrected": _field(
        "nvmlDeviceGetRemappedRows",
        "remapped rows/correctable error",
        "remapped_rows/remapped_row_corr",
        "remapped_rows.correctable",
        "remapped rows",
        "remapped_rows",
    ),
    "remapped_rows_uncorrected": _field(
        "nvmlDeviceGetRemappedRows",
        "remapped rows/uncorrectable error",
        "remapped_rows/remapped_row_unc",
        "remapped_rows.uncorrectable",
        "remapped rows",
        "remapped_rows",
    ),
    "remapped_rows_pending": _field(
        "nvmlDeviceGetRemappedRows",
        "remapped rows/pending",
        "remapped_rows/remapped_row_pending",
        "remapped_rows.pending",
        "remapped rows",
        "remapped_rows",
    ),
    "remapped_rows_failed": _field(
        "nvmlDeviceGetRemappedRows",
        "remapped rows/remapping failure occurred",
        "remapped_rows/remapped_row_failure",
        "remapped_rows.failure",
        "remapped rows",
        "remapped_rows",
    ),
    "mig_enabled": _field("nvmlDeviceGetMigMode", "mig mode/current", "mig_mode/current_mig", "mig.mode.current"),
    "fabric_state": _field("nvmlDeviceGetGpuFabricInfoV", "fabric/state", "fabric.state"),
    "persistence": _field("nvmlDeviceGetPersistenceMode", "persistence mode", "persistence_mode"),
    "pcie_replays": _field("nvmlDeviceGetPcieReplayCounter", "pci/replays since reset", "pci/replay_counter"),
}
"""Fact to where it stands."""

_COLUMNS = frozenset(
    {"index", "count", "driver_version", "timestamp", "serial", "fan.speed", "memory.free", "utilization.memory"}
    | {name for entry in _FIELDS.values() for name in entry.names if " " not in name and "/" not in name}
)

_UNITS = {"": 0, "b": 0, "kib": 10, "kb": 10, "mib": 20, "mb": 20, "gib": 30, "gb": 30}
_FLAGS = {"enabled": True, "on": True, "yes": True, "disabled": False, "off": False, "no": False}
_FABRIC_STATES: dict[str, Literal["not-started", "in-progress", "completed"]] = {
    "not started": "not-started",
    "in progress": "in-progress",
    "completed": "completed",
}
_REASON_BITS = {
    "idle": 0x1,
    "gpu idle": 0x1,
    "applications clocks setting": 0x2,
    "sw power cap": 0x4,
    "hw slowdown": 0x8,
    "sync boost": 0x10,
    "sw thermal slowdown": 0x20,
    "hw thermal slowdown": 0x40,
    "hw power brake slowdown": 0x80,
    "display clock setting": 0x100,
    "display clocks setting": 0x100,
}
_REASON = re.compile(r"clocks[ _](?:event|throttle)[ _]reasons/(?:.*/)?(?:clocks_(?:event|throttle)_reason_)?([^/]+)")
_ECC_ADDEND = re.compile(
    r"ecc[ _]errors/(?P<span>volatile|aggregate)/"
    r"(?:single[ _]bit/total|(?P<double>double[ _]bit/total)|[sd]ram[ _](?P<un>un)?correctable.*)"
)

_CODES = {
    "driver/library version mismatch": 18,
    "driver not loaded": 9,
    "gpu access blocked by the operating system": 17,
    "gpu is lost": GPU_IS_LOST,
    "gpu requires reset": 16,
    "insufficient external power": 8,
    "insufficient permissions": 4,
    "not enough permissions": 4,
    "shared library not found": LIBRARY_NOT_FOUND,
    "function not found": 13,
    "not found": 6,
    "not supported": 3,
    "timeout": 10,
    "unknown error": 999,
}
"""nvidia-smi's words for nvmlReturn_t."""

_NO_DRIVER = re.compile(r"NVIDIA-SMI has failed because it couldn.?t communicate with (?:the )?NVIDIA driver")
_NO_LIBRARY = re.compile(r"NVIDIA-SMI couldn.?t find libnvidia-ml\.so library")
_NOT_STARTED = re.compile(r"Failed to initialize NVML: (.+)")
_NO_HANDLE = re.compile(rf"Unable to determine the device handle for (?:GPU|gpu) ?(?:\d+: ?)?({_ADDRESS}): ?(.+)")
_NO_DEVICES = re.compile(r"No devices were found", re.IGNORECASE)
_NO_TOOL = re.compile(
    r"(?:[-\w/.]{1,40}: )*(?:line \d+: )?"
    r"(?:nvidia-smi: (?:command )?not found|command not found: nvidia-smi|Command '?nvidia-smi'?,? not found"
    r"|nvidia-smi ?[：:] ?(?:未找到命令|\w+ (?:nicht gefunden|introuvable|не найдена|non trovato)|no se encontró))"
)
_ERRORS = (_NO_DRIVER, _NO_LIBRARY, _NOT_STARTED, _NO_HANDLE, _NO_DEVICES, _NO_TOOL)
_LIBRARY_VERSION = re.compile(r"NVML library version: (\d+(?:\.\d+)+)")

_HEAD = re.compile(r"NVIDIA-SMI\s+(?:version\s+)?(\d[\d.]*)\s.*?(?:Driver|KMD) Version: ?([\d.]+)")
_CUDA = re.compile(r"CUDA(?: UMD)? Version: ?(\d[\d.]*)")
_ROW = re.compile(
    r"\|\s*(?P<index>\d+)\.?\s+(?P<name>\S.*?)(?:\s+(?P<mode>On|Off|N/A|ERR!|WDDM|TCC|MCDM))?\s*"
    rf"\|\s*(?P<address>{_ADDRESS})\s"
)
_BORDER = re.compile(r"\s*[+|][-=+|]{30,}[+|]\s*")
_PROCESS = re.compile(r"\|\s+(\d+)\s+(?:\S+\s+\S+\s+)?(\d+)\s+(C|G|C\+G|M\+C)\s")
_LOG = re.compile(r"=+NVSMI LOG=+")
_GPU = re.compile(rf"GPU ({_ADDRESS})\s*")
_LOG_LINE = re.compile(r"( *)(\S.*?)\s*(?::(?: (.*))?)?")
_NAMED = re.compile(r"GPU (?P<index>\d{1,4}): (?P<name>\S.*?) \(UUID: (?P<uuid>GPU-\S{4,60})\)")
_UUID = re.compile(r"GPU-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)
_XML = re.compile(r"<nvidia_smi_log>.*?(?:</nvidia_smi_log>|\Z)", re.DOTALL)
_MATRIX_HEAD = re.compile(r"\s+GPU\d+\s.*\bCPU Affinity")


@dataclass(slots=True)
class _Card:
    """One card in one listing: its values by the names of that form."""

    values: dict[str, str] = field(default_factory=dict)
    processes: tuple[int, ...] | None = None
    mig_devices: int | None = None

    def sum_up(self) -> None:
        """Add what ``--query-gpu`` gives as one value and other forms in several lines."""
        bits: int | None = None
        sums: dict[str, int | str] = {}
        for path, value in self.values.items():
            if found := _REASON.fullmatch(path):
                if value in ("Active", "Not Active"):
                    bit = _REASON_BITS.get(found[1].replace("_", " "), 0)
                    bits = (bits or 0) | (bit if value == "Active" else 0)
            elif found := _ECC_ADDEND.fullmatch(path):
                kind = "uncorrected" if found["double"] or found["un"] else "corrected"
                name = f"ecc.errors.{kind}.{found['span']}.total"
                if value.isascii() and value.isdecimal():
                    known = sums.get(name)
                    sums[name] = int(value) + (known if isinstance(known, int) else 0)
                else:
                    sums.setdefault(name, value)
        for name, total in sums.items():
            self.values.setdefault(name, str(total))
        if bits is not None:
            self.values.setdefault("clocks_event_reasons.active", hex(bits))

    @property
    def address(self) -> str | None:
        text = next((self.values[name] for name in _FIELDS["address"].names if name in self.values), "")
        return pci_address(text)

    @property
    def uuid(self) -> str | None:
        """None also where people have put crosses in its place."""
        text = self.text("uuid")
        return text if text is not None and _UUID.fullmatch(text) else None

    def text(self, fact: str) -> str | None:
        """The first of a fact's values that says something."""
        entry = _FIELDS[fact]
        for name in entry.names:
            value = self.values.get(name, "").strip(" []")
            if value and value not in {"N/A", "ERR!"} and _code(value) is None:
                return value
        return None

    def is_named(self, fact: str) -> bool:
        return any(name in self.values for name in _FIELDS[fact].names)

    @property
    def errors(self) -> dict[str, int]:
        found: dict[str, int] = {}
        for fact, entry in _FIELDS.items():
            if self.text(fact) is None:
                codes = (_code(self.values[name].strip(" []")) for name in entry.names if name in self.values)
                code = next((code for code in codes if code is not None), None)
                if code is not None:
                    found[entry.call] = code
        return found


@dataclass(slots=True)
class _Listing:
    """What one form of output lists."""

    cards: list[_Card] = field(default_factory=list)
    attached: int | None = None
    """How many cards there are, where the form says so."""
    driver_version: str | None = None
    cuda_version: str | None = None
    complete: bool = True


def looks_like(text: str) -> bool:
    """Whether a line of the text is one that only nvidia-smi prints."""
    return any(map(starts, text.splitlines()))


def starts(line: str) -> bool:
    """Whether the line can be the first that tells nvidia-smi's output."""
    words = line.strip()
    if any(error.match(words) for error in _ERRORS) or _LOG.match(words) or words == "<nvidia_smi_log>":
        return True
    return bool(
        _HEAD.search(line)
        or _ROW.match(line)
        or _NAMED.fullmatch(words)
        or _GPU.fullmatch(words)
        or _MATRIX_HEAD.match(_plain(line))
        or _columns(line)
    )


def parse(text: str) -> Parts:
    """Facts from nvidia-smi's output.

    ``nvml`` is None, with a gap, when the text says nothing about NVML: the tool is not installed, or
    the text holds only the matrix of ``topo -m``.
    """
    lines = [_plain(line) for line in text.splitlines() if len(line) <= LONGEST]
    forms = (_logs(lines), _documents(text), _tables(lines), _comma_separated(lines), _names(lines))
    listings = [found for form in forms for found in form if found.cards or found.attached is not None]
    for listing in listings:
        for card in listing.cards:
            card.sum_up()
    cards = _joined(listings)
    failures = list(_failures(lines))
    matrix = _matrix(lines)
    gaps: list[Gap] = []
    nvml: Nvml | None = None
    if listings:
        nvml = _listed(listings, cards, failures)
        gaps = list(_gaps(cards, nvml))
    elif any(failure.address is not None for failure in failures):
        # NVML started, and nvidia-smi gave up at this card: of the others nothing is known.
        nvml = _listed([_Listing(complete=False)], [], failures)
        gaps = list(_gaps([], nvml))
    elif found := _NO_DEVICES.search(text):
        nvml = Nvml(status="ok", call=NVIDIA_SMI, message=clean(found[0]), gpus=())
    elif failures:
        nvml = failures[0].nvml(_first(_LIBRARY_VERSION, text))
        reason: GapReason = "file-absent" if nvml.status == "library-absent" else "unreadable"
        gaps = [Gap(fact="nvml", reason=reason, how=nvml.message or "")]
    elif _NO_TOOL.search(text):
        how = say("nvidia-smi is not installed there; it comes with NVIDIA's driver.")
        gaps = [Gap(fact="nvml", reason="tool-absent", how=how)]
    elif not matrix:
        gaps = [Gap(fact="nvml", reason="not-in-input", how=say("nvidia-smi -q > smi.txt"))]
    topology = None
    if matrix:
        addresses = {gpu.index: gpu.address for gpu in (nvml.gpus or () if nvml else ())}
        topology = _topology(matrix, addresses)
        if topology.addresses[0].isdecimal():
            how = say("topo -m names cards by index only: add the output of nvidia-smi, which has their addresses.")
            gaps.append(Gap(fact="topology", reason="not-in-input", how=how))
    return Parts(nvml=nvml, topology=topology, gaps=tuple(gaps))


def _plain(line: str) -> str:
    return re.sub(r"\x1b\[[0-9;]*m", "", line) if "\x1b" in line else line


def _first(pattern: re.Pattern[str], text: str) -> str | None:
    found = pattern.search(text)
    return found[1] if found else None


def _code(value: str) -> int | None:
    """nvmlReturn_t of nvidia-smi's words; None where they are none of an error."""
    small = value.lower().strip(" .")
    return next((code for words, code in _CODES.items() if small.startswith(words)), None)


# --- failures -----------------------------------------------------------------------------------


class _Failure(NamedTuple):
    call: str
    code: int | None
    message: str
    address: str | None = None

    def nvml(self, library: str | None) -> Nvml:
        return Nvml(
            status="library-absent" if self.code == LIBRARY_NOT_FOUND else "failed",
            call=self.call,
            code=self.code,
            message=self.message,
            nvml_version=library,
        )


def _failures(lines: Iterable[str]) -> Iterator[_Failure]:
    for line in lines:
        if found := _NO_HANDLE.search(line):
            call = "nvmlDeviceGetHandleByPciBusId"
            yield _Failure(call, _code(found[2]), clean(found[0]), pci_address(found[1]))
        elif found := _NOT_STARTED.search(line):
            yield _Failure(NVIDIA_SMI, _code(found[1]), clean(found[0]))
        elif found := _NO_DRIVER.search(line):
            yield _Failure(NVIDIA_SMI, 9, clean(found[0]))
        elif found := _NO_LIBRARY.search(line):
            yield _Failure(NVIDIA_SMI, LIBRARY_NOT_FOUND, clean(found[0]))


# --- forms --------------------------------------------------------------------------------------


def _tables(lines: Iterable[str]) -> Iterator[_Listing]:
    """Plain nvidia-smi: two or three lines for each card, between borders, and the processes."""
    listing: _Listing | None = None
    row: _Card | None = None
    by_index: dict[int, _Card] = {}
    pids: dict[int, list[int]] | None = None
    for line in lines:
        if head := _HEAD.search(line):
            if listing is not None:
                yield _closed(listing, row, by_index)
            listing, row, by_index, pids = _Listing(driver_version=head[2]), None, {}, None
            listing.cuda_version = _first(_CUDA, line)
        elif found := _ROW.match(line):
            listing = listing or _Listing()
            row = _Card()
            name = found["name"]
            row.values = {"index": found["index"], "pci.bus_id": found["address"]}
            if not name.endswith(("...", "…")):  # cut to the width of its column
                row.values["name"] = name
            if found["mode"] in ("On", "Off"):
                row.values["persistence_mode"] = found["mode"]
            errors = line.rstrip().rstrip("|").rpartition("|")[2].strip()
            if errors.isascii() and errors.isdecimal():
                row.values["ecc.errors.uncorrected.volatile.total"] = errors
            listing.cards.append(row)
            by_index[int(found["index"])] = row
        elif _BORDER.fullmatch(line):
            if pids is not None and line.strip().startswith("+"):  # the last border of all
                for index, card in by_index.items():
                    card.processes = tuple(dict.fromkeys(pids.get(index, ())))
            row = None
        elif listing is not None and "Processes:" in line:
            pids = {}
        elif pids is not None and (process := _PROCESS.match(line.strip())):
            if "C" in process[3]:
                pids.setdefault(int(process[1]), []).append(int(process[2]))
        elif row is not None and line.count("|") == 4:
            _second_lines(row, line.strip().split("|")[1:-1])
    if listing is not None:
        yield _closed(listing, row, by_index)


def _closed(listing: _Listing, row: _Card | None, by_index: dict[int, _Card]) -> _Listing:
    """A table that is cut within a card, or does not count from 0, may lack cards."""
    listing.complete = row is None and bool(by_index) and sorted(by_index) == list(range(len(by_index)))
    return listing


def _second_lines(row: _Card, cells: list[str]) -> None:
    own, memory, use = cells
    for name, pattern, cell in (
        ("temperature.gpu", r"\s(\d+) ?C\s", own),
        ("pstate", r"\s(P\d+)\s", own),
        ("power.draw", r"\s(\d+(?:\.\d+)?) ?W\s*/", own),
        ("enforced.power.limit", r"/\s*(\d+(?:\.\d+)?) ?W\s", own),
        ("memory.used", r"(\d+ ?Mi?B)\s*/", memory),
        ("memory.total", r"/\s*(\d+ ?Mi?B)\s", memory),
        ("utilization.gpu", r"\s(\d+) ?%\s", use),
        ("mig.mode.current", r"\s(Enabled|Disabled)\*?\s*$", use),
    ):
        if found := re.search(pattern, f"{cell} "):
            row.values[name] = found[1]


def _logs(lines: Iterable[str]) -> Iterator[_Listing]:
    """``nvidia-smi -q``: key and value, the level told by indentation alone."""
    listing: _Listing | None = None
    card: _Card | None = None
    levels: list[tuple[int, str]] = []
    pids: list[int] = []
    pid = 0
    for line in lines:
        if _LOG.search(line):
            if listing is not None:
                yield listing
            listing, card = None, None
        elif found := _GPU.fullmatch(line):
            # Without its head the text does not say how many cards there are.
            listing = listing or _Listing(complete=False)
            card = _Card({"pci/bus id": found[1]})
            listing.cards.append(card)
            levels, pids = [], []
        elif not line.strip() or (pair := _LOG_LINE.fullmatch(line)) is None:
            continue
        elif card is None:
            key, value = pair[2].lower(), (pair[3] or "").strip()
            if key in ("driver version", "attached gpus"):
                listing = listing or _Listing()
            if listing is not None and key == "driver version":
                listing.driver_version = value
            elif listing is not None and key == "cuda version":
                listing.cuda_version = value if value[:1].isdigit() else None
            if listing is not None and key == "attached gpus" and value.isascii() and value.isdecimal():
                listing.attached = int(value)
        elif not pair[1]:
            card = None  # the output of something else
        else:
            indent, key = len(pair[1]), pair[2].lower()
            while levels and levels[-1][0] >= indent:
                levels.pop()
            path = "/".join([*(name for _, name in levels), key])
            levels.append((indent, key))
            value = (pair[3] or "").strip()
            if value:
                card.values.setdefault(path, value)
            if path == "mig device":
                card.mig_devices = (card.mig_devices or 0) + (value != "None")
            if path == "processes" and value in ("", "None"):
                card.processes = ()
            elif key == "process id" and value.isascii() and value.isdecimal():
                pid = int(value)
            elif key == "type" and path.startswith("processes/") and "C" in value:
                pids.append(pid)
                card.processes = tuple(dict.fromkeys(pids))
    if listing is not None:
        yield listing


def _documents(text: str) -> Iterator[_Listing]:
    """``nvidia-smi -q -x``. Only the root element is parsed, so that no document type is read and
    no entity can be declared; a cut document gives what stands before the cut."""
    for found in _XML.finditer(text):
        reader = _XmlReader()
        yield reader.read(found[0])


class _XmlReader:
    """Elements to paths below ``gpu``."""

    def __init__(self) -> None:
        self.listing = _Listing()
        self._path: list[str] = []
        self._text: list[str] = []
        self._card: _Card | None = None
        self._pid: int | None = None

    def read(self, text: str) -> _Listing:
        parser = expat.ParserCreate()
        parser.StartElementHandler = self._start
        parser.EndElementHandler = self._end
        parser.CharacterDataHandler = self._text.append
        try:
            parser.Parse(text.encode(), True)
        except expat.ExpatError:
            self.listing.complete = self.listing.attached is not None
        return self.listing

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        self._path.append(name)
        self._text.clear()
        if len(self._path) == 2 and name == "gpu":
            self._card = _Card({"pci/pci_bus_id": attributes.get("id", "")})
            self.listing.cards.append(self._card)

    def _end(self, name: str) -> None:
        value = "".join(self._text).strip()
        path = "/".join(self._path[2:10])
        if self._card is None:
            self._head(name, value)
        elif len(self._path) == 2:
            self._card = None
        elif path == "mig_devices/mig_device":
            self._card.mig_devices = (self._card.mig_devices or 0) + 1
        elif path == "mig_devices":
            self._card.mig_devices = self._card.mig_devices or 0
        elif path == "processes":
            self._card.processes = self._card.processes or (() if value in ("", "None") else None)
        elif path.startswith("processes/"):
            self._process(name, value)
        elif value:
            self._card.values.setdefault(path, value)
        self._path.pop()
        self._text.clear()

    def _head(self, name: str, value: str) -> None:
        if name == "driver_version":
            self.listing.driver_version = value
        elif name == "cuda_version":
            self.listing.cuda_version = value if value[:1].isdigit() else None
        elif name == "attached_gpus" and value.isascii() and value.isdecimal():
            self.listing.attached = int(value)

    def _process(self, name: str, value: str) -> None:
        if name == "pid":
            self._pid = int(value) if value.isascii() and value.isdecimal() else None
        elif name == "type" and "C" in value and self._pid is not None and self._card is not None:
            self._card.processes = tuple(dict.fromkeys((*(self._card.processes or ()), self._pid)))


def _names(lines: Iterable[str]) -> Iterator[_Listing]:
    """``nvidia-smi -L``: index, name and UUID. A line that is cut, or a count that has holes, may lack cards."""
    begun = [line.strip() for line in lines if re.match(r"\s*GPU \d{1,4}: ", line)]
    found = [named for line in begun if (named := _NAMED.fullmatch(line))]
    if found:
        cards = [_Card({name: row[name] for name in ("index", "name", "uuid")}) for row in found]
        indexes = list(dict.fromkeys(int(row["index"]) for row in found))
        yield _Listing(cards, complete=len(found) == len(begun) and indexes == list(range(len(indexes))))


def _columns(line: str) -> list[tuple[str, str]] | None:
    """Names and units of a CSV head; None where the line is none."""
    if "," not in line or not line.isascii():
        return None
    columns = []
    for word in line.split(","):
        found = re.fullmatch(r"\s*([a-z][a-z0-9_.]*)(?: \[([^\]]*)\])?\s*", word)
        if found is None:
            return None
        columns.append((found[1], found[2] or ""))
    known = sum(name in _COLUMNS for name, _ in columns)
    return columns if known >= 2 else None


def _comma_separated(lines: Iterable[str]) -> Iterator[_Listing]:
    """``--query-gpu=… --format=csv``, with its head, with or without units."""
    columns: list[tuple[str, str]] | None = None
    listing = _Listing()
    for line in lines:
        if head := _columns(line):
            if listing.cards:
                yield listing
            columns, listing = head, _Listing()
        elif columns is not None:
            cells = [cell.strip() for cell in line.split(",")]
            if len(cells) != len(columns):
                columns = None if line.strip() else columns
                continue
            values = {
                name: f"{cell} {unit}" if unit and re.fullmatch(r"\d+(?:\.\d+)?", cell) else cell
                for (name, unit), cell in zip(columns, cells, strict=True)
            }
            listing.cards.append(_Card(values))
            listing.driver_version = values.get("driver_version") or listing.driver_version
            if (count := values.get("count", "")).isdecimal():
                listing.attached = int(count)
    if listing.cards:
        yield listing


# --- facts --------------------------------------------------------------------------------------


def _joined(listings: Sequence[_Listing]) -> list[_Card]:
    """One entry for each card, in the order of their index where one is said.

    Cards without an address are joined by UUID or index. A list of all cards that says no index has them in
    the order of the index.
    """
    cards: dict[str, _Card] = {}
    keys: dict[str, str] = {}
    """Index or UUID to key in ``cards``."""
    for listing in listings:
        if listing.attached == len(listing.cards) and not any("index" in card.values for card in listing.cards):
            keys |= {str(place): card.address for place, card in enumerate(listing.cards) if card.address is not None}
    every = (card for listing in listings for card in listing.cards)
    for card in sorted(every, key=lambda card: card.address is None):
        names = [name for name in (card.uuid, card.values.get("index")) if name is not None]
        key = card.address or next((keys[name] for name in names if name in keys), f"nameless {len(cards)}")
        for name in names:
            keys.setdefault(name, key)
        known = cards.setdefault(key, card)
        if known is not card:
            known.values = {**card.values, **known.values}
            known.processes = card.processes if known.processes is None else known.processes
            known.mig_devices = card.mig_devices if known.mig_devices is None else known.mig_devices
    found = list(cards.values())
    if all(card.values.get("index", "").isdecimal() for card in found):
        found.sort(key=lambda card: int(card.values["index"]))
    return found


def _listed(listings: list[_Listing], cards: list[_Card], failures: list[_Failure]) -> Nvml:
    gpus = [_gpu(place, card) for place, card in enumerate(cards)]
    attached = max((listing.attached or 0 for listing in listings), default=0)
    # What is attached and not shown, cut off or left out by -i, keeps its place, as NVML counts it.
    gpus += [NvmlGpu(index=index) for index in range(len(gpus), min(attached, 1024))]
    for failure in failures:
        if failure.address is None or failure.code is None:
            continue
        errors = {failure.call: failure.code}
        place = next((place for place, gpu in enumerate(gpus) if gpu.address == failure.address), None)
        if place is None:
            gpus.append(NvmlGpu(index=len(gpus), address=failure.address, errors=errors))
        else:
            gpus[place] = gpus[place].model_copy(update={"errors": {**gpus[place].errors, **errors}})
    return Nvml(
        status="ok",
        driver_version=next((listing.driver_version for listing in listings if listing.driver_version), None),
        cuda_version=next((listing.cuda_version for listing in listings if listing.cuda_version), None),
        gpus=tuple(gpus),
        complete=any(listing.complete or listing.attached is not None for listing in listings),
    )


def _gpu(place: int, card: _Card) -> NvmlGpu:
    index = card.values.get("index", "")
    return NvmlGpu(
        index=int(index) if index.isascii() and index.isdecimal() else place,
        address=card.address,
        name=card.text("name"),
        uuid=card.uuid,
        minor=_number(card, "minor"),
        pci_id=_pci_id(card.text("pci_id")),
        subsystem_id=_pci_id(card.text("subsystem_id")),
        memory_total_bytes=_bytes(card.text("memory_total_bytes")),
        memory_used_bytes=_bytes(card.text("memory_used_bytes")),
        bar1_bytes=_bytes(card.text("bar1_bytes")),
        compute_capability=card.text("compute_capability"),
        vbios=card.text("vbios"),
        link=Link(
            width=_number(card, "link.width") or None,
            max_width=_number(card, "link.max_width") or None,
            speed_gts=SPEED_GTS.get(_number(card, "link.speed_gts") or 0),
            max_speed_gts=SPEED_GTS.get(_number(card, "link.max_speed_gts") or 0),
        ),
        temperature_c=_number(card, "temperature_c"),
        power_watts=_watts(card, "power_watts"),
        power_limit_watts=_watts(card, "power_limit_watts"),
        power_default_limit_watts=_watts(card, "power_default_limit_watts"),
        power_max_limit_watts=_watts(card, "power_max_limit_watts"),
        performance_state=_number(card, "performance_state"),
        utilization_percent=_number(card, "utilization_percent"),
        sm_clock_mhz=_number(card, "sm_clock_mhz"),
        sm_max_clock_mhz=_number(card, "sm_max_clock_mhz"),
        clock_reasons=_clock_reasons(card.text("clock_reasons")),
        ecc_enabled=_flag(card, "ecc_enabled"),
        ecc_volatile_corrected=_number(card, "ecc_volatile_corrected"),
        ecc_volatile_uncorrected=_number(card, "ecc_volatile_uncorrected"),
        ecc_aggregate_corrected=_number(card, "ecc_aggregate_corrected"),
        ecc_aggregate_uncorrected=_number(card, "ecc_aggregate_uncorrected"),
        retired_pages_single_bit=_number(card, "retired_pages_single_bit"),
        retired_pages_double_bit=_number(card, "retired_pages_double_bit"),
        retired_pages_pending=_flag(card, "retired_pages_pending"),
        remapped_rows_corrected=_number(card, "remapped_rows_corrected"),
        remapped_rows_uncorrected=_number(card, "remapped_rows_uncorrected"),
        remapped_rows_pending=_flag(card, "remapped_rows_pending"),
        remapped_rows_failed=_flag(card, "remapped_rows_failed"),
        mig_enabled=_flag(card, "mig_enabled"),
        mig_devices=card.mig_devices if _flag(card, "mig_enabled") else None,
        fabric_state=_fabric_state(card),
        persistence=_flag(card, "persistence"),
        pcie_replays=_number(card, "pcie_replays"),
        processes=card.processes,
        errors=card.errors,
    )


def _number(card: _Card, fact: str) -> int | None:
    """Of ``29 C``, ``16x``, ``P8``, ``0 %``, ``210 MHz``."""
    found = re.fullmatch(r"P?(\d{1,15})(?:x| ?(?:[C%]|MHz))?", card.text(fact) or "", re.ASCII)
    return int(found[1]) if found else None


def _watts(card: _Card, fact: str) -> float | None:
    found = re.fullmatch(r"(\d{1,6}(?:\.\d{1,6})?)(?: W)?", card.text(fact) or "", re.ASCII)
    return float(found[1]) if found else None


def _bytes(text: str | None) -> int | None:
    found = re.fullmatch(r"(\d{1,12}) ?([A-Za-z]*)", text or "", re.ASCII)
    shift = _UNITS.get(found[2].lower()) if found else None
    return None if found is None or shift is None else int(found[1]) << shift


def _flag(card: _Card, fact: str) -> bool | None:
    return _FLAGS.get((card.text(fact) or "").lower())


def _fabric_state(card: _Card) -> Literal["not-started", "in-progress", "completed"] | None:
    """None also where it ended with an error: the fabric manager did not answer, or refused."""
    status = next((card.values[name] for name in ("fabric/status", "fabric.status") if name in card.values), "Success")
    state = _FABRIC_STATES.get((card.text("fabric_state") or "").lower())
    return None if state == "completed" and status.lower() != "success" else state


def _clock_reasons(text: str | None) -> tuple[str, ...] | None:
    """Of ``0x0000000000000001``."""
    found = re.fullmatch(r"0x[0-9A-Fa-f]{1,16}", text or "")
    return clock_reasons(int(found[0], 16)) if found else None


def _pci_id(text: str | None) -> str | None:
    """``0x1B3810DE`` packs device and vendor."""
    found = re.fullmatch(r"(?:0x)?([0-9A-Fa-f]{4})([0-9A-Fa-f]{4})", text or "")
    return f"{found[2]}:{found[1]}".lower() if found else None


def _gaps(cards: list[_Card], nvml: Nvml) -> Iterator[Gap]:
    absent = [fact for fact in _FIELDS if not any(card.is_named(fact) for card in cards)]
    if absent:
        how = say(
            "Not in the text: {facts}. nvidia-smi -q and "
            "nvidia-smi --query-gpu=pci.bus_id,compute_cap --format=csv hold them.",
            facts=", ".join(absent),
        )
        yield Gap(fact="nvml.gpus", reason="not-in-input", how=how)
    if not nvml.complete:
        how = say("The text does not show how many GPUs NVML lists: give nvidia-smi's output from its first line on.")
        yield Gap(fact="nvml.complete", reason="not-in-input", how=how)
    gpus = nvml.gpus or ()
    for place in range(len(cards), len(gpus)):
        if gpus[place].address is None:
            how = say("The text says that there is one more GPU and does not show it: nvidia-smi -q > smi.txt")
            yield Gap(fact=f"nvml.gpus.{place}", reason="not-in-input", how=how)
    for place, card in enumerate(cards):
        fact = f"nvml.gpus.{place}" if card.address is None else f"gpus.{card.address}.nvml"
        codes: dict[int, list[str]] = {}
        refused = []
        for name, entry in _FIELDS.items():
            if card.text(name) is None and card.is_named(name):
                if (code := card.errors.get(entry.call)) is None:
                    refused.append(name)
                else:
                    codes.setdefault(code, []).append(name)
        if lacking := [name for name in _FIELDS if name not in absent and not card.is_named(name)]:
            how = say("Not in the text for this card: {facts}.", facts=", ".join(lacking))
            yield Gap(fact=fact, reason="not-in-input", how=how)
        if odd := [name for name in _FIELDS if card.text(name) is not None and _value(gpus[place], name) is None]:
            how = say("Not understood: {facts}.", facts=", ".join(odd))
            yield Gap(fact=fact, reason="unreadable", how=how)
        if refused:
            how = say("nvidia-smi says N/A for {facts}.", facts=", ".join(refused))
            yield Gap(fact=fact, reason="not-supported", how=how)
        for code, names in codes.items():
            template = "Not read: {facts}. NVML returned {code}: {meaning}."
            how = say(template, facts=", ".join(names), code=code, meaning=meaning(code))
            yield Gap(fact=fact, reason="not-supported" if code == 3 else "unreadable", how=how)


def _value(gpu: NvmlGpu, fact: str) -> object:
    """Value of a fact by its dotted name."""
    value: object = gpu
    for name in fact.split("."):
        value = getattr(value, name)
    return value


# --- topo -m ------------------------------------------------------------------------------------


def _matrix(lines: Iterable[str]) -> dict[int, dict[int, str]]:
    """Class of each pair of indexes in ``topo -m``, old and new layout, tabs or blanks."""
    columns: list[str] = []
    rows: dict[int, dict[int, str]] = {}
    for line in lines:
        if _MATRIX_HEAD.match(line):
            columns = line.partition("CPU Affinity")[0].split()
            rows = {}
        elif columns and (found := re.match(r"GPU(\d+)\s", line)):
            cells = line.split()[1 : len(columns) + 1]
            rows[int(found[1])] = {
                int(column[3:]): cell
                for column, cell in zip(columns, cells, strict=False)
                if re.fullmatch(r"GPU\d+", column) and re.fullmatch(r"X|PIX|PXB|PHB|NODE|SOC|SYS|NV\d+", cell)
            }
    return rows


def _topology(matrix: dict[int, dict[int, str]], addresses: dict[int, str | None]) -> Topology:
    """Rows named by address, or all of them by index where an index has no address."""
    found = {index: addresses.get(index) for index in matrix}
    known = [address for address in found.values() if address is not None]
    # SOC is what SYS was called before 2017.
    words = {"SOC": "SYS"}
    rows = tuple(tuple(words.get(c, c) for c in (row.get(index, "?") for index in matrix)) for row in matrix.values())
    return Topology(addresses=tuple(known if len(known) == len(found) else map(str, found)), matrix=rows)
