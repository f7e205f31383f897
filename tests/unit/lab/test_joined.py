# SPDX-License-Identifier: Apache-2.0
"""The plan of a test bed that is joined to the world, and the script of a real host."""

from __future__ import annotations

from ipaddress import IPv6Network

import pytest

from mrc.fabric import hostconfig
from mrc.lab.outside import bridges, make_plan, transit
from mrc.lab.realhost import joined
from mrc.testbed import plan as plans
from mrc.testbed.shape import Outside, RealHost, Shape

REAL = RealHost("h1", ("tap1", "tap2"), "tap0")
WITHOUT = RealHost("h1", ("tap1", "tap2"), None)
EVERYWHERE = IPv6Network("::/0")


def bed(real: RealHost | None, uplink: str | None = None) -> Shape:
    hosts = () if real is None else (real,)
    return Shape(hosts=3, planes=2, t1=1, outside=Outside(uplink, (), hosts))


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
    assert own.isdisjoint({plans.LOWER_MAC, plans.UPPER_MAC})


def test_transit__depends_on_the_name_and_fits_an_interface() -> None:
    one, other, long = (transit(name) for name in ("lab", "lab2", "a" * 32))
    assert one.machine_end == "mrc-lab" and len(long.machine_end) <= 15
    assert one.ipv4.ip in one.machine_ipv4.network and one.ipv6.ip in one.machine_ipv6.network
    assert not one.ipv4.network.overlaps(other.ipv4.network)
    assert not one.ipv6.network.overlaps(other.ipv6.network)


def test_joined__names_that_machines_interfaces() -> None:
    found = joined("x", bed(REAL), "h1", ("p2", "ens2"), "ens0")
    config = hostconfig.parse(found.config, "x")
    assert [port.ifname for port in config.ports] == ["p2", "ens2"]
    assert config.peers["h0"].oob == "fd00:c::1"
    assert "link set dev p2 address 02:00:00:00:00:02 mtu 9000" in found.script
    assert "address replace fd00:c::2/128 dev ens0 nodad" in found.script
    assert "conf/default" not in found.script and "dev mgmt" not in found.script
    assert (found.interfaces, found.management) == (("p2", "ens2"), "ens0")


def test_joined__without_management_exchanges_over_the_planes() -> None:
    found = joined("x", bed(WITHOUT), "h1")
    peers = hostconfig.parse(found.config, "x").peers
    assert {name: peer.oob for name, peer in peers.items()} == {
        "h0": "fd00:a::1", "h2": "fd00:a:2::1",
    }  # fmt: skip
    others = hostconfig.parse(make_plan("x", bed(WITHOUT)).configs["h0"], "x").peers
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
