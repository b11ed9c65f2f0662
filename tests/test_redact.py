"""Redaction: nothing that names a machine stays, and nothing that says what it is goes."""

from __future__ import annotations

import ipaddress
import json
import re
import shutil
import string
import subprocess
from pathlib import Path
from typing import Any

import pytest
import secretive
from hypothesis import given, settings
from hypothesis import strategies as st
from machines import build
from machines.golden import MACHINES
from support import SMBIOS_END, smbios_dump, smbios_structure

from gpucheck import capture
from gpucheck.assemble import assemble
from gpucheck.catalog import load
from gpucheck.facts import Machine
from gpucheck.probing import read
from gpucheck.readers import smbios
from gpucheck.redact import StandIns, _Table, _Text, redact

Document = dict[str, Any]
PLAIN = secretive.document()
REDACTED = redact(PLAIN)
TABLE = "/sys/firmware/dmi/tables/DMI"


def machine(document: Document) -> Machine:
    host = capture.parse_json("x.json", json.dumps(document).encode())
    return assemble(read(host, ask_ipmi=True), load())


def everything(document: Document) -> str:
    return "\n".join(secretive.text_of(document))


def line(text: str) -> str:
    """What becomes of one line of a kernel log. The key is made by hand: making one is slow."""
    return _Text(StandIns(b"k"), ())(text)


def facts(machine: Machine) -> Document:
    """All facts but those that are, or hold, what is replaced."""
    made = machine.model_dump()
    del made["redacted"]
    made["system"] = made["system"] and {**made["system"], "uuid": None}
    for gpu in made["gpus"] or ():
        gpu["nvml"] = gpu["nvml"] and {**gpu["nvml"], "uuid": None}
    listed = (made["nvml"] or {}).get("gpus")
    for card in listed or ():
        card["uuid"] = None
    for gap in made["gaps"]:
        gap["how"] = re.sub(r"/home/\w+", "/home/x", gap["how"])
    made["driver"]["kernel_command_line"] = None
    made["kernel_log"] = None
    return made | {"pci": machine.pci, "onboard": machine.onboard}


# --- nothing stays ------------------------------------------------------------------------------


@pytest.mark.parametrize("secret", secretive.SECRETS)
def test_no_secret_stays_anywhere(secret: str) -> None:
    before = everything(PLAIN) + secretive.UUID_TEXT
    assert secret in before
    assert secret.lower() not in everything(REDACTED).lower()


def test_the_system_uuid_is_replaced_inside_the_table() -> None:
    assert secretive.UUID.decode("latin-1") in everything(PLAIN)
    assert secretive.UUID.decode("latin-1") not in everything(REDACTED)


@pytest.mark.parametrize("innocent", secretive.VERSIONS)
def test_what_only_looks_like_a_secret_stays(innocent: str) -> None:
    assert line(innocent) == innocent
    assert innocent in REDACTED["files"]["/dev/kmsg"]


NAMES = st.text(string.ascii_lowercase, min_size=6, max_size=12).map(lambda text: f"q{text}7")
HEX = "0123456789abcdef"


def hexadecimal(count: int) -> st.SearchStrategy[str]:
    """Digits of more than one kind: the others name nothing."""
    return st.text(HEX, min_size=count, max_size=count).filter(lambda text: len(set(text)) > 2)


SECRET = st.one_of(
    st.tuples(st.sampled_from(["usb 1-1: SerialNumber: {}", "disk serial={}", "s/n: {}"]), NAMES),
    st.tuples(
        st.sampled_from(["root=UUID={} ro", "NVRM: GPU-{}", "/docker/{}", "kubepods-pod{}.slice"]),
        hexadecimal(32).map(lambda text: "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))),
    ),
    st.tuples(
        st.sampled_from(["eth0: {}", "MAC={}", "({})", "'{}',"]),
        hexadecimal(12).map(lambda text: ":".join(text[n : n + 2] for n in range(0, 12, 2))),
    ),
    st.tuples(
        st.sampled_from(["SRC={} DST=1", "nfs: server {} not responding", "http://{}/x", "{}:22", "{}."]),
        st.ip_addresses(v=4).map(str).filter(lambda text: not text.startswith(("0.", "127.", "255."))),
    ),
    st.tuples(
        st.sampled_from(["SRC={} DST=1", "[{}]:22", "addr {}/64", "{}%eth0"]),
        st.ip_addresses(v=6, network="2001:db8::/32").map(str),
    ),
)


@given(SECRET)
@settings(max_examples=400, deadline=None)
def test_every_secret_in_text_is_replaced_by_its_like(case: tuple[str, str]) -> None:
    template, secret = case
    made = line(template.format(secret))
    before, after = template.split("{}")
    assert made.startswith(before)
    assert made.endswith(after)
    stand_in = made[len(before) : len(made) - len(after)]
    assert secret not in made
    assert len(stand_in) == len(secret)
    assert re.sub(r"[0-9a-z]", "x", stand_in) == re.sub(r"[0-9a-z]", "x", secret)
    if "::" in secret or secret.count(".") == 3 or secret.count(":") == 7:
        assert ipaddress.ip_address(stand_in).version == ipaddress.ip_address(secret).version


@given(st.text(string.ascii_letters + string.digits + "-./ ", min_size=1, max_size=40), st.binary(min_size=1))
@settings(max_examples=300, deadline=None)
def test_a_stand_in_has_the_form_of_its_value(value: str, key: bytes) -> None:
    made = StandIns(key).value(value)
    assert [_form(char) for char in made] == [_form(char) for char in value]
    assert (smbios.known(made) is None) == (smbios.known(value) is None)
    assert made == StandIns(key).value(value)


def _form(char: str) -> str:
    if char.isdigit():
        return "0"
    return "A" if char.isupper() else "a" if char.islower() else char


# --- nothing else changes -----------------------------------------------------------------------


@pytest.mark.parametrize("document", [PLAIN, *(make().capture() for make in MACHINES.values())])
def test_the_machine_is_the_same_machine(document: Document) -> None:
    plain, redacted = machine(document), machine(redact(document))
    assert facts(redacted) == facts(plain)
    if plain.kernel_log:
        assert redacted.kernel_log is not None
        same = [[re.sub(r"\w", "x", text) for text in log.lines] for log in (plain.kernel_log, redacted.kernel_log)]
        assert same[0] == same[1]


def test_the_two_supplies_of_the_bmc_stay_two() -> None:
    assert len(machine(REDACTED).psus or ()) == 2  # the BMC rates both
    document = {**PLAIN, "files": {path: text for path, text in PLAIN["files"].items() if path != TABLE}}
    assert len(machine(redact(document)).psus or ()) == 2


def test_the_capture_itself_is_left_alone() -> None:
    before = json.dumps(PLAIN, sort_keys=True)
    redact(PLAIN)
    assert json.dumps(PLAIN, sort_keys=True) == before


def test_only_values_change() -> None:
    assert REDACTED["redacted"] is True
    assert REDACTED["files"].keys() == PLAIN["files"].keys()
    for same in ("links", "folders", "root", "schema"):
        assert REDACTED[same] == PLAIN[same]
    hardware = [path for path in PLAIN["files"] if path.startswith(("/sys/devices", "/proc/driver", "/proc/modules"))]
    assert len(hardware) > 30
    for path in hardware:
        assert REDACTED["files"][path] == PLAIN["files"][path]


def test_redacting_twice_is_redacting_once() -> None:
    assert redact(REDACTED) == REDACTED


# --- the table ----------------------------------------------------------------------------------


def table_of(data: bytes) -> bytes:
    return _Table(data).redacted(StandIns(b"k"))


def layout(data: bytes) -> list[tuple[int, int, int, list[int]]]:
    """Kind, handle, and the lengths of the formatted area and of each string."""
    structures, problem = smbios._walk(data, None)
    assert problem is None
    return [(made.kind, made.handle, len(made.area), [len(text) for text in made.strings]) for made in structures]


def test_the_table_keeps_every_length() -> None:
    before, after = secretive.table(), table_of(secretive.table())
    assert layout(after) == layout(before)
    assert len(after) == len(before)
    assert smbios.parse_table(after) == smbios.parse_table(before).model_copy(
        update={"system": smbios.parse_table(after).system}
    )


def test_a_serial_number_that_is_the_name_of_the_product_is_no_secret() -> None:
    system = smbios_system("X79", "X99-F8D", "X99-F8D")
    assert table_of(system) == system


def smbios_system(*strings: str) -> bytes:
    fields = bytes((1, 2, 0, 3)) + bytes(16) + bytes((6, 0, 0))
    return smbios_structure(1, 1, fields, *strings) + SMBIOS_END


@pytest.mark.parametrize("cut", [1, 3, 30, 57, 90, 200, 400])
def test_a_broken_table_is_broken_in_the_same_way(cut: int) -> None:
    data = secretive.table()[:-cut]
    before, after = smbios.parse_table(data), smbios.parse_table(table_of(data))
    assert after.gaps == before.gaps
    assert (after.slots, after.psus, after.memory_devices) == (before.slots, before.psus, before.memory_devices)


@given(st.binary(max_size=300))
@settings(max_examples=300, deadline=None)
def test_a_table_of_anything_does_no_harm(data: bytes) -> None:
    assert len(table_of(data)) == len(data)


def test_what_stands_behind_the_table_goes() -> None:
    assert b"LEFTOVER" not in table_of(secretive.table() + b"\xdd\x10\x00\x00LEFTOVER-SECRET")


def test_uuids_of_old_firmware_are_the_same_in_table_and_text() -> None:
    """Before SMBIOS 2.6 the first groups are written as they are read."""
    entry = bytearray(31)
    entry[:8] = b"_SM_\0\x1f\x02\x04"
    old = "44454c4c-4b00-1034-8058-b7c04f4d3532"
    files = {TABLE: build.packed(secretive.table()), TABLE[:-3] + "smbios_entry_point": build.packed(bytes(entry))}
    made = redact({"files": {**files, "/var/log/dmesg": f"uuid {old}\n"}})["files"]
    system = smbios.parse_table(build.unpacked(made[TABLE]), (2, 4)).system
    assert system is not None
    assert made["/var/log/dmesg"] == f"uuid {system.uuid}\n"


def test_real_tables(shared_machines: Path) -> None:
    for path in sorted(shared_machines.glob("smbios-bin/*.dmi")):
        table = secretive.bare_table(path.read_bytes())
        before, after = smbios.parse_table(table), smbios.parse_table(table_of(table))
        assert after.model_copy(update={"system": None}) == before.model_copy(update={"system": None}), path.name
        assert after.system is not None
        assert before.system is not None
        assert after.system.model_copy(update={"uuid": None}) == before.system.model_copy(update={"uuid": None})


def test_real_dumps_in_text(shared_machines: Path) -> None:
    for path in sorted(shared_machines.glob("dmi/*.txt")):
        text = path.read_text("utf-8", "replace")
        made = redact({"files": {"/x": text}})["files"]["/x"]
        without = {"system": None}
        assert smbios.parse_text(made).model_copy(update=without) == smbios.parse_text(text).model_copy(update=without)


@pytest.mark.skipif(shutil.which("dmidecode") is None, reason="no dmidecode")
def test_dmidecode_reads_the_redacted_table(tmp_path: Path) -> None:
    printed = []
    for name, data in (("plain", secretive.table()), ("redacted", table_of(secretive.table()))):
        (tmp_path / name).write_bytes(smbios_dump(data))
        command = ["dmidecode", "--from-dump", str(tmp_path / name), "-t", "0,1,2,3,4,9,17,39"]
        printed.append(subprocess.run(command, capture_output=True, text=True, check=True, timeout=30).stdout)
    plain, redacted = (text.splitlines()[2:] for text in printed)  # the first two name dmidecode and the file
    differ = {new.split(":")[0].strip() for old, new in zip(plain, redacted, strict=True) if old != new}
    assert differ == {"Serial Number", "Asset Tag", "UUID"}


# --- one value, one stand-in --------------------------------------------------------------------


def test_a_value_has_one_stand_in_in_all_of_a_capture() -> None:
    files, commands = REDACTED["files"], REDACTED["commands"]
    log, line = files["/dev/kmsg"], files["/proc/cmdline"]
    disk = re.search(r"root=UUID=(\S+)", line)
    assert disk is not None
    assert f"root=UUID={disk[1]} ro password" in log
    host = re.search(r"255:?\.?0:(\w+):eth0", line)
    assert host is not None
    assert f"Hostname set to <{host[1]}>" in log
    assert f"] {host[1]} kernel: " in next(iter(v["stdout"] for k, v in commands.items() if k.startswith("journal")))
    system = machine(REDACTED).system
    assert system is not None
    tags = re.search(r"0WCJNT, serial (\w+)", log)
    assert tags is not None
    assert tags[1].encode() in build.unpacked(files[TABLE])
    mac = re.search(r"Width x4\) (\S+)", log)
    assert mac is not None
    assert f"MAC={mac[1]}:" in log
    assert f"BOOTIF=01-{mac[1].replace(':', '-')}" in line
    card = machine(REDACTED).gpus
    assert card is not None
    assert card[0].nvml is not None
    assert f"PCI:0000:04:00: {card[0].nvml.uuid}" in log


def test_the_stand_ins_of_a_machine_last() -> None:
    later = secretive.document()
    later["files"]["/proc/cmdline"] += "more\n"
    later["commands"] = {}
    assert redact(later)["files"][TABLE] == REDACTED["files"][TABLE]


def test_another_machine_has_others() -> None:
    other = secretive.document()
    other["files"][TABLE] = build.packed(secretive.table().replace(secretive.UUID, bytes(range(16))))
    assert redact(other)["files"]["/proc/version"] != REDACTED["files"]["/proc/version"]


def test_without_smbios_the_key_is_what_the_caller_knows_or_chance() -> None:
    document = {"files": {"/var/log/dmesg": "eth0: d0:94:66:1a:2b:3c\n"}}
    assert redact(document, key=b"a") == redact(document, key=b"a")
    assert redact(document, key=b"a") != redact(document, key=b"b")
    assert redact(document) != redact(document)


def test_the_short_and_the_long_form_of_an_address_are_one_value() -> None:
    short, long = line("2001:db8::beef"), line("2001:0db8:0000:0000:0000:0000:0000:beef")
    assert ipaddress.ip_address(short) == ipaddress.ip_address(long)


def test_names_that_the_caller_gives_are_replaced_as_words() -> None:
    document = {"files": {"/var/log/dmesg": "tower: mytower tower.example pci tower-2\n"}}
    made = redact(document, names=["tower", "pci"], key=b"k")["files"]["/var/log/dmesg"]
    assert "mytower" in made
    assert " pci " in made  # a word of the kernel, whatever the host is called
    assert not re.search(r"\btower\b", made)


def test_a_log_that_is_not_utf_8_is_redacted_too() -> None:
    data = b"\xff\xfe eth0: d0:94:66:1a:2b:3c on gpubox17\nHostname set to <gpubox17>.\n"
    made = build.unpacked(redact({"files": {"/dev/kmsg": build.packed(data)}})["files"]["/dev/kmsg"])
    assert made.startswith(b"\xff\xfe eth0: ")
    assert b"d0:94" not in made
    assert b"gpubox17" not in made
