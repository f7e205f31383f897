# SPDX-License-Identifier: Apache-2.0
"""What joins a test bed to the world: in a file, as options, and what is refused."""

from __future__ import annotations

import tomllib
from argparse import Namespace
from pathlib import Path

import pytest

from mrc.errors import ConfigError
from mrc.lab import outside
from mrc.lab.outside import parse_lent, parse_real_host
from mrc.sim.scenario import parse_scenario
from mrc.testbed import shape, state
from mrc.testbed.shape import NOTHING, Fabric, LentInterface, Outside, RealHost, Shape
from mrc.testbed.state import BedState

BED = """
[topology]
hosts = 3
planes = 2
t1 = 1
"""
FILE = (
    BED
    + """
[outside]
uplink = "eth0"

[[outside.interfaces]]
interface = "eth2"
node = "t1:2.0"

[[outside.hosts]]
host = "h1"
interfaces = ["tap1", "tap2"]
management = "tap0"
"""
)
WHOLE = Outside(
    "eth0", (LentInterface("eth2", "t1:2.0"),), (RealHost("h1", ("tap1", "tap2"), "tap0"),)
)


def shape_of(text: str, fabric: Fabric = Fabric.KERNEL) -> Shape:
    return shape.parse_topology(tomllib.loads(text), "x", "x.toml", fabric).shape


def test_read__every_key() -> None:
    assert shape_of(FILE).outside == WHOLE
    assert shape_of(BED).outside == NOTHING


def test_state__keeps_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MRC_RUN_DIR", str(tmp_path))
    for text in (FILE, BED):
        state.save("x", BedState(shape_of(text)))
        assert state.load("x") == BedState(shape_of(text))


def test_simulator__ignores_it() -> None:
    text = 'title = "x"\n' + FILE + '[[traffic]]\nkind = "permutation"\nwrite = "1MiB"\n'
    assert parse_scenario(tomllib.loads(text), "x", "x.toml").topology.hosts == 3


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ('[outside]\ncolour = "red"', "x.toml: outside.colour: is unknown"),
        ('[[outside.hosts]]\nhost = "h9"\ninterfaces = ["a", "b"]', "h9 is no host .* use h0..h2"),
        ('[[outside.hosts]]\nhost = "h1"\ninterfaces = ["a"]', "h1 has 2 planes, not 1"),
        ('[[outside.interfaces]]\ninterface = "a"\nnode = "h7"', "h7 is no host or switch: use h0"),
        ('[[outside.interfaces]]\ninterface = "a"\nnode = "t1:3.0"', "no plane 3, use 1..2"),
        ('[[outside.interfaces]]\ninterface = "a b"\nnode = "h0"', "'a b' is not the name"),
        ('[[outside.interfaces]]\ninterface = "a"', r"outside.interfaces\[0\].node: is missing"),
        (
            '[outside]\nuplink = "a"\n[[outside.interfaces]]\ninterface = "a"\nnode = "h0"',
            "interface a is named twice",
        ),
    ],
)
def test_read__refusals(more: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        shape_of(BED + more)


def test_check__emulated_switches_are_no_namespaces() -> None:
    with pytest.raises(ConfigError, match=r"t1:2\.0 is no namespace: one process stands for all"):
        shape_of(FILE, Fabric.EMULATED)


def test_check__a_real_host_has_interfaces_of_its_own() -> None:
    given = Outside(None, (LentInterface("a", "h1"),), (RealHost("h1", ("b", "c"), None),))
    with pytest.raises(ValueError, match="a: h1 is a real host, and has its own"):
        Shape(planes=2, outside=given)


def test_check__not_all_hosts_are_real() -> None:
    both = tuple(RealHost(f"h{number}", (f"a{number}",), None) for number in range(2))
    with pytest.raises(ValueError, match="leave one to the test bed"):
        Shape(planes=1, outside=Outside(None, (), both))
    with pytest.raises(ValueError, match="host h0 is named twice"):
        Shape(planes=1, outside=Outside(None, (), (both[0], both[0])))


def test_parse__options() -> None:
    assert parse_lent("eth2=t1:2.0") == LentInterface("eth2", "t1:2.0")
    assert parse_real_host("h1=tap1,tap2") == RealHost("h1", ("tap1", "tap2"), None)
    assert parse_real_host("h1=tap1,mgmt:tap0") == RealHost("h1", ("tap1",), "tap0")
    for text in ("eth2", "=h0", "eth2="):
        with pytest.raises(ValueError, match="is not INTERFACE=NODE"):
            parse_lent(text)
    for text in ("h1", "h1=", "=tap1", "h1=mgmt:tap0", "h1=tap1,,tap2"):
        with pytest.raises(ValueError, match="is not HOST=INTERFACE"):
            parse_real_host(text)


def test_changed__options_override_the_file() -> None:
    more = RealHost("h2", ("a", "b"), None)
    none = Namespace(uplink=None, interface=[], real_host=[more])
    assert outside.outside_of(none, WHOLE) == Outside(
        "eth0", WHOLE.interfaces, (*WHOLE.hosts, more)
    )
    other = Namespace(uplink="eth9", interface=[], real_host=[])
    assert outside.outside_of(other, WHOLE).uplink == "eth9"


def test_lines__say_all_of_it() -> None:
    assert outside.outside_lines(WHOLE) == [
        "uplink eth0: hosts reach the world by NAT",
        "t1:2.0 has the interface eth2",
        "h1 is a real host at tap1, tap2, management tap0; what it configures: mrc testbed join h1",
    ]
    assert outside.outside_lines(NOTHING) == []
