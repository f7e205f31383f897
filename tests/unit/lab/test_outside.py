# SPDX-License-Identifier: Apache-2.0
"""What joins a test bed to the world: in a file, as options, in a plan, and what is refused."""

from __future__ import annotations

import re
import tomllib
from argparse import Namespace
from ipaddress import IPv6Network
from pathlib import Path

import pytest
from printed import printed

from mrc.cli.main import main
from mrc.errors import ConfigError
from mrc.fabric.hostconfig import HostConfig
from mrc.lab import outside
from mrc.lab.export import joined
from mrc.lab.outside import bridges, make_plan, parse_real_host, transit
from mrc.lab.uplink import usable
from mrc.sim.scenario import parse_scenario
from mrc.testbed import plan as plans
from mrc.testbed import shape, state
from mrc.testbed.shape import Fabric, Outside, RealHost, Shape
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

[[outside.hosts]]
host = "h1"
interfaces = ["tap1", "tap2"]
management = "tap0"
"""
)
WHOLE = Outside("eth0", (RealHost("h1", ("tap1", "tap2"), "tap0"),))


def shape_of(text: str, fabric: Fabric = Fabric.KERNEL) -> Shape:
    return shape.parse_topology(tomllib.loads(text), "x", "x.toml", fabric).shape


def test_read__every_key() -> None:
    assert shape_of(FILE).outside == WHOLE
    assert shape_of(BED).outside == Outside()


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
        ('[outside]\nuplink = "a b"', "'a b' is not the name"),
        ('[[outside.hosts]]\ninterfaces = ["a", "b"]', r"outside.hosts\[0\].host: is missing"),
        (
            '[outside]\nuplink = "a"\n[[outside.hosts]]\nhost = "h1"\ninterfaces = ["a", "b"]',
            "interface a is named twice",
        ),
    ],
)
def test_read__refusals(more: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        shape_of(BED + more)


def test_check__not_all_hosts_are_real() -> None:
    both = tuple(RealHost(f"h{number}", (f"a{number}",), None) for number in range(2))
    with pytest.raises(ValueError, match="leave one to the test bed"):
        Shape(planes=1, outside=Outside(None, both))
    with pytest.raises(ValueError, match="host h0 is named twice"):
        Shape(planes=1, outside=Outside(None, (both[0], both[0])))


def test_parse__options() -> None:
    assert parse_real_host("h1=tap1,tap2") == RealHost("h1", ("tap1", "tap2"), None)
    assert parse_real_host("h1=tap1,mgmt:tap0") == RealHost("h1", ("tap1",), "tap0")
    for text in ("h1", "h1=", "=tap1", "h1=mgmt:tap0", "h1=tap1,,tap2"):
        with pytest.raises(ValueError, match="is not HOST=INTERFACE"):
            parse_real_host(text)


def test_changed__options_override_the_file() -> None:
    more = RealHost("h2", ("a", "b"), None)
    none = Namespace(uplink=None, real_host=[more])
    assert outside.outside_of(none, WHOLE) == Outside("eth0", (*WHOLE.hosts, more))
    other = Namespace(uplink="eth9", real_host=[])
    assert outside.outside_of(other, WHOLE).uplink == "eth9"


def test_lines__say_all_of_it() -> None:
    assert outside.outside_lines(WHOLE) == [
        "uplink eth0: hosts reach the world by NAT",
        "h1 is a real host at tap1, tap2, management tap0; what it configures: mrc testbed join h1",
    ]
    assert outside.outside_lines(Outside()) == []


# ---- Plans ---------------------------------------------------------------------------------------


REAL = RealHost("h1", ("tap1", "tap2"), "tap0")
WITHOUT = RealHost("h1", ("tap1", "tap2"), None)
EVERYWHERE = IPv6Network("::/0")


def bed(real: RealHost | None, uplink: str | None = None) -> Shape:
    hosts = () if real is None else (real,)
    return Shape(hosts=3, planes=2, t1=1, outside=Outside(uplink, hosts))


def test_make_plan__is_the_usual_one_without() -> None:
    assert make_plan("x", bed(None)) == plans.make_plan("x", bed(None))


def test_make_plan__namespaces_have_a_way_out_and_real_hosts_keep_theirs() -> None:
    plan = make_plan("x", bed(REAL, "eth0"))
    ways = {
        name: [route.src for route in node.routes if route.dst == EVERYWHERE]
        for name, node in plan.nodes.items()
    }
    assert {name for name, found in ways.items() if found} == {"h0", "h2"}
    assert ways["h2"] == [plan.shape.addresses.oob(2)]
    assert "default" not in joined("x", plan.shape, "h1").script


def test_make_plan__a_stand_in_has_nothing_of_the_host() -> None:
    plan = make_plan("x", bed(REAL))
    node = plan.nodes["h1"]
    assert (node.routes, node.addresses, node.ipv4, node.neighbours) == ((), (), (), ())
    assert bridges(REAL, plan) == {"tap1": "p1", "tap2": "p2", "tap0": "mgmt"}
    own = {link.lower_mac for link in plan.links if link.lower == "h1"}
    assert own.isdisjoint({plans.BedLink.LOWER_MAC, plans.BedLink.UPPER_MAC})


def test_transit__depends_on_the_name_and_fits_an_interface() -> None:
    one, other, long = (transit(name) for name in ("lab", "lab2", "a" * 32))
    assert one.machine_end == "mrc-lab" and len(long.machine_end) <= 15
    assert one.ipv4.ip in one.machine_ipv4.network and one.ipv6.ip in one.machine_ipv6.network
    assert not one.ipv4.network.overlaps(other.ipv4.network)
    assert not one.ipv6.network.overlaps(other.ipv6.network)


def test_joined__names_that_machines_interfaces() -> None:
    found = joined("x", bed(REAL), "h1", ("p2", "ens2"), "ens0")
    config = HostConfig.parse(found.config, "x")
    assert [port.ifname for port in config.ports] == ["p2", "ens2"]
    assert config.peers["h0"].oob == "fd00:c::1"
    assert "link set dev p2 address 02:00:00:00:00:02 mtu 9000" in found.script
    assert "address replace fd00:c::2/128 dev ens0 nodad" in found.script
    assert "conf/default" not in found.script and "dev mgmt" not in found.script
    assert (found.interfaces, found.management) == (("p2", "ens2"), "ens0")


def test_joined__without_management_exchanges_over_the_planes() -> None:
    found = joined("x", bed(WITHOUT), "h1")
    peers = HostConfig.parse(found.config, "x").peers
    assert {name: peer.oob for name, peer in peers.items()} == {
        "h0": "fd00:a::1", "h2": "fd00:a:2::1",
    }  # fmt: skip
    others = HostConfig.parse(make_plan("x", bed(WITHOUT)).configs["h0"], "x").peers
    assert others["h1"].oob == "fd00:a:1::1" and others["h2"].oob == "fd00:c::3"
    assert "fd00:c::2/128" not in found.script and found.management is None


@pytest.mark.parametrize(
    ("real", "host", "own", "management", "said"),
    [
        (REAL, "h0", (), "", "h0 is no real host of this test bed: h1"),
        (None, "h0", (), "", "there is none"),
        (REAL, "h1", ("a",), "", "h1 has 2 planes, not 1"),
        (REAL, "h1", ("a", "$(b)"), "", "'.*' is not the name of an interface"),
        (WITHOUT, "h1", (), "ens0", "h1 has no interface of the management network"),
    ],
)
def test_joined__refusals(
    real: RealHost | None, host: str, own: tuple[str, ...], management: str, said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        joined("x", bed(real), host, own, management)


# ---- The resolver --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (["nameserver 192.0.2.1\nsearch a.example\n"], "nameserver 192.0.2.1\nsearch a.example\n"),
        (["nameserver 127.0.0.1\nnameserver 2001:db8::1"], "nameserver 2001:db8::1\n"),
        (["nameserver 127.0.0.53\n", "nameserver 192.0.2.1\n"], "nameserver 192.0.2.1\n"),
        (["nameserver ::1\n", ""], None),
        (["nameserver fe80::1%eth0\n"], None),
        (["nameserver\nnameserver here\nsearch a.example\n"], None),
    ],
)
def test_usable(texts: list[str], expected: str | None) -> None:
    assert usable(texts) == expected


# ---- mrc testbed plan ----------------------------------------------------------------------------


def typed(*words: str) -> int:
    return main(["testbed", "plan", *words])


def test_plan__what_joins_it_to_the_world(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--planes", "2", "--uplink", "eth0", "--real-host", "h1=tap1,tap2"]
    assert typed(*words) == 0
    shown = capsys.readouterr().out.splitlines()
    assert "h1 is a real host at tap1, tap2; what it configures: mrc testbed join h1" in shown
    assert typed(*words, "--json") == 0
    assert printed("testbed plan", capsys.readouterr().out)["outside"] == {
        "uplink": "eth0",
        "hosts": [{"host": "h1", "interfaces": ["tap1", "tap2"], "management": None}],
    }  # fmt: skip
    assert main(["testbed", "export", "--netns-script", "-", *words]) == 2
    assert "other tools join no test bed to the world" in capsys.readouterr().err


def test_plan__over_machines(capsys: pytest.CaptureFixture[str]) -> None:
    """Goal: which machine has what, before any is reached."""
    assert typed("--hosts", "8", "--t0", "4", "--t1", "4", "--on", "host-a,host-b") == 0
    shown = capsys.readouterr().out.splitlines()
    assert "host-b: h4..h7, t0:*.2, t0:*.3, t1:*.1, t1:*.3, 32 links to other machines" in shown
    assert typed("--t1", "1", "--on", "host-a,host-b", "--json") == 0
    told = printed("testbed plan", capsys.readouterr().out)
    a, b = told["machines"]
    assert (a["name"], a["address"], a["hosts"], a["lost"]) == ("host-a", None, ["h0"], None)
    assert b["switches"] == ["t0:1.1", "t0:2.1", "t1:2.0", "t0:3.1", "t0:4.1", "t1:4.0"]
    assert a["tunnels"] == b["tunnels"] == 4


@pytest.mark.parametrize(
    "words, why",
    [
        (("--on", "a,b,c"), "3 machines for 2 T0s in a plane: .* or --t0 3 or more"),
        (("--on", "a"), "at least two machines"),
        (("--on", "a,b", "--fabric", "emulated"), "use a kernel fabric over several"),
        (("--on", "/no/such.toml"), "/no/such.toml: No such file or directory"),
    ],
)
def test_plan__refuses_machines(
    words: tuple[str, ...], why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert typed(*words) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert re.search(why, line)
