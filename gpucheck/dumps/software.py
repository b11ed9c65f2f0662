"""What surrounds a training: ``pip list`` and its like, ``printenv``, TensorFlow's start-up log.

Of packages and variables only those that matter are kept, whatever else the text holds.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from gpucheck.facts import Environment, Gap, Package, Parts, Software, TensorFlowLog
from gpucheck.readers.environment import FLAGS, WANTED, kept
from gpucheck.readers.software import is_wanted, normalised
from gpucheck.text import clean, say

# --- packages -----------------------------------------------------------------------------------

_HEAD = re.compile(r"Package +Version(?: .*)?|# packages in environment at \S.*:|# Name +Version +Build.*")
_FREEZE = re.compile(r"(?P<name>[A-Za-z0-9][\w.-]*)==(?P<version>\d[\w.+!-]*)")
_ROW = re.compile(r"(?P<name>[A-Za-z0-9][\w.-]*) +(?P<version>\d[\w.+!-]*)(?: .*)?")
_COMPANIONS = frozenset({"absl-py", "numpy", "protobuf"})
"""What TensorFlow brings along: a list without them went through a filter."""


def pip_list(text: str) -> Parts:
    """Packages, from ``pip list``, ``pip freeze`` or ``conda list``."""
    found: dict[str, Package] = {}
    names: set[str] = set()
    whole = False
    for line in map(str.strip, text.splitlines()):
        whole = whole or _HEAD.fullmatch(line) is not None
        row = _FREEZE.fullmatch(line) or _ROW.fullmatch(line)
        if row is None:
            continue
        name = normalised(row["name"])
        names.add(name)
        if is_wanted(name):
            found.setdefault(name, Package(name=name, version=row["version"]))
    complete = whole or bool(names & _COMPANIONS)
    packages = tuple(found[name] for name in sorted(found))
    if not packages and not complete:
        return Parts()
    return Parts(software=Software(packages=packages, packages_complete=complete))


# --- environment --------------------------------------------------------------------------------

_VARIABLE = re.compile(r"(?P<name>[A-Z_][A-Z0-9_]*)=(?P<value>.*)")
_USUAL = frozenset({"SHELL", "HOME", "PWD", "PATH", "SHLVL", "LOGNAME", "USER", "HOSTNAME", "OLDPWD", "TERM", "LANG"})
_WITH_BLANKS = frozenset({"XLA_FLAGS", "TF_XLA_FLAGS", "LD_LIBRARY_PATH"})


def printenv(text: str) -> Parts:
    """Variables, from ``printenv`` or ``env``. Where the usual ones are missing it went through a filter."""
    variables: dict[str, str] = {}
    for line in map(str.strip, text.splitlines()):
        if (found := _VARIABLE.fullmatch(line)) is not None:
            variables.setdefault(found["name"], found["value"])
    complete = len(_USUAL & variables.keys()) > 1
    facts = {name: value for name, value in kept(variables).items() if name in _WITH_BLANKS or " " not in value}
    if not facts and not complete:
        return Parts()
    return Parts(environment=Environment(variables=facts, variables_complete=complete))


def _is_variable(line: str) -> bool:
    found = _VARIABLE.fullmatch(line)
    if found is None or (" " in found["value"] and found["name"] not in _WITH_BLANKS):
        return False
    return found["name"] in WANTED | FLAGS | _USUAL


# --- TensorFlow's log ---------------------------------------------------------------------------

_FILES = (
    "gpu_device|cudart_stub|cpu_feature_guard|cuda_executor|cuda_gpu_executor|cuda_dnn|cuda_blas|cuda_fft|cuda_driver"
    "|cuda_diagnostics|dso_loader|gpu_backend_lib|gpu_utils|port|nvptx_compiler|stream_executor_impl"
)
_LINE = re.compile(
    r"(?:\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+: )?[IWEF] (?:\./)?(?:tensorflow|external)/\S+\.(?:cc|cpp|h):\d+\] ?"
    r"(?P<old>.*)"
    rf"|[IWEF]\d{{4}} \d\d:\d\d:\S+\s+\d+ (?:\S*/)?(?:{_FILES})\.cc:\d+\] ?(?P<new>.*)"
)
_FOLLOWS = (
    "Skipping registering GPU devices",
    "no kernel image is available",
    "CUDA_ERROR_",
    "libdevice not found at",
    "Could not load dynamic library",
)
"""Lines without a mark of their own that belong to the log."""
_MOST_LINES = 4000


def start_up_log(text: str) -> Parts:
    """Lines of TensorFlow's log that tell of libraries, devices and code."""
    lines: list[str] = []
    for line in map(str.strip, text.splitlines()):
        if (found := _LINE.search(line)) is not None:
            lines.append(clean(found["old"] if found["old"] is not None else found["new"]))
        elif any(words in line for words in _FOLLOWS):
            lines.append(clean(line))
    if not lines:
        how = say("No line of TensorFlow's log was understood.")
        return Parts(gaps=(Gap(fact="tensorflow_log", reason="unreadable", how=how),))
    return Parts(tensorflow_log=TensorFlowLog(lines=tuple(lines[:_MOST_LINES])))


# --- which is which -----------------------------------------------------------------------------

PARSERS = {"pip": pip_list, "printenv": printenv, "tensorflow-log": start_up_log}


def form_of(line: str) -> str | None:
    """Name of the form whose output a stripped line can begin."""
    if _LINE.match(line):
        return "tensorflow-log"
    if _HEAD.fullmatch(line) or _FREEZE.fullmatch(line):
        return "pip"
    return "printenv" if _is_variable(line) else None


def looks_like(text: str) -> bool:
    """Whether a line of the text is one that only these print."""
    return any(form_of(line.strip()) is not None for line in text.splitlines())


def parse(texts: dict[str, str]) -> Iterable[Parts]:
    """Parts of each form that is there."""
    return [parse(texts[name]) for name, parse in PARSERS.items() if name in texts]
