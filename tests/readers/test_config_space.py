import pytest
from machines.registers import REDIRECTS, SERIAL, bridge

from gpucheck.facts import Port
from gpucheck.readers.config_space import access_control, express, port, without_serial_number


def test_a_port_with_a_card_whose_link_is_down() -> None:
    expected = Port(presence=True, link_active=False, link_disabled=False, power_off=False)
    assert port(bridge(presence=True)) == port(bridge(presence=True, size=256)) == expected


@pytest.mark.parametrize(
    ("trait", "field"), [("link", "link_active"), ("disabled", "link_disabled"), ("power_off", "power_off")]
)
def test_each_bit_is_its_own(trait: str, field: str) -> None:
    made = port(bridge(**{trait: True}))
    assert made is not None
    assert [name for name, value in made if value] == [field]


def test_a_port_without_power_control_has_power() -> None:
    config = bytearray(bridge(presence=True, power_off=True))
    config[0xA4] = 0
    made = port(bytes(config))
    assert made is not None
    assert not made.power_off


@pytest.mark.parametrize(
    "config",
    [
        bridge(size=64),
        bridge(presence=True, slot=False),
        bridge(presence=True, tells_link=False),
        b"\xff" * 256,
        bytes(256),
        b"",
    ],
    ids=["no root", "no slot", "cannot tell", "dead", "no capabilities", "empty"],
)
def test_nothing_is_told_of_other_ports(config: bytes) -> None:
    assert port(config) is None


def test_access_control() -> None:
    assert access_control(bridge(acs=REDIRECTS)) == ("SrcValid", "ReqRedir", "CmpltRedir", "UpstreamFwd")
    assert access_control(bridge(acs=0)) == access_control(bridge(acs=None)) == ()
    assert access_control(bridge(acs=REDIRECTS, size=256)) is None
    assert access_control(b"\xff" * 4096) == ()


def test_lists_that_never_end() -> None:
    config = bytearray(bridge())
    config[0x41], config[0x91] = 0x40, 0x40
    config[0x90] = 0x05
    assert express(bytes(config)) is None
    config[0x102:0x104] = (0x1000 | 1).to_bytes(2, "little")  # the first points at itself
    config[0x100] = 0x01
    assert access_control(bytes(config)) == ()


def test_the_serial_number_goes_and_all_else_stays() -> None:
    config = bridge(acs=REDIRECTS)
    blank = without_serial_number(config)
    assert SERIAL in config
    assert blank == config.replace(SERIAL, bytes(8))
    assert without_serial_number(bridge(size=256)) == bridge(size=256)
