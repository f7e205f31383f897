# SPDX-License-Identifier: Apache-2.0
"""Topology files, shapes and plans; every path is walked, route by route, without a kernel."""

from __future__ import annotations

import tomllib
from collections import Counter
from collections.abc import Iterator
from ipaddress import IPv6Address, IPv6Network
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from mrc.errors import ConfigError
from mrc.fabric.hostconfig import HostPath
from mrc.sim.scenario import load_scenario, replace_value, scenario_names
from mrc.testbed import plan as plans
from mrc.testbed import shape as shapes
from mrc.testbed.faults import HOST_DOWN, HOST_UP, T0_UP, Hop
from mrc.testbed.plan import BedPlan, Shaper, census, make_plan
from mrc.testbed.routes import Route, Srv6Action
from mrc.testbed.shape import (
    MAX_RATE_BPS,
    Fabric,
    LinkProperties,
    Shape,
    is_namespace_of,
    load_topology,
    node_name,
    parse_rate,
)
from mrc.testbed.tiers import LinkChange
from mrc.testbed.topology import Addresses, Target


def longest_match(plan: BedPlan, node: str, dst: IPv6Address) -> Route:
    found = [route for route in plan.nodes[node].routes if dst in route.dst]
    return max(found, key=lambda route: route.dst.prefixlen)


def far_end(plan: BedPlan, node: str, route: Route) -> str:
    """The node that a route leads to; checks that the next hop is the other end of the link."""
    for link in plan.links:
        if (link.lower, link.lower_name) == (node, route.dev):
            assert route.via == IPv6Address("fe80::1")
            return link.upper
        if (link.upper, link.upper_name) == (node, route.dev):
            assert route.via == IPv6Address("fe80::2")
            return link.lower
    raise AssertionError(f"{node} has no link {route.dev}")


def shift(carrier: IPv6Address) -> IPv6Address:
    """The carrier after a switch whose uSID comes first after the locator block."""
    return IPv6Address(carrier.packed[:4] + carrier.packed[6:] + bytes(2))


def walk(plan: BedPlan, node: str, dst: IPv6Address) -> Iterator[str]:
    """The nodes on a packet's path to its destination."""
    route = longest_match(plan, node, dst)
    assert route.action is not None and route.action.behaviour == "encap.red"
    (carrier,) = route.action.segments
    node = far_end(plan, node, route)
    for _ in range(8):
        yield node
        route = longest_match(plan, node, carrier)
        if route.action is not None and route.action.behaviour == "End":
            carrier = shift(carrier)
            route = longest_match(plan, node, carrier)
        if route.action is not None and route.action.behaviour == "End.DT6":
            assert longest_match(plan, node, dst).local
            return
        node = far_end(plan, node, route)
    raise AssertionError("the packet goes in circles")


def test_make_plan__every_path_leads_over_its_t1() -> None:
    shape = Shape(hosts=3, planes=2, t1=2)
    plan = make_plan("x", shape)
    for src in range(3):
        for dst in {0, 1, 2} - {src}:
            for path in shape.paths(src, dst):
                assert list(walk(plan, f"h{src}", path.dst)) == [
                    f"t0-{path.plane}-{src}",
                    path.name.replace(":", "-").replace(".", "-"),
                    f"t0-{path.plane}-{dst}",
                    f"h{dst}",
                ]


PODS = Shape(hosts=12, planes=2, t0=6, t1=6, pods=3, t2=4)


def test_make_plan__paths_of_three_tiers_lead_over_the_switches_of_their_usids() -> None:
    plan = make_plan("x", PODS)
    for src in range(12):
        for dst in set(range(12)) - {src}:
            for path in PODS.paths(src, dst):
                switches = [HostPath.switch_of(path.plane, usid) for usid in path.usids[:-1]]
                nodes = [f"t0:{path.plane}.{src // 2}", *switches]
                assert list(walk(plan, f"h{src}", path.dst)) == [
                    *map(node_name, nodes), f"h{dst}",
                ]  # fmt: skip
    assert {len(node.routes) for node in plan.nodes.values() if node.name[:2] == "t2"} == {4}


def test_make_plan__three_tiers_without_what_is_absent() -> None:
    """The only links of T2 3 of plane 1, and those of T1 2 with T0s."""
    absent = ("t2:1.3", "uplink:1.2.2", "uplink:1.3.2")
    plan = make_plan("x", replace(PODS, absent=absent))
    assert "t2-1-3" not in plan.nodes and "t2-2-3" in plan.nodes
    shifts = [route for route in plan.nodes["t1-1-2"].routes if route.action == Srv6Action("End")]
    assert [route.dev for route in shifts] == ["t2-0"]
    for src, dst in ((0, 4), (4, 0), (4, 7)):
        for path in plan.shape.paths(src, dst):
            assert list(walk(plan, f"h{src}", path.dst))[-1] == f"h{dst}"


def test_make_plan__management_reaches_every_host() -> None:
    plan = make_plan("x", Shape(hosts=3, planes=1, t1=1))
    for host in range(3):
        out = longest_match(plan, "h0", Addresses().oob(host))
        assert far_end(plan, "h0", out) == "mgmt"
        back = longest_match(plan, "mgmt", Addresses().oob(host))
        assert far_end(plan, "mgmt", back) == f"h{host}"


def test_make_plan__counts() -> None:
    """2 hosts, 8 T0s, 8 T1s, management; a NIC per plane, an uplink per T0 and T1."""
    plan = make_plan("try", Shape(hosts=2, planes=4, t1=2))
    assert len(plan.nodes) == 2 + 8 + 8 + 1
    assert len(plan.links) == 2 * 4 + 2 * 4 * 2 + 2
    assert {node.namespace for node in plan.nodes.values()} == {
        *("mrc-try-h0", "mrc-try-h1", "mrc-try-mgmt"),
        *(f"mrc-try-t0-{plane}-{host}" for plane in (1, 2, 3, 4) for host in (0, 1)),
        *(f"mrc-try-t1-{plane}-{t1}" for plane in (1, 2, 3, 4) for t1 in (0, 1)),
    }


def test_make_plan__names_fit_the_kernel() -> None:
    """At most 15 characters for an interface, and no keyword of ip(8)."""
    plan = make_plan("x", Shape(hosts=12, planes=2, t1=12))
    for link in plan.links:
        for name in (link.lower_name, link.upper_name):
            assert len(name) <= 15 - 2  # numbers may grow by two digits
            assert name not in {"up", "down", "h", "host", "via", "dev", "br"}


def test_make_plan__config_names_ports_and_paths() -> None:
    plan = make_plan("x", Shape(hosts=3, planes=2, t1=2, mtu=1500))
    config = tomllib.loads(plan.configs["h0"])
    assert (config["schema"], config["host"], config["source"]) == (1, "h0", "srv6")
    assert config["ports"] == [
        {"ifname": "p1", "address": "fd00:a::1", "mtu": 1500, "plane": 1},
        {"ifname": "p2", "address": "fd00:a::1", "mtu": 1500, "plane": 2},
    ]
    assert list(config["peers"]) == ["h1", "h2"]
    peer = config["peers"]["h2"]
    assert (peer["oob"], peer["sources"]) == ("fd00:c::3", ["fd00:a:2::1"])
    assert len(peer["paths"]) == 4
    assert peer["paths"][3] == {
        "plane": 2,
        "name": "t1:2.1",
        "dst": "fd00:a:2::2:1",
        "segments": ["fcbb:2:101:202:e000::"],
        "usids": ["0101", "0202", "e000"],
    }


def test_make_plan__without_what_is_absent() -> None:
    shape = load_topology("uneven").shape
    plan = make_plan("x", shape)
    assert not {"h5", "t1-3-2"} & set(plan.nodes) and {"h4", "t1-2-2"} <= set(plan.nodes)
    ends = {(node, name) for link in plan.links for node, name, _ in link.ends}
    assert ("h0", "p2") in ends and ("h0", "p3") not in ends and ("mgmt", "h5") not in ends
    assert {
        ("t0-1-1", "t1-0"),
        ("t1-1-0", "t0-1"),
        ("t0-1-1", "h4"),
        ("t0-3-0", "t1-2"),
    } & ends == set()
    for node in plan.nodes.values():
        devices = {name for end, name in ends if end == node.name} | {"lo"}
        assert {route.dev for route in node.routes} <= devices, node.name
    config = tomllib.loads(plan.configs["h4"])
    assert [port["plane"] for port in config["ports"]] == [2, 3]
    names = [path["name"] for path in config["peers"]["h0"]["paths"]]
    assert names == ["t1:2.0", "t1:2.1", "t1:2.2"]
    assert "h4.p1" not in plan.hosts_file and "h4.p3" in plan.hosts_file
    census_of = census(shape)
    assert census_of.paths == sum(text.count(".paths]]") for text in plan.configs.values())
    whole = make_plan("y", replace(shape, absent=()))
    assert census(whole.shape).namespaces == len(whole.nodes)


def test_make_plan__a_host_without_a_common_plane_is_no_peer() -> None:
    shape = Shape(hosts=3, planes=2, t1=1, absent=("link:h0.1", "link:h1.2"))
    configs = [tomllib.loads(text) for text in make_plan("x", shape).configs.values()]
    assert [list(config["peers"]) for config in configs] == [["h2"], ["h2"], ["h0", "h1"]]


def test_make_plan__hosts_file_names_every_host() -> None:
    lines = make_plan("x", Shape(planes=2)).hosts_file.splitlines()
    assert lines[-5:] == [
        "fd00:a:1::1 h1 h1.any",
        "fd00:a:1::1:0 h1.p1",
        "fd00:a:1::2:0 h1.p2",
        "fd00:c::2 h1.mgmt",
        "100.64.0.2 h1.mgmt h1",
    ]


@pytest.mark.parametrize(("planes", "t1", "kept"), [(2, 3, 3), (64, 8, 4)])
def test_make_plan__all_planes_share_the_flows_to_a_host(planes: int, t1: int, kept: int) -> None:
    shape = Shape(planes=planes, t1=t1, fabric=Fabric.EMULATED)
    plan = make_plan("x", shape)
    shared = [route for route in plan.nodes["h0"].routes if route.shared]
    assert {route.dst for route in shared} == {IPv6Network("fd00:a:1::1")}
    assert Counter(route.dev for route in shared) == {f"p{p}": kept for p in range(1, planes + 1)}
    assert len({route.action for route in shared}) == len(shared)
    assert census(shape).routes == sum(len(node.routes) for node in plan.nodes.values())


def test_make_plan__no_rate_means_no_shaper() -> None:
    plan = make_plan("x", Shape(host_rate_bps=None, fabric_rate_bps=None))
    assert {end.shaper for link in plan.links for _, _, end in link.ends} == {None}


def test_make_plan__shapes_the_fabric_only() -> None:
    for link in make_plan("x", Shape(host_rate_bps=10**9, fabric_rate_bps=10**9)).links:
        assert {end.shaper is None for _, _, end in link.ends} == {link.upper == "mgmt"}


def test_make_plan__links_with_a_direction_a_loss_and_an_mtu_of_their_own() -> None:
    links = (
        LinkChange("h0>t0:1.0", rate_bps=10**6, mtu=1500),
        LinkChange("t1:1.0>t0:1.1", delay_ns=10**6),
        LinkChange("uplink:1.0.0", loss=0.25),
    )
    plan = make_plan("x", Shape(planes=1, t1=1, host_rate_bps=10**9, links=links))
    ends = {(node, name): end for link in plan.links for node, name, end in link.ends}
    slow, usual = ends["h0", "p1"], ends["t0-1-0", "h0"]
    assert slow.shaper is not None and usual.shaper is not None
    assert (slow.shaper.rate_bps, usual.shaper.rate_bps) == (10**6, 10**9)
    assert (slow.mtu, usual.mtu) == (1500, None)
    assert "mtu = 1500\n" in plan.configs["h0"] and "mtu = 9000\n" in plan.configs["h1"]
    assert [key for key, end in ends.items() if end.delay_ns] == [("t1-1-0", "t0-1")]
    drop = "numgen random mod 1000000 < 250000 counter drop"
    assert f"oifname t1-0 {drop}" in plan.nodes["t0-1-0"].rules
    assert f"oifname t0-0 {drop}" in plan.nodes["t1-1-0"].rules
    assert plan.nodes["t0-1-1"].rules == ""


def test_emulator_config__hops_that_differ() -> None:
    links = (LinkChange("t0:1.0>t1:1.0", loss=0.25), LinkChange("t0:1.1>h1", mtu=1500))
    shape = Shape(planes=1, t1=1, host_rate_bps=1000, fabric_rate_bps=2000, links=links)
    assert plans.emulator_config(replace(shape, fabric=Fabric.EMULATED))["links"] == [
        [Hop(HOST_DOWN, 1, 1, 1), 1000, 0, 0, 1500],
        [Hop(T0_UP, 1, 0, 0), 2000, 0, 250_000, 9000],
    ]
    assert plans.emulator_config(replace(shape, links=(), absent=("link:h1.1",)))["absent"] == [
        Hop(HOST_UP, 1, 1, 1), Hop(HOST_DOWN, 1, 1, 1),
    ]  # fmt: skip


@pytest.mark.parametrize("name", ["", "-x", "a b", "a/b", "x" * 33, "ä"])
def test_make_plan__refuses_a_name(name: str) -> None:
    with pytest.raises(ValueError, match="name"):
        make_plan(name, Shape())


@pytest.mark.parametrize(
    ("shape", "complaint"),
    [
        ({"mtu": 1399}, "mtu is 1399, not in 1400..65535"),
        ({"mtu": 65536}, "mtu is 65536"),
        ({"host_rate_bps": 999}, "rate is 999 bit/s"),
        ({"fabric_rate_bps": 10**14 + 1}, "rate is"),
        ({"planes": 0}, "planes is 0"),
        ({"fabric": "emulated", "buffer_bytes": 8999}, "buffer is 8999 B, which holds no packet"),
        ({"fabric": "emulated", "ecn_high_bytes": 1024}, "ecn_low is 62500 B, not below ecn_high"),
    ],
)
def test_shape__refuses(shape: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        Shape(**shape)


@pytest.mark.parametrize(
    ("text", "bits_per_second"),
    [
        ("500mbit", 500_000_000),
        ("10gbit", 10**10),
        ("2.5Gbit", 2_500_000_000),
        ("64kbit", 64_000),
        ("1000000", 1_000_000),
        ("1000000bit", 1_000_000),
        ("1g", 10**9),
        ("100 Gbit/s", 10**11),
        ("none", None),
    ],
)
def test_parse_rate__as_tc_writes_it(text: str, bits_per_second: int | None) -> None:
    assert parse_rate(text) == bits_per_second


@pytest.mark.parametrize("text", ["", "fast", "-1mbit", "5MB", "1e9", "0x10"])
def test_parse_rate__refuses(text: str) -> None:
    with pytest.raises(ValueError, match="rate"):
        parse_rate(text)


@pytest.mark.parametrize(
    ("name", "namespace", "ours"),
    [
        ("try", "mrc-try-h0", True),
        ("try", "mrc-try-t0-1-0", True),
        ("try", "mrc-try-t1-12-255", True),
        ("try", "mrc-try-mgmt", True),
        ("try", "mrc-try2-h0", False),
        ("try", "mrc-try-2-h0", False),
        ("try-2", "mrc-try-2-h0", True),
        ("try", "mrc-try-h0-h0", False),
        ("try", "mrc-try-h", False),
        ("try", "try-h0", False),
    ],
)
def test_is_namespace_of__tells_neighbours_apart(name: str, namespace: str, ours: bool) -> None:
    assert is_namespace_of(name, namespace) is ours


@pytest.mark.parametrize(
    ("rate_bps", "queue_bytes"),
    [
        (50_000_000, 256 * 1024),  # 10 ms would be 62 500 bytes: less than one message
        (500_000_000, 625_000),
        (10**10, 12_500_000),
        (MAX_RATE_BPS, (1 << 32) - 1 - 81_920),  # as much as a tbf can have
    ],
)
def test_shaper__queue_is_10_ms_behind_one_burst(rate_bps: int, queue_bytes: int) -> None:
    assert plans.shaper(rate_bps) == Shaper(rate_bps, 81_920, 81_920 + queue_bytes)


# ---- Topology files ------------------------------------------------------------------------------


FILE = """
title = "one of everything"

[topology]
hosts = 4
planes = 2
t0 = 2
t1 = 2
host_rate = "1Gbit/s"
oversubscription = 2
host_delay = "1us"
fabric_delay = "2us"
jitter = "3ns"
buffer = "1MiB"
ecn_low = "64KiB"
ecn_high = "128KiB"
trimming = false
mtu = 4000

[[links]]
target = "plane:2"
delay = "1ms"

[[links]]
target = "uplink:2.1.0"
rate = "10Mbit/s"

[addresses]
block = "5f00::/16"
hosts = "fd01:1::/32"
carrier_usids = 3

[[faults]]
target = "t1:1.0"
kind = "silent"
at = "1s"
"""


def parsed(**changes: Any) -> shapes.TopologyFile:
    values = tomllib.loads(FILE)
    for key, value in changes.items():
        replace_value(values, key.replace("__", "."), value)
    fabric = Fabric.KERNEL if "topology__jitter" in changes else Fabric.EMULATED
    return shapes.parse_topology(values, "all", "all.toml", fabric)


def test_parse__every_key() -> None:
    found = parsed()
    shape = found.shape
    assert (found.name, found.title) == ("all", "one of everything")
    assert (shape.hosts, shape.planes, shape.t0, shape.t1) == (4, 2, 2, 2)
    # Two hosts below each T0 send 2 Gbit/s, its two uplinks carry half of that.
    assert (shape.host_rate_bps, shape.fabric_rate_bps) == (10**9, 5 * 10**8)
    assert (shape.host_delay_ns, shape.fabric_delay_ns, shape.jitter_ns) == (1000, 2000, 3)
    assert (shape.buffer_bytes, shape.ecn_low_bytes, shape.ecn_high_bytes) == (
        1 << 20, 64 << 10, 128 << 10,
    )  # fmt: skip
    assert (shape.trim, shape.mtu, shape.fabric) == (False, 4000, Fabric.EMULATED)
    assert str(shape.addresses.host(1)) == "fd01:1:1::1"
    assert str(shape.addresses.oob(0)) == "fd00:c::1"
    assert shape.addresses.carrier_usids == 3


def test_link_properties__the_last_change_counts() -> None:
    shape = parsed(topology__jitter="0ns").shape
    assert shape.links == (LinkChange("plane:2", None, 10**6), LinkChange("uplink:2.1.0", 10**7))
    found = shape.link_properties()
    assert found[Target("link", 2, 3)] == 2 * (LinkProperties(10**9, 10**6, 0.0, 4000),)
    assert found[Target("uplink", 2, t0=1, t1=0)] == 2 * (LinkProperties(10**7, 10**6, 0.0, 4000),)
    too_short = LinkProperties(5 * 10**8, 0, 0.0, 4000)
    assert found[Target("uplink", 1, t0=1, t1=0)] == (too_short, too_short)


def test_link_properties__of_one_direction() -> None:
    up = {"target": "h3>t0:2.1", "loss": "1%", "mtu": 1500}
    shape = parsed(links=[up, {"target": "t0:2.1>h3", "loss": "0%", "rate": "1Mbit/s"}]).shape
    assert shape.links[0] == LinkChange("h3>t0:2.1", loss=0.01, mtu=1500)
    assert shape.link_properties()[Target("link", 2, 3)] == (
        LinkProperties(10**9, 1000, 0.01, 1500), LinkProperties(10**6, 1000, 0.0, 4000),
    )  # fmt: skip
    smaller = replace(shape, mtu=1400)
    assert smaller.link_properties()[Target("link", 2, 3)][0].mtu == 1400


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"topology__colour": 1}, "all.toml: topology.colour: is unknown"),
        ({"hue": 1}, "all.toml: hue: is unknown"),
        ({"topology__host_rate": "5MB"}, "all.toml: topology.host_rate: '5MB' is not a rate"),
        ({"topology__host_rate": "5bit/s"}, "all.toml: topology: rate is 5 bit/s"),
        ({"topology__t0": 3}, "all.toml: topology.hosts: 4 is not a multiple of t0"),
        (
            {"topology__mtu": 100},
            "all.toml: topology.mtu: must be a whole number from 1400 to 65535, not 100",
        ),
        ({"topology__fabric_rate": "1Gbit/s"}, "topology.oversubscription: sets fabric_rate"),
        (
            {"topology__oversubscription": "2:1"},
            "topology.oversubscription: must be a number from 0.01 to 1000, not '2:1'",
        ),
        (
            {"topology__oversubscription": 0},
            "topology.oversubscription: must be a number from 0.01 to 1000, not 0",
        ),
        ({"topology__routing": "ecmp"}, "topology.routing: must be source-routes"),
        ({"topology__ecn_last_hop": True}, "topology.ecn_last_hop: is for the simulator"),
        ({"topology__routing": "ecmp", "addresses__block": "x"}, "routing: must be source-routes"),
        ({"links__0__target": "t1:3.0"}, r"links\[0\].target: target t1:3.0: no plane 3"),
        ({"links__1__rate": "0bit/s"}, r"links\[1\].rate: must not be 0"),
        (
            {"links": [{"target": "plane:1", "mtu": 5000}]},
            r"links\[0\].mtu: must be a whole number from 1400 to 4000, not 5000",
        ),
        ({"links": [{"target": "plane:1"}]}, r"links\[0\].target: requires rate, delay, loss or "),
        (
            {"addresses__carrier_usids": 7},
            "addresses.carrier_usids: must be a whole number from 1 to 6, not 7",
        ),
        ({"addresses__block": "fcbb:1::/32"}, "addresses.block: fcbb:1::/32 is not a /16"),
        *(
            ({"addresses__hosts": wrong}, f"addresses.hosts: '{wrong}' is not an IPv6 network such")
            for wrong in ("fd00::x", "10.0.0.0/8", "fd00:a::/16")
        ),
        ({"addresses__management": "fd00::/48"}, "addresses.management: fd00::/48 is not a /64"),
        (
            {"addresses__hosts": "5f00::/32"},
            "addresses.block: block 5f00::/16 and hosts 5f00::/32 ",
        ),
        (
            {"addresses": {"hosts": "fd00:c::/32"}},
            "addresses.hosts: hosts fd00:c::/32 and management fd00:c::/64 overlap",
        ),
        (
            {"addresses": {"management": "fd00:a::/64"}},
            "addresses.management: hosts fd00:a::/32 and management fd00:a::/64 overlap",
        ),
    ],
)
def test_parse__refuses(changes: dict[str, Any], complaint: str) -> None:
    values = tomllib.loads(FILE)
    for key, value in changes.items():
        if key == "links__0":
            values["links"][0] = value
        else:
            replace_value(values, key.replace("__", "."), value)
    with pytest.raises(ConfigError, match=complaint):
        shapes.parse_topology(values, "all", "all.toml", Fabric.EMULATED)


def test_parse__jitter_is_for_an_emulated_fabric() -> None:
    with pytest.raises(ConfigError, match=r"all.toml: topology: jitter .*: use --fabric emulated"):
        parsed(topology__jitter="1ns")


def test_load__the_example_of_the_description() -> None:
    """Each key in the examples is known, and their stated defaults are the defaults."""
    folder = Path(shapes.__file__).parent / "topologies"
    addresses = tomllib.loads(
        (folder / "README.md").read_text().split("```toml\n")[1].split("```")[0]
    )
    keys = tomllib.loads((folder.parents[1] / "sim" / "keys.toml").read_text())
    for example, hosts, t0 in ((addresses, 8, 8), (keys, 16, 2)):
        bare = {"topology": {"hosts": hosts, "planes": 4, "t0": t0, "t1": 4}}
        found, usual = (shapes.parse_topology(each, "x", "x").shape for each in (example, bare))
        assert replace(found, links=()) == usual


def test_load__the_built_in_topologies() -> None:
    assert "pair" in shapes.topology_names()
    for name in shapes.topology_names():
        assert shapes.load_topology(name).title
    pair = shapes.load_topology("pair").shape
    usual = Shape()
    assert (pair.hosts, pair.planes, pair.t0, pair.t1) == (2, 4, 2, 2)
    assert (pair.addresses, pair.host_rate_bps) == (usual.addresses, usual.host_rate_bps)


def test_load__scenarios_mean_the_same(tmp_path: Path) -> None:
    """The slow ones have more hosts than a test bed."""
    for scenario in map(load_scenario, scenario_names()):
        if scenario.slow:
            with pytest.raises(ConfigError, match=r"hosts is \d+, not in 2\.\.4096"):
                shapes.load_topology(scenario.name)
            continue
        simulated, shape = scenario.topology, shapes.load_topology(scenario.name).shape
        assert (shape.hosts, shape.planes) == (simulated.hosts, simulated.planes)
        assert (shape.t0, shape.t1) == (simulated.t0, simulated.t1)
        assert shape.host_rate_bps == simulated.host_rate_bps
        assert shape.ecn_high_bytes == simulated.ecn_high_bytes
        assert shape.paths(0, shape.hosts - 1)


def test_load__the_simulator_takes_topology_files_too(tmp_path: Path) -> None:
    path = tmp_path / "both.toml"
    path.write_text(FILE + '[[traffic]]\nkind = "permutation"\nwrite = "1MiB"\n')
    simulated, shape = (
        load_scenario(str(path)),
        shapes.load_topology(str(path), Fabric.EMULATED).shape,
    )
    assert simulated.topology.fabric_rate_bps == shape.fabric_rate_bps
    assert [(link.target, link.kind, link.a) for link in simulated.links] == [
        ("plane:2", "delay", 10**6),
        ("uplink:2.1.0", "rate", 10**7),
    ]


def test_load__names_what_there_is() -> None:
    with pytest.raises(ConfigError, match=r"no topology 'nowhere'; use .*clos.* path of a file"):
        shapes.load_topology("nowhere")
    with pytest.raises(ConfigError, match=r"/nowhere\.toml: .*No such file"):
        shapes.load_topology("/nowhere.toml")


@pytest.mark.parametrize("fabric", [*Fabric])
@pytest.mark.parametrize(
    "shape", [PODS, *(Shape(hosts=n, planes=3, t0=t0, t1=2) for n, t0 in ((2, 2), (4, 2), (6, 1)))]
)
def test_census__counts_what_is_planned(fabric: Fabric, shape: Shape) -> None:
    shape = replace(shape, fabric=fabric)
    plan, found = make_plan("x", shape), census(shape)
    assert plans._count(plan) == found
    assert (found.namespaces, found.links) == (len(plan.nodes), len(plan.links))
    assert found.routes == sum(len(node.routes) for node in plan.nodes.values())
    hosts = range(shape.hosts)
    assert found.paths == sum(len(shape.paths(src, dst)) for src, dst in permutations(hosts, 2))
