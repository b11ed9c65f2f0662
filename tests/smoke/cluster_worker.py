"""One worker of a training on several hosts, with one fault: FAULT FORM RANK FOLDER [STEPS TIMEOUT].

FORM and RANK (or -) as for ``gpucheck smoke --cluster``; the fault hits worker 1 only. The document goes
to FOLDER/<rank>.json, what was announced to FOLDER/<rank>.txt; the exit code is the document's.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import psutil

from gpucheck.smoke.hosts import WORKER, cluster_of, smoke_on_hosts
from gpucheck.smoke.plan import DeviceRequest

FAULTY = Path(__file__).with_name("faulty_cluster_worker.py")
AT_STEP = 3


def main() -> int:
    fault, form, rank, folder, *numbers = sys.argv[1:]
    steps, timeout = [*numbers, *("5", "40")[len(numbers) :]]
    cluster = cluster_of(form, None if rank == "-" else int(rank))
    hit = cluster.rank == 1

    def progress(step: int, steps: int, phase: str) -> None:
        # Before TensorFlow joins the others it is missed by their parents only: their TensorFlow waits.
        when = ("import", 0) if fault == "terminated" else ("train", AT_STEP)
        if not hit or (phase, step) != when:
            return
        if fault == "parent-killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if fault == "child-killed":
            (child,) = psutil.Process().children()
            child.kill()
        if fault == "terminated":
            os.kill(os.getpid(), signal.SIGTERM)

    place = Path(folder) / str(cluster.rank)
    announced: list[str] = []
    command = (sys.executable, "-P", str(FAULTY), fault) if hit and fault in ("not-summed", "other-data") else WORKER
    report = smoke_on_hosts(
        cluster,
        DeviceRequest.parse("cpu:1"),
        None,
        steps=int(steps) + (hit and fault == "other-steps"),
        timeout=float(timeout),
        progress=progress,
        announce=announced.append,
        command=command,
    )
    place.with_suffix(".txt").write_text("\n".join(announced))
    place.with_suffix(".json").write_text(report.model_dump_json())
    return report.exit_code


sys.exit(main())
