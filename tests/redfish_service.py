"""A Redfish service on loopback: a tree of resources behind HTTPS, with the faults that a BMC can have."""

from __future__ import annotations

import base64
import json
import shutil
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from gpucheck.redfish import BmcAccess

Tree = dict[str, dict[str, Any]]
USER, PASSWORD = "reader", "hunter22:x"
ROOT, SYSTEM, CHASSIS = "/redfish/v1", "/redfish/v1/Systems/System.Embedded.1", "/redfish/v1/Chassis/System.Embedded.1"


def resource(path: str, kind: str, **content: Any) -> Tree:
    return {path: {"@odata.id": path, "@odata.type": f"#{kind}.v1_5_0.{kind}", **content}}


def link(path: str) -> dict[str, str]:
    return {"@odata.id": path}


def links(*paths: str) -> list[dict[str, str]]:
    return [link(path) for path in paths]


def collection(path: str, kind: str, *members: str, **content: Any) -> Tree:
    return {path: {"@odata.id": path, "@odata.type": f"#{kind}.{kind}", "Members": links(*members), **content}}


def supply(number: int, **content: Any) -> dict[str, Any]:
    """A power supply as iDRAC lists it in the old form."""
    return {
        "@odata.id": f"{CHASSIS}/Power#/PowerSupplies/{number - 1}",
        "MemberId": f"PSU.Slot.{number}",
        "Name": f"PS{number} Status",
        "Manufacturer": "DELL",
        "Model": "PWR SPLY,1100W,RDNT,LTON",
        "PartNumber": "0ABCD1A00",
        "SerialNumber": f"CN17972{number}",
        "PowerCapacityWatts": 1100,
        "LineInputVoltage": 230,
        "Status": {"State": "Enabled", "Health": "OK"},
        **content,
    }


def old_power(*supplies: dict[str, Any], health: str = "OK") -> Tree:
    group = {"Name": "System Board PS Redundancy", "Mode": "N+m", "Status": {"State": "Enabled", "Health": health}}
    control = [{"PowerConsumedWatts": 312, "PowerCapacityWatts": 1628}]
    return resource(f"{CHASSIS}/Power", "Power", PowerSupplies=list(supplies), Redundancy=[group], PowerControl=control)


def new_power(*units: dict[str, Any], health: str = "OK") -> Tree:
    """The form with a resource for each unit."""
    home = f"{CHASSIS}/PowerSubsystem"
    group = {"RedundancyType": "NPlusM", "Status": {"State": "Enabled", "Health": health}}
    tree = resource(home, "PowerSubsystem", PowerSupplies=link(f"{home}/PowerSupplies"), PowerSupplyRedundancy=[group])
    paths = [f"{home}/PowerSupplies/Bay{n}" for n in range(1, len(units) + 1)]
    tree |= collection(f"{home}/PowerSupplies", "PowerSupplyCollection", *paths)
    for path, unit in zip(paths, units, strict=True):
        tree |= resource(path, "PowerSupply", **unit)
    return tree


def machine(power: Tree | None = None, **system: Any) -> Tree:
    """An R730 with two processors, two supplies and two slots."""
    slots = [
        {
            "Location": {"PartLocation": {"ServiceLabel": "PCIe Slot 4"}},
            "PCIeType": "Gen3",
            "Lanes": 16,
            "Links": {"PCIeDevice": links(f"{SYSTEM}/PCIeDevices/130-0")},
        },
        {"Location": {"PartLocation": {"LocationOrdinalValue": 6}}, "Lanes": 16, "Status": {"State": "Absent"}},
    ]
    attributes = {
        "MmioAbove4Gb": "Disabled",
        "SriovGlobalEnable": "Enabled",
        "BootMode": "Bios",
        "Slot4": "Enabled",
        "AssetTag": "RACK7",
        "DimmSlot01": "Enabled",
        "IscsiInitiatorName": "iqn.1988-11.com.dell:gpubox17",
    }
    tree = resource(ROOT, "ServiceRoot", Systems=link(f"{ROOT}/Systems"), RedfishVersion="1.4.0")
    tree |= collection(f"{ROOT}/Systems", "ComputerSystemCollection", SYSTEM)
    tree |= resource(
        SYSTEM,
        "ComputerSystem",
        **{
            "Manufacturer": "Dell Inc.",
            "Model": "PowerEdge R730",
            "BiosVersion": "2.13.0",
            "SKU": "4K4XM52",
            "SerialNumber": "CN7475143S00AB",
            "HostName": "gpubox17",
            "UUID": "4c4c4544-005a-3110-8036-b4c04f4d3232",
            "Bios": link(f"{SYSTEM}/Bios"),
            "Processors": link(f"{SYSTEM}/Processors"),
            "Links": {"Chassis": links(CHASSIS)},
            **system,
        },
    )
    tree |= resource(f"{SYSTEM}/Bios", "Bios", Attributes=attributes)
    tree |= collection(f"{SYSTEM}/Processors", "ProcessorCollection", *(f"{SYSTEM}/Processors/{n}" for n in (1, 2, 3)))
    for number in (1, 2):
        known = {"Socket": f"CPU{number}", "Model": "Intel(R) Xeon(R) CPU E5-2680 v4 @ 2.40GHz", "TDPWatts": 120}
        state = {"State": "Enabled", "Health": "OK"}
        tree |= resource(f"{SYSTEM}/Processors/{number}", "Processor", ProcessorType="CPU", Status=state, **known)
    tree |= resource(f"{SYSTEM}/Processors/3", "Processor", ProcessorType="GPU", Model="Tesla P40")
    tree |= resource(
        CHASSIS,
        "Chassis",
        Power=link(f"{CHASSIS}/Power"),
        PowerSubsystem=link(f"{CHASSIS}/PowerSubsystem"),
        PCIeSlots=link(f"{CHASSIS}/PCIeSlots"),
        Thermal=link(f"{CHASSIS}/Thermal"),
    )
    tree |= resource(f"{CHASSIS}/PCIeSlots", "PCIeSlots", Slots=slots)
    return tree | (old_power(supply(1), supply(2)) if power is None else power)


# --- serving ------------------------------------------------------------------------------------

Answer = Callable[[BaseHTTPRequestHandler], None]


@dataclass
class Service:
    """The running service: where it is, and what was asked of it."""

    url: str
    certificate: Path
    asked: list[tuple[str, str]] = field(default_factory=list)
    """Method and path of each request."""

    def access(self, **known: Any) -> BmcAccess:
        settings = {"user": USER, "password": PASSWORD, "ca_file": str(self.certificate), "timeout": 20.0}
        return BmcAccess(self.url, **{**settings, **known})


def certificate(folder: Path) -> tuple[Path, Path]:
    """A certificate for 127.0.0.1 that nobody signed but itself, and its key."""
    if shutil.which("openssl") is None:
        pytest.skip("no openssl, which makes the certificate")
    made, key = folder / "certificate.pem", folder / "key.pem"
    words = "req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=bmc -addext subjectAltName=IP:127.0.0.1"
    command = ["openssl", *words.split(), "-out", str(made), "-keyout", str(key)]
    subprocess.run(command, check=True, capture_output=True)
    return made, key


@contextmanager
def serving(tree: Tree, folder: Path, answers: dict[str, Answer] | None = None) -> Iterator[Service]:
    """Serve a tree until the end of the block. ``answers`` take the place of the resource at their path."""
    made, key = certificate(folder)
    special = answers or {}
    token = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            path = self.path.rstrip("/")
            service.asked.append((self.command, self.path))
            if path != ROOT and self.headers.get("Authorization") != f"Basic {token}":
                reply(self, 401, b"{}")
            elif path in special:
                special[path](self)
            elif path in tree:
                reply(self, 200, json.dumps(tree[path]).encode())
            else:
                reply(self, 404, b"{}")

        def log_message(self, format: str, *arguments: Any) -> None:
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def finish_request(self, request: Any, client_address: Any) -> None:
            with context.wrap_socket(request, server_side=True) as secure:
                Handler(secure, client_address, self)

        def handle_error(self, request: Any, client_address: Any) -> None:
            pass  # a client that does not trust us hangs up

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(made, key)
    with Server(("127.0.0.1", 0), Handler) as server:
        service = Service(f"https://127.0.0.1:{server.server_address[1]}", made)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield service
        finally:
            server.shutdown()
            thread.join()


def reply(handler: BaseHTTPRequestHandler, status: int, body: bytes, **headers: str) -> None:
    handler.send_response(status)
    for name, value in headers.items():
        handler.send_header(name, value)
    handler.send_header("Content-Length", str(len(body)))
    handler.end_headers()
    handler.wfile.write(body)


def sends(status: int, body: bytes = b"{}", **headers: str) -> Answer:
    return lambda handler: reply(handler, status, body, **headers)


def drips(seconds: float) -> Answer:
    """A byte of the head now and then: no single step is slow."""

    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.wfile.write(b"HTTP/1.1 200 OK\r\n")
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            handler.wfile.write(b"X")
            time.sleep(0.05)

    return answer
