"""TensorFlow and its CUDA libraries, from the names of what is installed: nothing is imported.

One listing of the folder of packages tells what is installed and in which version. Only where a
TensorFlow is among it, its build information and the names of the system's CUDA libraries are read.
"""

from __future__ import annotations

import ast
import posixpath
import re
from collections.abc import Iterable, Mapping, Sequence

from gpucheck.facts import Gap, Package, Parts, Software, TensorFlowBuild
from gpucheck.host import Host, Python
from gpucheck.packages import BUILD_INFO, TENSORFLOW
from gpucheck.readers.gaps import not_read

LOADER_CACHE = "/etc/ld.so.cache"
"""Names of all libraries in the folders of the dynamic loader, of whatever distribution."""

_LIBRARIES = ("cublas", "cuda-runtime", "cuda-nvcc", "cudnn", "cufft", "curand", "cusolver", "cusparse", "nccl")
_WANTED = re.compile(
    "|".join([*TENSORFLOW, "keras", "tf-keras", rf"nvidia-(?:{'|'.join(_LIBRARIES)}|nvjitlink)(?:-cu\d+)?"])
)
DISTRIBUTION = re.compile(
    rf"(?P<name>{_WANTED.pattern.replace('-', '[-_.]')})-(?P<version>[^-]+)\.(?:dist|egg)-info", re.IGNORECASE
)
"""Folder that pip (or conda) leaves beside a package."""
LIBRARY = re.compile(r"lib(?:cudart|cublas|cublasLt|cudnn|cufft|curand|cusolver|cusparse|nccl|nvJitLink)\.so\.[\d.]+")

_MOST_FOLDERS = 32
"""Of LD_LIBRARY_PATH: a build system may put hundreds there."""


def normalised(name: str) -> str:
    """Name of a package as the index of packages compares it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def is_wanted(name: str) -> bool:
    """Whether a package, by its normalised name, is TensorFlow, Keras or one that brings CUDA libraries."""
    return _WANTED.fullmatch(name) is not None


def packages(names: Iterable[str]) -> tuple[Package, ...]:
    """The packages that matter among the names in a folder, in alphabetical order."""
    found = (DISTRIBUTION.fullmatch(name) for name in names)
    return tuple(Package(name=normalised(match["name"]), version=match["version"]) for match in found if match)


def parse_build_info(text: str) -> TensorFlowBuild:
    """The dictionary in build_info.py, read and not run. ValueError where there is none.

    Releases before 2.4 and nightly builds leave out keys.
    """
    calls = (
        node.value
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call) and node.value.args
        if any(isinstance(target, ast.Name) and target.id == "build_info" for target in node.targets)
    )
    call = next(calls, None)
    if call is None:
        raise ValueError("no build_info in it")
    values = dict(ast.literal_eval(call.args[0]))
    capabilities = values.get("cuda_compute_capabilities")
    return TensorFlowBuild(
        cuda=_flag(values.get("is_cuda_build")),
        rocm=_flag(values.get("is_rocm_build")),
        cuda_version=_text(values.get("cuda_version")),
        cudnn_version=_text(values.get("cudnn_version")),
        compute_capabilities=tuple(map(str, capabilities)) if isinstance(capabilities, list | tuple) else None,
    )


def _flag(value: object) -> bool | None:
    return value if isinstance(value, bool) else None


def _text(value: object) -> str | None:
    return str(value) if isinstance(value, str | int) and str(value) else None


def library_folders(variables: Mapping[str, str] | None, python: Python | None) -> Sequence[str]:
    """Folders besides the loader's in which CUDA libraries may lie: those of LD_LIBRARY_PATH, and the
    one that conda links into what it installs."""
    named = (variables or {}).get("LD_LIBRARY_PATH", "").split(":")[:_MOST_FOLDERS]
    paths = [posixpath.normpath(path) for path in named if path.startswith("/")]
    prefixes = (re.fullmatch(r"(/.*/lib)/python[\d.]+/site-packages", path) for path in (python or _NONE).folders)
    paths += [match[1] for match in prefixes if match]
    return tuple(dict.fromkeys(path for path in paths if not path.startswith(("/sys", "/proc", "/dev"))))


_NONE = Python(None, ())


def read(host: Host) -> Parts:
    """``software`` of the Python that the host names; nothing where it names none."""
    try:
        python = host.python()
    except FileNotFoundError:
        return Parts(origin=host.name)
    gaps: list[Gap] = []
    installed: dict[str, Package] = {}
    home: str | None = None
    looked = False
    for folder in python.folders:
        try:
            found = packages(host.names(folder))
        except FileNotFoundError:
            continue
        except OSError as error:
            gaps.append(not_read(host, "software.packages", folder, error))
            continue
        looked = True
        if home is None and any(package.name in TENSORFLOW for package in found):
            home = folder
        for package in found:
            installed.setdefault(package.name, package)
    software = Software(
        python=python.version,
        folders=python.folders,
        packages=tuple(sorted(installed.values(), key=lambda package: package.name)) if looked else None,
        build=None if home is None else _build(host, f"{home}/{BUILD_INFO}", gaps),
        libraries=None if home is None else _libraries(host, python, gaps),
    )
    return Parts(origin=host.name, software=software, gaps=tuple(gaps))


def _build(host: Host, path: str, gaps: list[Gap]) -> TensorFlowBuild | None:
    try:
        return parse_build_info(host.text(path))
    except (OSError, ValueError, SyntaxError, TypeError, RecursionError, MemoryError) as error:
        gaps.append(not_read(host, "software.build", path, error))
        return None


def _libraries(host: Host, python: Python, gaps: list[Gap]) -> tuple[str, ...] | None:
    names: set[str] = set()
    try:
        names.update(LIBRARY.findall(host.read(LOADER_CACHE).decode("latin-1")))
    except OSError as error:
        gaps.append(not_read(host, "software.libraries", LOADER_CACHE, error))
        return None
    try:
        variables: Mapping[str, str] | None = host.environment()
    except FileNotFoundError:
        variables = None
    for folder in library_folders(variables, python):
        try:
            names.update(name for name in host.names(folder) if LIBRARY.fullmatch(name))
        except OSError:
            continue  # a folder that is not there, or not ours: the loader passes over it too
    return tuple(sorted(names))
