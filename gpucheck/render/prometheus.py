"""The gate's answer as metrics, for the textfile collector of node_exporter: through prometheus_client.

A value that was not read has no sample: 0 would be a statement.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from gpucheck.gate import COUNTERS, unconfirmed
from gpucheck.rules._shared import cards_of
from gpucheck.rules.gpu_count_mismatch import unusable

if TYPE_CHECKING:
    from gpucheck.checking import CheckReport
    from gpucheck.facts import Gpu, NvmlGpu

_CARD = ("address", "slot", "name")
_COUNTED = (
    ("uncorrectable", "Memory errors that could not be corrected, over the card's life.", COUNTERS["uncorrectable"]),
    ("retired_pages", "Memory pages taken out of use.", COUNTERS["retired_pages"]),
    ("remapped_rows", "Memory rows replaced by spare ones.", COUNTERS["remapped_rows"]),
)


def _of(gpu: Gpu, value: Callable[[NvmlGpu], int | None]) -> int | None:
    return value(gpu.nvml) if gpu.nvml is not None else None


def check(report: CheckReport) -> str:
    """The text form of all metrics, version 0.0.4, which textfile collectors read."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collected(report))
    text: bytes = generate_latest(registry)
    return text.decode("utf-8")


class _Collected(Collector):
    """One document's metrics."""

    def __init__(self, report: CheckReport) -> None:
        self._report = report

    def describe(self) -> list[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        report = self._report
        state = GaugeMetricFamily("gpucheck_verdict", "1 for the verdict of the last check.", labels=("verdict",))
        for verdict in ("pass", "fail", "unknown"):
            state.add_metric((verdict,), verdict == report.verdict)
        yield state
        moment = datetime.fromisoformat(report.time).timestamp()
        yield GaugeMetricFamily("gpucheck_last_check_timestamp_seconds", "When the last check was made.", value=moment)
        tries = len(report.attempts)
        yield GaugeMetricFamily("gpucheck_tries", "Tries that the last check took.", value=tries)
        info = GaugeMetricFamily("gpucheck_build_info", "Version of gpucheck.", labels=("version",))
        info.add_metric((report.gpucheck,), 1)
        yield info
        yield self._outcomes()
        yield self._counts()
        yield self._findings()
        yield from self._cards()
        yield from self._training()

    def _outcomes(self) -> Metric:
        made = GaugeMetricFamily("gpucheck_checks", "Questions of the policy, by outcome.", labels=("outcome",))
        for outcome in ("pass", "fail", "unknown"):
            made.add_metric((outcome,), sum(row.outcome == outcome for row in self._report.checks))
        return made

    def _counts(self) -> Metric:
        counts = self._report.probe.counts
        made = GaugeMetricFamily("gpucheck_gpus", "GPUs on each level that was looked at.", labels=("level",))
        levels = {"pci": counts.pci, "device_files": counts.device_files, "nvml": counts.nvml}
        levels["expected"] = counts.expected.n if counts.expected is not None else None
        for level, count in levels.items():
            if count is not None:
                made.add_metric((level,), count)
        return made

    def _findings(self) -> Metric:
        labels = ("name", "code", "severity", "subject")
        made = GaugeMetricFamily("gpucheck_finding", "1 for each finding.", labels=labels)
        smoke = self._report.smoke
        found = [*self._report.probe.findings, *(smoke.findings if smoke is not None else ())]
        for row in dict.fromkeys((f.name, f.code, f.severity, f.subject) for f in found):
            made.add_metric(row, 1)
        return made

    def _cards(self) -> Iterator[Metric]:
        gpus, report = self._report.probe.machine.gpus or (), self._report.probe
        bad = {
            address
            for finding in report.findings
            if finding.severity == "error"
            for address in cards_of(finding, report.machine)
        }
        unsure = {gpu.address for gpu in gpus if unconfirmed(report.machine, gpu)}
        unsure |= unusable(report.machine, report.findings)
        healthy = [None if gpu.address in unsure - bad else gpu.address not in bad for gpu in gpus]
        counted = [(key, text, [_of(gpu, counter) for gpu in gpus]) for key, text, counter in _COUNTED]
        families: list[tuple[str, str, Sequence[float | None]]] = [
            ("healthy", "1 for a GPU that can be used, 0 for one that an error is about.", healthy),
            ("link_lanes", "Lanes that the link has.", [gpu.link.width for gpu in gpus]),
            ("link_max_lanes", "Lanes that the card has.", [gpu.link.max_width for gpu in gpus]),
            ("memory_bytes", "Memory of the GPU.", [_of(gpu, lambda seen: seen.memory_total_bytes) for gpu in gpus]),
            *((f"memory_{key}", text, counts) for key, text, counts in counted),
        ]
        for name, about, values in families:
            made = GaugeMetricFamily(f"gpucheck_gpu_{name}", about, labels=_CARD)
            for gpu, value in zip(gpus, values, strict=True):
                if value is not None:
                    made.add_metric((gpu.address, gpu.slot or "", gpu.name or gpu.pci_id or ""), value)
            yield made

    def _training(self) -> Iterator[Metric]:
        report = self._report.smoke
        if report is None:
            return
        places = {gpu.address: gpu for gpu in self._report.probe.machine.gpus or ()}
        used = GaugeMetricFamily("gpucheck_training_used", "1 for a device that did its part.", labels=_CARD)
        speed = GaugeMetricFamily(
            "gpucheck_training_examples_per_second", "Of the device alone, in the last training.", labels=_CARD
        )
        for device in report.devices:
            gpu = places.get(device.address or "")
            labels = (device.address or device.device or "", (gpu.slot if gpu else None) or "", device.name or "")
            used.add_metric(labels, device.used)
            if device.examples_per_second is not None:
                speed.add_metric(labels, device.examples_per_second)
        yield used
        yield speed
        proves = report.proves_gpu
        yield GaugeMetricFamily("gpucheck_training_proves_gpus", "1 where every GPU passed the training.", value=proves)
