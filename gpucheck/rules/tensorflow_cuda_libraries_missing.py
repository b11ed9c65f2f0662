"""TensorFlow finds no CUDA libraries.

What it means
TensorFlow was built for CUDA, but one or more of the libraries that it opens at its start are not
there in the version that it wants. One that is missing is enough: then it registers no GPU at all.

How we know
Its build information names the CUDA and cuDNN version. Looked for are the nvidia-* packages beside it,
the names in the cache of the dynamic loader and in the folders of LD_LIBRARY_PATH. Nothing is opened.
A start-up log names the library itself.

Why it matters
NVML and nvidia-smi show every card in order; the training runs on the CPU, many times slower, and
often nobody notices. "Could not find cuda drivers on your machine" is this too: it is about the
library libcudart, not about the driver.

What to do
pip install "tensorflow[and-cuda]" brings every library in the right version. TensorFlow 2.16 does not
look into the folders of these packages by itself: take a later one, or name the folders in
LD_LIBRARY_PATH. A library that the log calls missing may be there and lack another one: the name
behind "dlerror" counts.

When it is wrong
Libraries in a folder that is named only in the start-up file of another shell or job are not seen.
The Python that was looked at is the one that runs gpucheck; another may train.

Sources
https://github.com/tensorflow/tensorflow/issues/63362 (2.16 does not find what pip installed)
https://github.com/tensorflow/tensorflow/issues/62328 (a message that misleads)
https://github.com/NVIDIA/tensorflow/issues/110 (the library behind dlerror)
https://github.com/conda-forge/tensorflow-feedstock/issues/420 (libdevice)
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from gpucheck.facts import Machine, Package
from gpucheck.findings import Confidence, Finding, NextTest, Reading, Severity, finding
from gpucheck.rules import View
from gpucheck.rules import _tensorflow as tf
from gpucheck.text import plural, say

NEEDS: tuple[str, ...] = ()

LIBRARIES: tuple[tuple[str, str, dict[int, tuple[str, ...]]], ...] = (
    ("libcudart", "cuda-runtime", {11: ("11.0",), 12: ("12",)}),
    ("libcublas", "cublas", {11: ("11",), 12: ("12",)}),
    ("libcublasLt", "cublas", {11: ("11",), 12: ("12",)}),
    ("libcufft", "cufft", {11: ("10",), 12: ("11",)}),
    ("libcusolver", "cusolver", {11: ("10", "11"), 12: ("11",)}),
    ("libcusparse", "cusparse", {11: ("11",), 12: ("12",)}),
)
"""What TensorFlow opens at its start: library, package that brings it, CUDA's number to the library's
(two of them where minor versions differ). cuDNN counts by itself."""

_UNREADABLE_BY = (2, 16)
"""Minor version that does not look into the folders of the nvidia-* packages."""
_OPENED = re.compile(r"Could not load dynamic library '([^']+)'; dlerror: ([^:\s]+): cannot open shared object file")


def lacks(machine: Machine) -> Iterator[str]:
    """Packages; and the system's libraries where these may have what the packages lack."""
    yield from tf.lacks(machine)
    if tf.cards(machine) and tf.installed(machine) is not None:
        assert machine.software is not None
        if machine.software.libraries is None:
            yield "software.libraries"


def check(machine: Machine, view: View) -> Iterator[Finding]:
    """What the log says counts before what packages show. XLA's library is a matter of its own."""
    if tf.is_cuda_build(machine, view) is not False:
        yield from _logged(machine) or _packages(machine, view)
    yield from _libdevice(machine)


# --- log ----------------------------------------------------------------------------------------


def _logged(machine: Machine) -> tuple[Finding, ...]:
    if not tf.may_have_card(machine):
        return ()
    refused = tf.log_lines(machine, "Cannot dlopen some GPU libraries", "Skipping registering GPU devices")
    stub = tf.log_lines(machine, "Could not find cuda drivers on your machine")
    named = tf.log_lines(machine, "Could not load dynamic library")
    if not refused and not stub:
        return ()  # a single library may be one that nothing needs, such as TensorRT's
    inner = list(dict.fromkeys(found[2] for line in named if (found := _OPENED.search(line))))
    missing = ", ".join(inner)
    if missing:
        message = say(
            "TensorFlow registers no GPU, because it cannot open {libraries}: driver and cards are not at fault.",
            libraries=missing,
        )
    elif refused:
        message = say("TensorFlow registers no GPU, because it cannot open one of the CUDA libraries.")
    else:
        message = say("TensorFlow uses no GPU, because it does not find the library libcudart of CUDA.")
    seen = bool(tf.cards(machine))
    severity: Severity = "error" if seen else "warning"
    confidence: Confidence = "possible" if not seen else "certain" if refused or missing else "likely"
    return (
        finding(
            "tensorflow-cuda-libraries-missing",
            severity,
            "TensorFlow",
            message,
            evidence=tf.log_evidence([*named, *stub, *refused]),
            remedy=_remedy(),
            next_test=() if confidence == "certain" else (_which_package(),),
            confidence=confidence,
        ),
    )


def _which_package() -> NextTest:
    return NextTest(
        do=say("List what is installed: python -m pip list | grep -i -e tensorflow -e nvidia"),
        outcomes=(
            Reading(
                seen=say("tensorflow, and no nvidia-* package"),
                means=say("The CUDA libraries were never installed: tensorflow[and-cuda] brings them."),
            ),
            Reading(
                seen=say("tensorflow-cpu"), means=say("A package without GPU support: take it away, then install.")
            ),
            Reading(
                seen=say("tensorflow and nvidia-* packages"),
                means=say("The versions do not belong together, or 2.16 does not look for them there."),
            ),
        ),
    )


def _libdevice(machine: Machine) -> Iterator[Finding]:
    lines = tf.log_lines(machine, "Can't find libdevice directory", "libdevice not found at")
    if lines and tf.may_have_card(machine):
        yield finding(
            "tensorflow-cuda-libraries-missing",
            "error" if any("libdevice not found at" in line for line in lines) else "warning",
            "XLA",
            say("XLA does not find libdevice.10.bc, which it needs to compile kernels: what it compiles will fail."),
            evidence=tf.log_evidence(lines),
            remedy=(
                say("Install the package that holds it: pip install nvidia-cuda-nvcc-cu12 (conda: cuda-nvvm)."),
                say(
                    "Name the folder above nvvm/libdevice: export XLA_FLAGS=--xla_gpu_cuda_data_dir=FOLDER "
                    "(conda: $CONDA_PREFIX)."
                ),
            ),
            confidence="likely",
        )


# --- packages -----------------------------------------------------------------------------------


def _packages(machine: Machine, view: View) -> Iterator[Finding]:
    package, software = tf.installed(machine), machine.software
    if package is None or software is None or not tf.cards(machine) or package.name == "nvidia-tensorflow":
        return
    if not software.packages_complete:
        return
    build, known = software.build, tf.wheel(package, view) or {}
    cuda = tf.versions((build and build.cuda_version) or known.get("cuda"))[:1]
    cudnn = tf.versions((build and build.cudnn_version) or known.get("cudnn"))[:1]
    if not cuda or cuda[0] not in LIBRARIES[0][2] or not tf.is_cuda_build(machine, view):
        return
    there = {name.casefold() for name in software.libraries or ()}
    brought = {p.name for p in software.packages or () if p.name.endswith(f"-cu{cuda[0]}")}
    wanted = {f"{name}.so.{number}": stem for name, stem, numbers in LIBRARIES for number in numbers[cuda[0]][-1:]}
    also = {f"{name}.so.{number}": stem for name, stem, numbers in LIBRARIES for number in numbers[cuda[0]]}
    if cudnn:
        wanted[f"libcudnn.so.{cudnn[0]}"] = also[f"libcudnn.so.{cudnn[0]}"] = "cudnn"
    found = {stem for name, stem in also.items() if _is_there(name, there)}
    found |= {stem for stem in wanted.values() if f"nvidia-{stem}-cu{cuda[0]}" in brought}
    missing = [name for name, stem in wanted.items() if stem not in found and not _is_there(name, there)]
    if missing:
        yield _missing(machine, package, missing, cuda[0], bool(there or brought))
    elif brought and tf.versions(package.version)[:2] == _UNREADABLE_BY:
        yield from _not_looked_for(machine, package, wanted, there)


def _is_there(name: str, there: set[str]) -> bool:
    return any(file == name.casefold() or file.startswith(f"{name.casefold()}.") for file in there)


def _missing(machine: Machine, package: Package, missing: list[str], cuda: int, some: bool) -> Finding:
    assert machine.software is not None
    looked = machine.software.libraries is not None
    names = ", ".join(missing)
    message = say(
        plural(
            len(missing),
            "TensorFlow {version} was built for CUDA {cuda}, and this library was not found: {names}.",
            "TensorFlow {version} was built for CUDA {cuda}, and these libraries were not found: {names}.",
        )
        if some
        else "TensorFlow {version} was built for CUDA {cuda}, and none of the CUDA libraries was found.",
        version=package.version,
        cuda=cuda,
        names=names,
    )
    others = [p for p in machine.software.packages or () if p.name.startswith("nvidia-")]
    return finding(
        "tensorflow-cuda-libraries-missing",
        "warning",
        "TensorFlow",
        message,
        evidence=(
            tf.package_evidence(machine, package),
            *(tf.package_evidence(machine, other) for other in others),
            *((tf.build_evidence(machine, f"cuda_version: {v}"),) if (v := _cuda_version(machine)) else ()),
        ),
        remedy=_remedy(),
        next_test=() if looked else (_which_package(),),
        confidence="likely" if looked else "possible",
    )


def _cuda_version(machine: Machine) -> str | None:
    build = machine.software.build if machine.software is not None else None
    return build.cuda_version if build is not None else None


def _not_looked_for(machine: Machine, package: Package, wanted: dict[str, str], there: set[str]) -> Iterator[Finding]:
    assert machine.software is not None
    path = machine.environment.get("LD_LIBRARY_PATH") if machine.environment is not None else None
    if all(_is_there(name, there) for name in wanted) or "nvidia/" in (path or ""):
        return
    nvidia = [p for p in machine.software.packages or () if p.name.startswith("nvidia-cu")]
    yield finding(
        "tensorflow-cuda-libraries-missing",
        "warning",
        "TensorFlow",
        say(
            "TensorFlow {version} does not look for the CUDA libraries where pip put them, so it will use no card.",
            version=package.version,
        ),
        evidence=(
            tf.package_evidence(machine, package),
            *(tf.package_evidence(machine, other) for other in nvidia),
        ),
        remedy=(
            say('Take a later one, which does: pip install "tensorflow[and-cuda]>=2.17"'),
            say(
                "Or name the folders: export LD_LIBRARY_PATH=$(echo "
                '$(python -c "import site; print(site.getsitepackages()[0])")/nvidia/*/lib | tr " " ":")'
            ),
        ),
        confidence="likely",
    )


def _remedy() -> tuple[str, ...]:
    return (
        say('Install TensorFlow together with its CUDA libraries: pip install "tensorflow[and-cuda]"'),
        say("For cards before Turing also: pip install 'nvidia-cudnn-cu12<9.11'"),
        say(
            "Then look again: python -c \"import tensorflow as tf; print(tf.config.list_physical_devices('GPU'))\" "
            "lists every card."
        ),
    )
