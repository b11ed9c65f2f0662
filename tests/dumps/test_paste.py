"""What people paste: the same outputs after a terminal, a mailer or a web page had them."""

from __future__ import annotations

import html
import io
import sys
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpucheck.assemble import assemble
from gpucheck.catalog import Catalog, load
from gpucheck.dumps.pasted import plain
from gpucheck.errors import InputError
from gpucheck.facts import Machine, System
from gpucheck.probing import judge, probe
from gpucheck.sources import recognise

LSPCI = """\
04:00.0 3D controller [0302]: NVIDIA Corporation GP102GL [Tesla P40] [10de:1b38] (rev a1)
	Subsystem: NVIDIA Corporation Device [10de:11d9]
	Control: I/O- Mem+ BusMaster+ SpecCycle- MemWINV- VGASnoop- ParErr+ Stepping- SERR+ FastB2B- DisINTx+
	NUMA node: 0
	Region 0: Memory at 92000000 (32-bit, non-prefetchable) [size=16M]
	Region 1: Memory at 38000000000 (64-bit, prefetchable) [size=32G]
	Capabilities: [78] Express (v2) Endpoint, MSI 00
		LnkCap:	Port #0, Speed 8GT/s, Width x16, ASPM not supported
		LnkSta:	Speed 8GT/s, Width x16
	Kernel driver in use: nvidia
	Kernel modules: nvidiafb, nouveau, nvidia

82:00.0 3D controller [0302]: NVIDIA Corporation GP102GL [Tesla P40] [10de:1b38] (rev a1)
	Subsystem: NVIDIA Corporation Device [10de:11d9]
	Control: I/O- Mem+ BusMaster+ SpecCycle- MemWINV- VGASnoop- ParErr+ Stepping- SERR+ FastB2B- DisINTx+
	NUMA node: 1
	Region 0: Memory at c8000000 (32-bit, non-prefetchable) [size=16M]
	Region 1: Memory at <ignored> (64-bit, prefetchable)
	Capabilities: <access denied>
	Kernel driver in use: nouveau
	Kernel modules: nvidiafb, nouveau, nvidia

"""
DMESG = """\
[    9.046885] NVRM: loading NVIDIA UNIX x86_64 Kernel Module  575.51.03
[   10.000001] NVRM: This PCI I/O region assigned to your NVIDIA device is invalid:
               NVRM: BAR1 is 0M @ 0x0 (PCI:0000:82:00.0)
"""
SMI = """\
+-----------------------------------------------------------------------------------------+
| NVIDIA-SMI 575.51.03              Driver Version: 575.51.03      CUDA Version: 12.9     |
|-----------------------------------------+------------------------+----------------------+
|   0  Tesla P40                      Off |   00000000:04:00.0 Off |                    0 |
| N/A   31C    P8              9W /  250W |       2MiB /  23040MiB |      0%      Default |
+-----------------------------------------+------------------------+----------------------+
"""
DMI = """\
# dmidecode 3.2
Getting SMBIOS data from sysfs.
SMBIOS 3.3 present.

Handle 0x0100, DMI type 1, 27 bytes
System Information
	Manufacturer: Dell Inc.
	Product Name: PowerEdge R730

Handle 0x0400, DMI type 4, 48 bytes
Processor Information
	Socket Designation: CPU1
	Version: Intel(R) Xeon(R) CPU E5-2680 v4 @ 2.40GHz
	Status: Populated, Enabled

"""
LSCPU = "Architecture:        x86_64\nSocket(s):           2\nModel name:          Xeon\n"
LSMOD = "Module                  Size  Used by\nnvidia              56819712  2 nvidia_uvm\n"
DEVICES = "".join(f"crw-rw-rw- 1 root root 195, 0 Nov  3 10:00 /dev/nvidia{name}\n" for name in ("0", "ctl"))
OUTPUTS = {
    "sudo lspci -nnvvv": LSPCI,
    "sudo dmesg | grep -i nv": DMESG,
    "nvidia-smi": SMI,
    "sudo dmidecode": DMI,
    "lscpu": LSCPU,
    "lsmod": LSMOD,
    "ls -l /dev/nvidia*": DEVICES,
}
PASTE = "".join(f"me@alpha:~$ {command}\n{output}" for command, output in OUTPUTS.items()) + "me@alpha:~$ exit\n"


@pytest.fixture(scope="module")
def catalog() -> Catalog:
    return load()


def machine_of(text: str | bytes, catalog: Catalog) -> Machine:
    parts = recognise("paste", text.encode() if isinstance(text, str) else text)
    assert isinstance(parts, tuple)
    return assemble(parts, catalog)


@pytest.fixture(scope="module")
def whole(catalog: Catalog) -> Machine:
    machine = machine_of(PASTE, catalog)
    assert [(gpu.address, gpu.driver, gpu.link.width) for gpu in machine.gpus or ()] == [
        ("0000:04:00.0", "nvidia", 16),
        ("0000:82:00.0", "nouveau", None),
    ]
    assert [[bar.assigned for bar in gpu.bars or ()] for gpu in machine.gpus or ()] == [[True, True], [True, False]]
    assert machine.kernel_log is not None
    assert machine.kernel_log.lines[-1].endswith("is invalid: BAR1 is 0M @ 0x0 (PCI:0000:82:00.0)")
    assert machine.nvml is not None
    assert machine.cpu_sockets is not None
    return machine


# --- what it went through -----------------------------------------------------------------------


def with_prose(text: str) -> str:
    pieces = (
        f"Here is what I get:\n\n```text\n$ {c}\n{o}```\nAny ideas? It's a R730 (2x P40).\n" for c, o in OUTPUTS.items()
    )
    return "Hi all, only one of two cards works.\n\n" + "\n".join(pieces) + "\nThanks!\n"


def with_colours(text: str) -> str:
    for word in ("NVIDIA", "nvidia", "Tesla"):
        text = text.replace(word, f"\x1b[01;31m\x1b[K{word}\x1b[m\x1b[K")
    return text.replace("me@alpha:~$", "\x1b]0;me@alpha: ~\x07\x1b[01;32mme@alpha\x1b[00m:\x1b[01;34m~\x1b[00m$")


def with_lost_colours(text: str) -> str:
    return text.replace("NVIDIA", "[01;31m[KNVIDIA[m[K").replace("Tesla", "[01;31m[KTesla[m[K")


def quoted(text: str) -> str:
    return "On Monday somebody wrote:\n" + "".join(f"> {line}\n" for line in text.splitlines()) + "\nI see.\n"


def quoted_twice(text: str) -> str:
    return "".join(f">> {line}\n" if line else ">>\n" for line in text.splitlines())


def typographic(text: str) -> str:
    return text.replace("'", "’").replace('"', "”").replace("  ", "\u00a0 ").replace("Hz", "H\u200bz")


def as_html(text: str) -> str:
    body = html.escape(text).replace("Tesla P40", '<span class="hl">Tesla P40</span>')
    return f'<p>Hello<br/>\n</p><pre><code class="bash">{body}</code></pre>'


def with_breaks(text: str) -> str:
    return html.escape(text).replace("\n", "<br>\n").replace("  ", "&nbsp; ")


def indented(text: str) -> str:
    return "Hello,\n\n" + "".join(f"    {line}\n" if line else "\n" for line in text.splitlines()) + "\nBye\n"


def fenced(text: str) -> str:
    return f"[code]\n{text}[/code]\n"


HARMLESS: dict[str, Callable[[str], str]] = {
    "prose and fences": with_prose,
    "CRLF": lambda text: text.replace("\n", "\r\n"),
    "CR": lambda text: text.replace("\n", "\r"),
    "colours": with_colours,
    "colours without escape": with_lost_colours,
    "quotes": quoted,
    "quotes of quotes": quoted_twice,
    "tabs to blanks": lambda text: text.expandtabs(8),
    "tabs to few blanks": lambda text: text.replace("\t", "  "),
    "typographic": typographic,
    "HTML": as_html,
    "HTML with breaks": with_breaks,
    "block of Markdown": indented,
    "BBCode": fenced,
    "blanks at the end": lambda text: text.replace("\n", "   \n"),
    "mailer's blank lines": lambda text: text.replace("me@alpha", "\n\nme@alpha"),
    "mark and CRLF": lambda text: "\ufeff" + text.replace("\n", "\r\n"),
    "quoted CRLF with blanks": lambda text: quoted(text.expandtabs(4)).replace("\n", "\r\n"),
}


@pytest.mark.parametrize("way", HARMLESS)
def test_nothing_is_lost(way: str, whole: Machine, catalog: Catalog) -> None:
    machine = machine_of(HARMLESS[way](PASTE), catalog)
    for level in ("system", "cpu", "cpu_sockets", "gpus", "nvml", "driver", "kernel_log", "topology", "pci"):
        assert getattr(machine, level) == getattr(whole, level), level


@pytest.mark.parametrize("way", HARMLESS)
@pytest.mark.parametrize("output", OUTPUTS.values(), ids=list(OUTPUTS))
def test_one_output_alone(way: str, output: str, catalog: Catalog) -> None:
    """As a file of its own, without a prompt that names the program."""
    if way in ("prose and fences", "block of Markdown"):
        return
    found, expected = (machine_of(text, catalog) for text in (HARMLESS[way](output), output))
    for level in ("system", "cpu", "cpu_sockets", "nvml", "driver", "kernel_log"):
        assert getattr(found, level) == getattr(expected, level), level
    assert [(gpu.address, gpu.driver, gpu.bars) for gpu in found.gpus or ()] == [
        (gpu.address, gpu.driver, gpu.bars) for gpu in expected.gpus or ()
    ]


def test_encodings_of_windows(whole: Machine, catalog: Catalog) -> None:
    text = PASTE.replace("\n", "\r\n")
    for data in (text.encode("utf-16"), text.encode("utf-8-sig"), ("Grüße\n" + text).encode("cp1252")):
        assert machine_of(data, catalog).gpus == whole.gpus


LOCAL_DATES = {
    "German": "[Mo Nov  3 10:00:00 2025]",
    "French": "[lun. nov.  3 10:00:00 2025]",
    "Russian": "[Пн ноя  3 10:00:00 2025]",
    "Chinese": "[一 11月  3 10:00:00 2025]",
    "Japanese": "[月 11月  3 10:00:00 2025]",
    "English": "[Mon Nov  3 10:00:00 2025]",
}


@pytest.mark.parametrize("language", LOCAL_DATES)
def test_dates_in_any_language(language: str, catalog: Catalog) -> None:
    log = f"{LOCAL_DATES[language]} NVRM: Xid (PCI:0000:82:00): 79, pid=1, GPU has fallen off the bus.\n"
    for text in (log * 3, f"me@alpha:~$ sudo dmesg -T | grep NVRM\n{log}", f"It says\n\n{log}\nWhat now?\n"):
        machine = machine_of(text, catalog)
        assert machine.kernel_log is not None
        assert set(machine.kernel_log.lines) == {"NVRM: Xid (PCI:0000:82:00): 79, pid=1, GPU has fallen off the bus."}


@pytest.mark.parametrize(
    "line",
    [
        "bash: nvidia-smi: command not found",
        "bash: nvidia-smi: Kommando nicht gefunden.",
        "bash: nvidia-smi : commande introuvable",
        "bash: nvidia-smi: no se encontró la orden",
        "bash: nvidia-smi: команда не найдена",
        "bash: nvidia-smi: 未找到命令",
        "zsh: command not found: nvidia-smi",
    ],
)
def test_a_tool_that_is_not_there_in_any_language(line: str, catalog: Catalog) -> None:
    machine = machine_of(f"$ nvidia-smi\n{line}\n$ lsmod\n{LSMOD}", catalog)
    assert ("nvml", "tool-absent") in {(gap.fact, gap.reason) for gap in machine.gaps}


def test_a_head_that_was_wrapped(catalog: Catalog) -> None:
    """Eighty columns: the ids stand in the next line."""
    text = LSPCI.replace(" [10de:1b38] (rev a1)", "\n[10de:1b38] (rev a1)").replace("NVIDIA Corp", "NVIDIA\nCorp", 1)
    machine = machine_of("$ lspci -nnvvv\n" + text, catalog)
    assert [(gpu.address, gpu.pci_id) for gpu in machine.gpus or ()] == [
        ("0000:04:00.0", "10de:1b38"),
        ("0000:82:00.0", "10de:1b38"),
    ]
    assert [gpu.driver for gpu in machine.gpus or ()] == ["nvidia", "nouveau"]


@pytest.mark.parametrize("columns", [60, 80, 100])
def test_lines_that_were_cut_at_the_edge(columns: int, whole: Machine, catalog: Catalog) -> None:
    """What is cut away is not known; nothing else is said in its place."""
    machine = machine_of("\n".join(line[:columns] for line in PASTE.splitlines()), catalog)
    for gpu, known in zip(machine.gpus or (), whole.gpus or (), strict=True):
        assert (gpu.address, gpu.driver) == (known.address, known.driver)
        assert gpu.pci_id in (known.pci_id, None)
        assert gpu.link.width in (known.link.width, None)


def test_a_lone_prompt_of_another_shell_is_no_quotation() -> None:
    assert plain("> lspci\n04:00.0 x\n") == "> lspci\n04:00.0 x\n"


def test_what_a_tool_wrote_stays_as_it_is() -> None:
    for text in (PASTE, "<nvidia_smi_log>\n<process_name>a &amp; b</process_name>\n", "a <access denied> b"):
        assert plain(text) == text


@settings(max_examples=150, deadline=None)
@given(st.text(alphabet=st.sampled_from("> \n\t\r<>&;brp/ab[]mK\x1b“0[01;31m"), max_size=80))
def test_any_text_is_survived(text: str) -> None:
    assert plain(plain(text)) == plain(text) or "&" in text or "<" in text or "\x1b" in text or ">" in text


def test_through_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(quoted(as_html(PASTE)).encode())))
    report = probe(["-"])
    assert report.verdict == "problem"
    assert {"nouveau-bound"} <= {finding.name for finding in report.findings}


def test_a_paste_of_prose_is_refused_in_one_line(catalog: Catalog) -> None:
    for text in ("My lspci shows no card.\n", "> > > >\n", "```\n```\n", "<p>nvidia-smi</p>"):
        with pytest.raises(InputError, match="in no form that gpucheck knows"):
            recognise("paste", text.encode())


def test_a_paste_is_judged_as_the_files_are(whole: Machine, catalog: Catalog) -> None:
    names = {finding.name for finding in judge(whole, None, catalog).findings}
    assert names == {finding.name for finding in judge(machine_of(quoted(PASTE), catalog), None, catalog).findings}


def test_values_of_dmidecode_that_only_their_command_names(catalog: Catalog) -> None:
    text = (
        "me@box:~$ sudo dmidecode -s system-manufacturer\n# SMBIOS implementations newer than version 2.8\nDell Inc.\n"
        "me@box:~$ sudo dmidecode -s system-product-name\nPowerEdge R730\n"
        "me@box:~$ sudo dmidecode -s system-serial-number\nABC1234\nThat is all I know.\n"
        "me@box:~$ sudo dmidecode --string=bios-version\nTo Be Filled By O.E.M.\n"
    )
    machine = machine_of(text, catalog)
    assert machine.catalog_model == "dell-poweredge-r730"
    assert machine.system == System(vendor="Dell Inc.", product="PowerEdge R730")
