"""The door to a BMC: address, password, certificate, and a service that answers badly or not at all."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from machines.build import dump, unpacked
from machines.golden import MACHINES
from redfish_service import (
    CHASSIS,
    PASSWORD,
    ROOT,
    SYSTEM,
    USER,
    Answer,
    Service,
    certificate,
    drips,
    machine,
    sends,
    serving,
)

from gpucheck import api
from gpucheck.cli import run
from gpucheck.errors import GpucheckError, InputError, UsageError
from gpucheck.facts import Parts
from gpucheck.host import LiveHost
from gpucheck.probing import probe
from gpucheck.readers import bmc
from gpucheck.recording import capture
from gpucheck.redfish import BmcAccess, BmcHost, access


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with serving(machine(), tmp_path_factory.mktemp("bmc")) as running:
        yield running


@pytest.fixture
def nowhere(tmp_path: Path) -> LiveHost:
    """A machine that answers nothing, so that all comes from the BMC."""
    (tmp_path / "empty").mkdir()
    return LiveHost(tmp_path / "empty")


def read(host: LiveHost, reached: BmcAccess) -> Parts:
    with BmcHost(host, reached) as asked:
        return bmc.read(asked)


def refused(host: LiveHost, reached: BmcAccess) -> GpucheckError:
    with pytest.raises(GpucheckError) as caught, BmcHost(host, reached):
        pass
    assert PASSWORD not in str(caught.value)
    return caught.value


# --- the command line ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "base"),
    [
        ("https://192.0.2.7", "https://192.0.2.7"),
        ("https://bmc.example:8443/", "https://bmc.example:8443"),
        ("https://[2001:db8::7]/redfish/v1/", "https://[2001:db8::7]"),
    ],
)
def test_addresses(url: str, base: str) -> None:
    assert access(url, environment={"GPUCHECK_BMC_USER": "u", "GPUCHECK_BMC_PASSWORD": "p"}).url == base


@pytest.mark.parametrize(
    "url",
    [
        "192.0.2.7", "http://192.0.2.7", "https://", "https:///x", "https://h:x", "https://h:99999", "https://[::",
        "https://h/login", "https://h?x=1", "https://h#x", "https://u:secret@h", "u:secret@h",
        "https://u%3Asecret%40h", "https://u:secret%2540h", "https://h/?password=secret", "https://h/secret",
        "https://h\n", "https://ä",
        "file:///etc/passwd", "",
    ],
)  # fmt: skip
def test_no_address(url: str) -> None:
    with pytest.raises(UsageError) as caught:
        access(url, environment={"GPUCHECK_BMC_USER": "u", "GPUCHECK_BMC_PASSWORD": "p"})
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    "text", ["reader\nhunter22:x\n", "reader:hunter22:x\n", "reader\r\nhunter22:x", "\ufeffreader:hunter22:x"]
)
def test_password_in_a_file(tmp_path: Path, text: str) -> None:
    place = tmp_path / "auth"
    place.write_bytes(text.encode())
    place.chmod(0o600)
    found = access("https://h", str(place), environment={})
    assert (found.user, found.password) == (USER, PASSWORD)
    assert PASSWORD not in repr(found)


@pytest.mark.parametrize(
    "data", [b"", b"\n", b"reader", b"reader\n", b":x", b"a\nb\nc", b"\xff:\xff", b"a:" + b"b" * 5000]
)
def test_a_file_that_holds_something_else(tmp_path: Path, data: bytes) -> None:
    place = tmp_path / "auth"
    place.write_bytes(data)
    place.chmod(0o600)
    with pytest.raises(InputError, match="does not hold a user and a password"):
        access("https://h", str(place), environment={})


def test_a_file_that_everybody_may_read(tmp_path: Path) -> None:
    place = tmp_path / "auth"
    place.write_text("a\nb\n")
    for mode in (0o644, 0o602, 0o666):
        place.chmod(mode)
        with pytest.raises(InputError, match="everybody") as caught:
            access("https://h", str(place))
        assert caught.value.hint == f"chmod 600 {place}"
    os.mkfifo(tmp_path / "pipe", 0o600)
    with pytest.raises(InputError, match="not a regular file"):
        access("https://h", str(tmp_path / "pipe"))
    for wrong in (tmp_path, tmp_path / "none"):
        with pytest.raises(InputError, match="cannot be read"):
            access("https://h", str(wrong))


def test_no_password_at_all() -> None:
    for environment in ({}, {"GPUCHECK_BMC_USER": "u"}, {"GPUCHECK_BMC_PASSWORD": "p"}):
        with pytest.raises(UsageError, match="no user and password"):
            access("https://h", environment={"PATH": "/bin", **environment})


def test_options_that_contradict_each_other(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UsageError, match="exclude"):
        access("https://h", ca_file="x", insecure=True)
    for option in (["--bmc-insecure"], ["--bmc-auth", "f"], ["--bmc-ca", "f"]):
        assert run(["probe", *option]) == 2
        assert "no meaning without --bmc" in capsys.readouterr().err


# --- a service that works -----------------------------------------------------------------------


def test_what_a_bmc_tells(service: Service, nowhere: LiveHost) -> None:
    found = read(nowhere, service.access())
    assert found.model_copy(update={"origin": ""}) == bmc.parse(machine().values())
    assert {method for method, _ in service.asked} == {"GET"}


def test_each_resource_is_asked_for_once(service: Service, nowhere: LiveHost) -> None:
    service.asked.clear()
    read(nowhere, service.access())
    paths = [path for _, path in service.asked]
    assert len(paths) == len(set(paths))


def test_a_certificate_that_nobody_vouches_for(service: Service, nowhere: LiveHost, tmp_path: Path) -> None:
    error = refused(nowhere, service.access(ca_file=None))
    assert "certificate is not trusted: self-signed certificate" in error.message
    assert error.hint is not None
    assert "--bmc-ca" in error.hint
    assert read(nowhere, service.access(ca_file=None, insecure=True)).system is not None
    other, _ = certificate(tmp_path)
    assert "certificate is not trusted" in refused(nowhere, service.access(ca_file=str(other))).message
    (tmp_path / "text").write_text("none")
    for ca in (tmp_path / "text", tmp_path / "absent"):
        assert "no certificates in it can be read" in refused(nowhere, service.access(ca_file=str(ca))).message


def test_a_certificate_for_another_name(service: Service, nowhere: LiveHost) -> None:
    url = service.url.replace("127.0.0.1", "localhost")
    reached = BmcAccess(url, USER, PASSWORD, ca_file=str(service.certificate), timeout=20)
    assert "ostname mismatch" in refused(nowhere, reached).message


def test_a_wrong_password(service: Service, nowhere: LiveHost) -> None:
    service.asked.clear()
    assert "refuses the user or the password" in refused(nowhere, service.access(password="wrong")).message
    assert len(service.asked) == 2  # a second try could lock the account


def test_a_proxy_gets_nothing(service: Service, nowhere: LiveHost, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:9")
    assert read(nowhere, service.access()).system is not None


# --- a service that does not --------------------------------------------------------------------


def test_nobody_listens(nowhere: LiveHost) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    reached = BmcAccess(f"https://127.0.0.1:{port}", USER, PASSWORD, timeout=10)
    error = refused(nowhere, reached)
    assert error.exit_code == 2
    assert "no connection: " in error.message
    assert "refused" in error.message


def test_somebody_listens_and_says_nothing(nowhere: LiveHost) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        reached = BmcAccess(f"https://127.0.0.1:{silent.getsockname()[1]}", USER, PASSWORD, timeout=0.5)
        start = time.monotonic()
        assert "did not answer within 0.5 s" in refused(nowhere, reached).message
        assert time.monotonic() - start < 5


@pytest.mark.parametrize(
    ("path", "answer", "words"),
    [
        (ROOT, sends(200, b"<html>"), "not that of a Redfish service"),
        (ROOT, sends(200, b"[" * 100_000), "not that of a Redfish service"),
        (ROOT, sends(200, b'{"Systems": {"@odata.id": "https://192.0.2.1/"}}'), "not that of a Redfish service"),
        (ROOT, sends(404), "HTTP status 404"),
        (ROOT, sends(503), "HTTP status 503"),
        (ROOT, sends(302, Location="https://192.0.2.1/redfish/v1/"), "sends us on to another host, 192.0.2.1"),
        (ROOT, sends(302, Location="http://127.0.0.1/"), "sends us on to another host"),
        (ROOT, sends(302, Location="/redfish/v1/"), "from one address to the next without end"),
        (ROOT, sends(200, b"x" * (5 << 20)), "more than any BMC has to say"),
        (ROOT, drips(20), "did not answer within"),
        (f"{ROOT}/Systems", sends(403), "may not read /redfish/v1/Systems"),
    ],
)
def test_answers_that_are_none(path: str, answer: Answer, words: str, tmp_path: Path, nowhere: LiveHost) -> None:
    tree = machine()
    first = {ROOT: sends(200, json.dumps(tree[ROOT]).encode())}
    with serving({k: v for k, v in tree.items() if k != ROOT}, tmp_path, {**first, path: answer}) as running:
        assert words in refused(nowhere, running.access(timeout=3)).message


@pytest.mark.parametrize(
    ("path", "answer", "reason"),
    [
        (f"{SYSTEM}/Bios", sends(500), "unreadable"),
        (f"{SYSTEM}/Bios", sends(403), "unreadable"),
        (f"{SYSTEM}/Bios", sends(200, b"no JSON"), "unreadable"),
        (f"{SYSTEM}/Bios", sends(200, b"x" * (5 << 20)), "unreadable"),
        (f"{SYSTEM}/Bios", drips(20), "timed-out"),
    ],
)
def test_one_bad_resource_is_one_gap(path: str, answer: Answer, reason: str, tmp_path: Path, nowhere: LiveHost) -> None:
    with serving(machine(), tmp_path, {path: answer}) as running:
        found = read(nowhere, running.access(timeout=3))
    assert [gap.reason for gap in found.gaps if gap.fact == "bmc"] == [reason]
    assert found.system is not None
    assert found.firmware_settings is None


def test_a_slash_at_the_end(tmp_path: Path, nowhere: LiveHost) -> None:
    """As HPE's service has it: without the slash it sends us on."""
    tree = machine()
    bios = tree.pop(f"{SYSTEM}/Bios")

    def answer(handler: Any) -> None:
        if handler.path.endswith("/"):
            sends(200, json.dumps(bios).encode())(handler)
        else:
            sends(308, Location=handler.path + "/")(handler)

    with serving(tree, tmp_path, {f"{SYSTEM}/Bios": answer}) as running:
        assert read(nowhere, running.access()).firmware_settings == bmc.settings(bios["Attributes"])


# --- together with the machine ------------------------------------------------------------------


def of_the_same(capture_path: Path) -> str:
    """UUID of the golden R730, from its SMBIOS table."""
    from gpucheck.probing import read as read_all
    from gpucheck.sources import open_source

    opened = open_source(str(capture_path))
    assert not isinstance(opened, tuple)
    system = next(part.system for part in read_all(opened) if part.system is not None)
    assert system.uuid is not None
    return system.uuid


@pytest.fixture
def golden(tmp_path: Path) -> Path:
    place = tmp_path / "golden.json"
    place.write_text(dump(MACHINES["r730-two-p40"]().capture()))
    return place


def test_bmc_and_capture_are_joined(golden: Path, tmp_path: Path) -> None:
    with serving(machine(UUID=of_the_same(golden)), tmp_path) as running:
        made = probe([str(golden)], bmc=running.access()).machine
    assert made.firmware_settings == bmc.parse(machine().values()).firmware_settings
    assert made.power is not None
    assert made.power.redundancy == "full"
    assert {socket.tdp_watts for socket in made.cpu_sockets or ()} == {120}


def test_the_bmc_of_another_machine(golden: Path, tmp_path: Path) -> None:
    other = machine(UUID="4c4c4544-0000-4000-8000-000000000001")
    with serving(other, tmp_path) as running, pytest.raises(InputError, match="another machine"):
        probe([str(golden)], bmc=running.access())


def test_a_uuid_in_the_other_order_of_bytes(golden: Path, tmp_path: Path) -> None:
    first, second, third, *rest = of_the_same(golden).split("-")
    swapped = [bytes.fromhex(group)[::-1].hex() for group in (first, second, third)]
    with serving(machine(UUID="-".join([*swapped, *rest]), Model="R730"), tmp_path) as running:
        assert probe([str(golden)], bmc=running.access()).machine.power is not None


@pytest.mark.parametrize("redact", [True, False])
def test_a_capture_replays_to_the_same(redact: bool, golden: Path, tmp_path: Path) -> None:
    from gpucheck.sources import open_source

    first, second, third, *rest = of_the_same(golden).split("-")
    swapped = "-".join([*(bytes.fromhex(group)[::-1].hex() for group in (first, second, third)), *rest])
    opened = open_source(str(golden))
    assert not isinstance(opened, tuple)
    tree = machine(UUID=swapped)
    with serving(tree, tmp_path, {f"{CHASSIS}/PCIeSlots": sends(500)}) as running:
        before = probe([str(golden)], bmc=running.access()).machine
        with BmcHost(opened, running.access()) as asked:
            made = capture(asked, redact=redact)
    place = tmp_path / "made.json"
    place.write_text(json.dumps(made))
    after = probe([str(place)]).machine
    for fact in ("power", "firmware_settings", "psus", "cpu_sockets", "slots"):
        assert getattr(after, fact) == getattr(before, fact), fact
    assert [gap.how for gap in after.gaps if gap.fact == "bmc"] == [gap.how for gap in before.gaps if gap.fact == "bmc"]
    text = place.read_text()
    for secret in ("4K4XM52", "CN7475143S00AB", "gpubox17", "CN17972", PASSWORD, running.url):
        assert secret not in text
    assert (swapped in text) is not redact
    assert unpacked(made["files"]["/redfish/v1/index.json"])


def test_the_command(service: Service, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    auth = tmp_path / "auth"
    auth.write_text(f"{USER}\n{PASSWORD}\n")
    auth.chmod(0o600)
    lscpu = tmp_path / "lscpu.txt"
    lscpu.write_text("Architecture: x86_64\nSocket(s): 2\n")
    options = ["--bmc", service.url, "--bmc-auth", str(auth), "--bmc-ca", str(service.certificate)]
    assert run(["probe", "--from", str(lscpu), "--json", *options]) == 3
    document = json.loads(capsys.readouterr().out)
    assert document["machine"]["firmware_settings"]["MmioAbove4Gb"] == "Disabled"
    assert document["machine"]["system"]["product"] == "PowerEdge R730"
    asked = api.probe([str(lscpu)], bmc=service.url, bmc_auth=str(auth), bmc_ca=str(service.certificate))
    assert asked.machine.model_dump(mode="json", by_alias=True) == document["machine"]
    with pytest.raises(InputError, match="certificate"):
        api.probe([str(lscpu)], bmc=service.url, bmc_auth=str(auth))
    assert run(["probe", "--from", str(lscpu), "--json", *options[:-2]]) == 2
    refusal = json.loads(capsys.readouterr().out)["error"]
    assert refusal["input"] == service.url
    assert "certificate" in refusal["message"]
    assert run(["capture", str(tmp_path / "c.json"), *options[:-2]]) == 2
    assert not (tmp_path / "c.json").exists()


# --- a simulator that others wrote --------------------------------------------------------------


@pytest.mark.skipif(find_spec("sushy_tools") is None, reason="no sushy-tools, whose Redfish emulator is asked")
def test_an_emulator(tmp_path: Path, nowhere: LiveHost) -> None:
    import bcrypt

    made, key = certificate(tmp_path)
    users = tmp_path / "htpasswd"
    users.write_bytes(USER.encode() + b":" + bcrypt.hashpw(PASSWORD.encode(), bcrypt.gensalt(4)) + b"\n")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    config = tmp_path / "emulator.conf"
    config.write_text(
        f"SUSHY_EMULATOR_AUTH_FILE = {str(users)!r}\nSUSHY_EMULATOR_SSL_CERT = {str(made)!r}\n"
        f"SUSHY_EMULATOR_SSL_KEY = {str(key)!r}\nSUSHY_EMULATOR_STATE_DIR = {str(tmp_path)!r}\n"
    )
    start = "from sushy_tools.emulator.main import main; main()"
    words = [sys.executable, "-c", start, "--config", str(config), "-i", "127.0.0.1", "-p", str(port), "--fake"]
    with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as emulator:
        try:
            for _ in range(200):
                with socket.socket() as knock:
                    if knock.connect_ex(("127.0.0.1", port)) == 0:
                        break
                assert emulator.poll() is None, "the emulator has ended"
                time.sleep(0.1)
            reached = BmcAccess(f"https://127.0.0.1:{port}", USER, PASSWORD, ca_file=str(made), timeout=30)
            found = read(nowhere, reached)
            wrong = refused(nowhere, BmcAccess(reached.url, USER, "wrong", ca_file=str(made), timeout=30))
        finally:
            emulator.terminate()
    assert found.system is not None
    assert (found.system.vendor, found.system.uuid) == ("Sushy Emulator", "27946b59-9e44-4fa7-8e91-f3527a1ef094")
    assert "refuses the user or the password" in wrong.message
