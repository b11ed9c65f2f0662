"""Ratios of run times, measured side by side in one run: what a command costs over what it needs.

Each pair runs alternately, so that whatever else the machine does hits both alike; the ratio is
that of the fastest runs. A second table says how a probe's time grows with the number of PCI functions,
over that of a machine that has nothing but the 16 GPUs. Nothing here fails: it prints, a person judges.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SIZES = (500, 1000, 2000)
"""PCI functions of the simulated machines, of which 16 are GPUs."""
ROUNDS = 9
VERDICTS_A_SECOND = 2000
"""Wanted of the advisor."""
PYTHON = sys.executable


@dataclass(frozen=True)
class Pair:
    """A command, what it is measured against, and the ratio that is wanted."""

    name: str
    command: list[str]
    base_name: str
    base: list[str]
    wanted: float
    rounds: int = ROUNDS


def gpucheck(*arguments: str) -> list[str]:
    return [PYTHON, "-m", "gpucheck", *arguments]


def python(code: str) -> list[str]:
    return [PYTHON, "-c", code]


PAIRS = [
    Pair("--version", gpucheck("--version"), "python -c pass", python("pass"), 3.0),
    Pair(
        "probe --json",
        gpucheck("probe", "--json"),
        "import typer, psutil, pynvml, pydantic",
        python("import typer, psutil, pynvml; from pydantic import BaseModel"),
        1.3,
    ),
    Pair(
        "advise --model R730 --json",
        gpucheck("advise", "--model", "R730", "--gpu", "P40", "--count", "2", "--json"),
        "import typer, pydantic",
        python("import typer; from pydantic import BaseModel"),
        1.4,
    ),
    Pair(
        "smoke --devices cpu:4 --json",
        gpucheck("smoke", "--devices", "cpu:4", "--json"),
        "import tensorflow",
        python("import tensorflow"),
        1.4,
        rounds=3,
    ),
    Pair(
        "smoke --devices cpu:4 --json",
        gpucheck("smoke", "--devices", "cpu:4", "--json"),
        "the same training written by hand",
        [PYTHON, str(ROOT / "scripts" / "bench_training.py"), "4"],
        1.15,
        rounds=5,
    ),
    Pair(
        "smoke --devices cpu:16 --json",
        gpucheck("smoke", "--devices", "cpu:16", "--json"),
        "import tensorflow",
        python("import tensorflow"),
        2.2,
        rounds=3,
    ),
]


# Without bytecode files our modules would be compiled in every run, and those of the libraries not.
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


def seconds(command: list[str]) -> float:
    start = time.perf_counter()
    done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False, env=ENVIRONMENT)
    taken = time.perf_counter() - start
    if command[0] == PYTHON and done.returncode > 1:  # a finding gives 1; what was not done has no time
        raise SystemExit(f"{' '.join(command)} ended with {done.returncode}")
    return taken


def measure(pair: Pair) -> tuple[float, float]:
    """Fastest run of the command and of its base, in seconds."""
    seconds(pair.command), seconds(pair.base)
    rounds = [(seconds(pair.command), seconds(pair.base)) for _ in range(pair.rounds)]
    return min(command for command, _ in rounds), min(base for _, base in rounds)


def others() -> list[Pair]:
    """Other programs that answer a part of the same question, where they are installed."""
    known = {"lshw": ["lshw", "-short"], "inxi": ["inxi", "-Fxz"], "gpustat": ["gpustat", "--json"]}
    return [
        Pair("probe --json", gpucheck("probe", "--json"), name, command, 1.0, rounds=3)
        for name, command in known.items()
        if shutil.which(command[0])
    ]


def growth() -> None:
    """How the time of a probe grows with the machine: a function should cost the same on a large one."""
    sys.path.insert(0, str(ROOT / "tests"))
    build = import_module("machines.build")

    print(f"\n{'functions':>9}{'seconds':>9}{'more':>8}{'ms a function':>15}{'ratio':>8}")
    with tempfile.TemporaryDirectory() as folder:
        trees = {size: build.as_tree(build.crowded(size).capture(), Path(folder, str(size))) for size in (0, *SIZES)}
        probes = {size: gpucheck("probe", "--from", str(tree), "--json") for size, tree in trees.items()}
        rounds = [{size: seconds(command) for size, command in probes.items()} for _ in range(ROUNDS)]
    fastest = {size: min(times[size] for times in rounds) for size in probes}
    first = (fastest[SIZES[0]] - fastest[0]) / SIZES[0]
    for size in SIZES:
        more = fastest[size] - fastest[0]
        print(f"{size:>9}{fastest[size]:>9.3f}{more:>8.3f}{1000 * more / size:>15.3f}{more / size / first:>8.2f}")


def matrix() -> None:
    """Verdicts a second over every model and card in the catalog, one to ten of it, in one process on one core."""
    from gpucheck.catalog import load
    from gpucheck.fit.plans import verdicts
    from gpucheck.fit.request import Order, Request, Wanted

    catalog, counts = load(), range(1, 11)
    servers = [catalog.server(id) for id in sorted(catalog.servers)]
    cards = [Wanted(catalog.card(id)) for id in sorted(catalog.cards)]
    start = time.process_time()
    found = sum(
        len(verdicts(Request(server=server, orders=(Order(card, 1),), catalog=catalog), counts))
        for server in servers
        for card in cards
    )
    rate = found / (time.process_time() - start)
    mark = "" if rate >= VERDICTS_A_SECOND else "  below"
    print(f"\n{len(servers)} models × {len(cards)} cards × {len(counts)} counts: {rate:.0f} verdicts a second{mark}")


FLEETS = (1000, 10_000)
"""Hosts of the folders whose report is measured."""
FLAT = 1.2
"""Wanted: peak memory of the largest over that of the smallest."""
_MEASURED = """
import resource, sys
from gpucheck.__main__ import main
sys.stdout = open('/dev/null', 'w')
try:
    main()
finally:
    sys.stderr.write(str(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss))
"""


def _fleet(folder: Path, hosts: int) -> None:
    """So many captures of one kind of machine; one in a hundred has a narrow link, one in a hundred lost a card."""
    golden = import_module("machines.golden").MACHINES
    build = import_module("machines.build")
    usual, narrow, fewer = (
        build.dump(golden[name]().capture()) for name in ("r730-two-p40", "r730-link-x8", "r730-no-driver")
    )
    for number in range(hosts):
        text = narrow if number % 100 == 17 else fewer if number % 100 == 71 else usual
        (folder / f"gpu{number:05}.json").write_text(text.replace("4000-8000-0000", f"4000-8000-{number:04x}"), "utf-8")


def fleet() -> None:
    """Captures a second and core, and the peak memory of the process that judges them."""
    sys.path.insert(0, str(ROOT / "tests"))
    print(f"\n{'hosts':>9}{'seconds':>9}{'a second and core':>19}{'MiB':>8}")
    peaks = []
    for hosts in FLEETS:
        with tempfile.TemporaryDirectory() as name:
            _fleet(Path(name), hosts)
            start, before = time.perf_counter(), os.times()
            command = [PYTHON, "-c", _MEASURED, "fleet", "report", name, "--json"]
            done = subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT, check=False)
            took, after = time.perf_counter() - start, os.times()
        used = after.children_user + after.children_system - before.children_user - before.children_system
        peaks.append(int(done.stderr) / 1024)
        print(f"{hosts:>9}{took:>9.2f}{hosts / used:>19.0f}{peaks[-1]:>8.1f}", flush=True)
    ratio = peaks[-1] / peaks[0]
    print(f"peak memory {ratio:.2f}, wanted {FLAT}{'' if ratio <= FLAT else '  above'}")


def main() -> None:
    print(f"{'command':<32}{'seconds':>9}  {'against':<42}{'seconds':>9}{'ratio':>8}{'wanted':>9}")
    for pair in [*PAIRS, *others()]:
        command, base = measure(pair)
        ratio = command / base
        mark = "" if ratio <= pair.wanted else "  above"
        print(
            f"{pair.name:<32}{command:>9.3f}  {pair.base_name:<42}{base:>9.3f}{ratio:>8.2f}{pair.wanted:>8.1f}{mark}",
            flush=True,
        )
    growth()
    matrix()
    fleet()


if __name__ == "__main__":
    main()
