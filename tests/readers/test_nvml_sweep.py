"""Every function that NVML is asked, with everything that can go wrong with it: nothing raises, nothing
waits past its deadline, and what is not known is told. Many cards and errors share one child."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from fake_nvml import SOURCE, FakeNvml, Script, device, script

from gpucheck.assemble import assemble
from gpucheck.catalog import Catalog, load
from gpucheck.facts import Nvml, NvmlGpu, Parts
from gpucheck.host import LiveHost
from gpucheck.nvml_codes import LIBRARY_NOT_FOUND, NOT_SUPPORTED
from gpucheck.probing import Probe, judge
from gpucheck.readers import nvml

LONG = 60.0  # never reached
CODES = (*range(1, 31), 77, 999)
NOT_FOUND, LOST = 6, 15

ASKED = sorted(
    {
        re.sub(r"_v\d$", "", name)
        for name in re.findall(
            r'"(nvml\w+)"', Path(nvml.__file__).with_name("nvml_child.py").read_text().replace('"nvmlReturn_t"', "")
        )
    }
    - {"nvmlDeviceGetP2PStatus"}  # not among so many cards
)
SYSTEM = tuple(nvml._SYSTEM_FACTS)
START = ("nvmlInit", "nvmlDeviceGetCount")
OF_A_CARD = tuple(name for name in ASKED if name not in (*SYSTEM, *START))
TWINS = {
    "nvmlDeviceGetCurrentClocksEventReasons": "nvmlDeviceGetCurrentClocksThrottleReasons",
    "nvmlDeviceGetGpuFabricInfoV": "nvmlDeviceGetGpuFabricInfo",
}
"""Newer and older name of one question: both must fail to cost the fact."""
FULL: Script = {
    "ecc": 1,
    "mig": 1,
    "mig_devices": 2,
    "fabric_state": 3,
    "retired_pages_single_bit": 0,
    "retired_pages_double_bit": 0,
    "retired_pages_pending": 0,
    "remapped_rows_uncorrected": 0,
    "ecc_volatile_corrected": 0,
    "ecc_volatile_uncorrected": 0,
    "ecc_aggregate_corrected": 0,
    "ecc_aggregate_uncorrected": 0,
}


def card(index: int, **more: Any) -> Script:
    """A card that answers every question, at an address of its own."""
    return device(index, address=f"{index:04x}:01:00.0", **FULL, **more)


@pytest.fixture(scope="module")
def catalog() -> Catalog:
    return load()


@pytest.fixture
def ask(fake_nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch) -> Callable[[Script], Parts]:
    def asked(wanted: Script) -> Parts:
        for name, value in fake_nvml.environment(wanted).items():
            monkeypatch.setenv(name, value)
        return nvml.read(LiveHost(), LONG)

    return asked


def listed(parts: Parts) -> tuple[NvmlGpu, ...]:
    assert parts.nvml is not None
    assert parts.nvml.status == "ok"
    assert parts.nvml.gpus is not None
    return parts.nvml.gpus


def told(parts: Parts, gpu: NvmlGpu) -> str:
    """Gaps of one card."""
    facts = (f"nvml.gpus.{gpu.index}", f"gpus.{gpu.address}.nvml")
    return "\n".join(gap.how for gap in parts.gaps if gap.fact in facts)


def judged(parts: Parts, catalog: Catalog) -> Probe:
    return judge(assemble([parts], catalog), None, catalog)


def test_what_is_swept_is_what_is_asked() -> None:
    assert {*nvml._FACTS, *SYSTEM, *START} <= set(ASKED)
    assert len(OF_A_CARD) > 35


@pytest.mark.parametrize("codes", [CODES[start::4] for start in range(4)], ids=lambda codes: f"{codes[0]}...")
def test_each_function_with_each_code(codes: tuple[int, ...], ask: Callable[[Script], Parts], catalog: Catalog) -> None:
    calls = [name for name in OF_A_CARD if name not in TWINS.values()]
    for code in codes:
        failing = [{name: code, **({TWINS[name]: code} if name in TWINS else {})} for name in calls]
        cards = [card(index, calls=fails) for index, fails in enumerate(failing)]
        parts = ask(script(*cards, card(len(cards)), calls=dict.fromkeys(SYSTEM, code)))
        *gpus, healthy = listed(parts)
        assert len(gpus) == len(calls)
        assert healthy.errors == {}
        assert told(parts, healthy) == ""
        for call, gpu in zip(calls, gpus, strict=True):
            how = told(parts, gpu)
            if call == "nvmlDeviceGetMigDeviceHandleByIndex" and code == NOT_FOUND:
                assert (gpu.mig_devices, how) == (0, ""), code
                continue
            assert gpu.errors[call] == code, (call, code)
            if call == nvml.MIG_MODE and code == NOT_SUPPORTED:
                assert (gpu.mig_enabled, how) == (False, "")
                continue
            if call == "nvmlDeviceGetHandleByIndex" or code == LOST:
                assert f"{call} returned {code}" in how, (call, code)
            elif call in nvml._FACTS:
                assert nvml._FACTS[call] in how, (call, code)
                assert f"returned {code}" in how, (call, code)
            if code != LOST and call not in ("nvmlDeviceGetHandleByIndex", "nvmlDeviceGetPciInfo"):
                assert gpu.address is not None
                assert set(gpu.errors) <= {call, TWINS.get(call)}, (call, code)
        (whole,) = [gap.how for gap in parts.gaps if gap.fact == "nvml"]
        assert whole.startswith("Not read: driver_version, nvml_version, cuda_version.")
        report = judged(parts, catalog)
        assert report.counts.nvml == len(calls) + 1 == len(report.machine.gpus or ())
        lost = [finding for finding in report.findings if finding.name == "nvml-gpu-lost"]
        assert bool(lost) == (code not in (4, 17)), code


@pytest.mark.parametrize("call", START)
def test_nvml_that_does_not_start_with_each_code(call: str, ask: Callable[[Script], Parts], catalog: Catalog) -> None:
    for code in CODES:
        parts = ask(script(device(0), calls={call: code}))
        assert parts.nvml is not None
        status = "library-absent" if code == LIBRARY_NOT_FOUND else "failed"
        assert (parts.nvml.status, parts.nvml.call, parts.nvml.code, parts.nvml.gpus) == (status, call, code, None)
        assert [gap.fact for gap in parts.gaps] == ["nvml"]
        assert judged(parts, catalog).counts.nvml is None


def hung(folder: Path, library: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, nvml.Child, list[Any]]]:
    """A child for each function, which hangs in it at the second of three cards."""
    for name in ASKED:
        place = folder / name
        place.mkdir()
        older = {newer: 13 for newer, old in TWINS.items() if old == name}
        hangs: Script = {"calls": {name: "hang", **older}}
        whole = name in (*SYSTEM, *START)
        cards = (card(0), card(1, **({} if whole else hangs)), card(2))
        environment = FakeNvml(place, library).environment(script(*cards, **(hangs if whole else {})))
        for variable, value in environment.items():
            monkeypatch.setenv(variable, value)
        calls: list[Any] = []
        yield name, nvml.Child(calls.append, patience=LONG), calls


def test_a_hang_in_each_function(
    tmp_path: Path, fake_nvml_library: Path, monkeypatch: pytest.MonkeyPatch, catalog: Catalog
) -> None:
    for name, child, calls in list(hung(tmp_path, fake_nvml_library, monkeypatch)):
        until = time.monotonic() + LONG
        while re.sub(r"_v\d$", "", (child.begun or {}).get("call", "")) != name:
            assert time.monotonic() < until, name
            time.sleep(0.005)
        began = time.monotonic()
        end = child.finish(began)
        assert time.monotonic() - began < 5, name
        parts = nvml.parse({**end, "calls": calls + end["calls"]})
        assert parts.nvml is not None
        assert (parts.nvml.status, re.sub(r"_v\d$", "", str(parts.nvml.call))) == ("timed-out", name)
        assert (parts.nvml.gpus is None) == (name in (*SYSTEM, *START)), name
        assert parts.gaps[0].reason == "timed-out"
        report = judged(parts, catalog)
        assert report.verdict == "unknown"
        assert "nvml-timeout" in [finding.name for finding in report.findings]


def test_a_deadline_is_kept(fake_nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in fake_nvml.environment(script(card(0, calls={"nvmlDeviceGetName": "hang"}))).items():
        monkeypatch.setenv(name, value)
    began = time.monotonic()
    parts = nvml.read(LiveHost(), 0.2)
    assert time.monotonic() - began < 4
    assert parts.nvml is not None
    assert parts.nvml.status == "timed-out"


@pytest.mark.parametrize("count", [0, 1, 2, 8, 9, 16])
def test_any_number_of_cards(count: int, ask: Callable[[Script], Parts], catalog: Catalog) -> None:
    parts = ask(script(*map(card, range(count))))
    assert len(listed(parts)) == count
    assert parts.gaps == ()
    report = judged(parts, catalog)
    assert (report.counts.nvml, len(report.machine.gpus or ())) == (count, count)


@pytest.mark.parametrize("lost", [0, 6, 13])
def test_a_card_that_is_lost_between_two_calls(lost: int, ask: Callable[[Script], Parts], catalog: Catalog) -> None:
    """The first call of a function is answered, the second says that the card is lost."""
    several = ("nvmlDeviceGetTotalEccErrors", "nvmlDeviceGetRetiredPages", "nvmlDeviceGetMigDeviceHandleByIndex")
    cards = [card(index) for index in range(16)]
    for place, call in enumerate(several):
        cards[lost + place]["calls"] = {call: [0, LOST]}
    parts = ask(script(*cards))
    gpus = listed(parts)
    for index, gpu in enumerate(gpus):
        call = several[index - lost] if 0 <= index - lost < 3 else ""
        assert gpu.errors == ({call: LOST} if call else {})
        assert gpu.address is not None
        assert bool(told(parts, gpu)) == bool(call)
    names = [(finding.name, finding.subject) for finding in judged(parts, catalog).findings]
    wanted = [("nvml-gpu-lost", str(gpu.address)) for gpu in gpus if gpu.errors]
    assert [name for name in names if name[0] == "nvml-gpu-lost"] == wanted


def without(folder: Path, symbols: tuple[str, ...]) -> Path:
    """The library without these symbols."""
    library = folder / "libnvidia-ml.so.1"
    renamed = [f"-D{symbol}=absent_{symbol}" for symbol in symbols]
    subprocess.run(["cc", "-shared", "-fPIC", *renamed, "-o", str(library), str(SOURCE)], check=True, timeout=60)
    return folder


SYMBOLS = tuple(dict.fromkeys(re.findall(r"\bnvml(?:Device|System)Get\w+", SOURCE.read_text())))
NEEDED = ("nvmlDeviceGetCount_v2", "nvmlDeviceGetHandleByIndex_v2")


@pytest.mark.parametrize(
    ("symbols", "status"),
    [
        (tuple(name for name in SYMBOLS if name not in NEEDED), "ok"),
        (tuple(name for name in SYMBOLS if name.endswith(("_v3", "InfoV", "EventReasons"))), "ok"),
        (("nvmlInitWithFlags",), "failed"),
        (NEEDED[:1], "failed"),
        (NEEDED[1:], "ok"),
    ],
    ids=["all but two", "the newest", "init", "count", "handle"],
)
def test_symbols_that_the_library_lacks(
    symbols: tuple[str, ...],
    status: str,
    tmp_path: Path,
    fake_nvml_library: Path,
    monkeypatch: pytest.MonkeyPatch,
    catalog: Catalog,
) -> None:
    lean = FakeNvml(tmp_path, without(tmp_path, symbols))
    for name, value in lean.environment(script(card(0), card(1))).items():
        monkeypatch.setenv(name, value)
    parts = nvml.read(LiveHost(), LONG)
    assert parts.nvml is not None
    assert parts.nvml.status == status
    assert parts.gaps
    for gpu in parts.nvml.gpus or ():
        assert set(gpu.errors.values()) == {13}
        assert told(parts, gpu)
    judged(parts, catalog)


GARBLING = """
import importlib.util, sys
spec = importlib.util.spec_from_file_location("real_pynvml", {real!r})
real = importlib.util.module_from_spec(spec)
sys.modules["real_pynvml"] = real
spec.loader.exec_module(real)
globals().update({{name: value for name, value in vars(real).items() if not name.startswith("__")}})

def as_bytes(function):
    return lambda *arguments: function(*arguments).encode()

for name in ("nvmlDeviceGetName", "nvmlDeviceGetUUID", "nvmlDeviceGetVbiosVersion", "nvmlSystemGetDriverVersion"):
    globals()[name] = as_bytes(globals()[name])
"""


@pytest.mark.parametrize("kind", ["str", "bytes"])
def test_text_as_bytes_and_str(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ask: Callable[[Script], Parts]
) -> None:
    if kind == "bytes":
        real = next(str(Path(entry, "pynvml.py")) for entry in sys.path if Path(entry, "pynvml.py").exists())
        (tmp_path / "pynvml.py").write_text(GARBLING.format(real=real))
        monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    parts = ask(script(card(0, name="Tesla P40"), card(1, name="Quadro µ")))
    assert parts.gaps == ()
    assert [gpu.name for gpu in listed(parts)] == ["Tesla P40", "Quadro µ"]
    assert [gpu.vbios for gpu in listed(parts)] == ["94.02.42.00.b4"] * 2
    assert parts.nvml is not None
    assert parts.nvml.driver_version == "550.163.01"


def test_text_that_is_none_falls_back_to_the_name_of_the_id(ask: Callable[[Script], Parts], catalog: Catalog) -> None:
    """As drivers 555.85 and 555.99 answer under WSL 2."""
    garbage = "\udcf8\udc95\udca0\udc81\udc80"
    bad = card(0, name=garbage, uuid=garbage, vbios=garbage, pci_id="10de:1b38", subsystem_id="10de:11d9")
    parts = ask(script(bad, driver_version=garbage))
    (gpu,) = listed(parts)
    assert (gpu.name, gpu.uuid, gpu.vbios, gpu.address) == (None, None, None, "0000:01:00.0")
    hows = [gap.how for gap in parts.gaps]
    assert len(hows) == 2
    assert hows[0].startswith("Not read: name, uuid, vbios. NVML returned bytes that are no text; drivers 555.85")
    assert hows[1].startswith("Not read: driver_version. ")
    (seen,) = judged(parts, catalog).machine.gpus or ()
    assert seen.name == "Tesla P40"


def test_one_nvml_of_each_end_is_judged(catalog: Catalog) -> None:
    ends: list[dict[str, Any]] = [{"status": "ok", "gpus": (NvmlGpu(index=0),)}, {"status": "ok", "gpus": ()}]
    for known in chain(ends, ({"status": status} for status in ("failed", "timed-out", "library-absent"))):
        report = judged(Parts(nvml=Nvml(**known)), catalog)
        assert report.counts.nvml == (len(known["gpus"]) if "gpus" in known else None)
