# SPDX-License-Identifier: Apache-2.0
"""Topology files: their meaning for a test bed, and the messages for mistakes."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from mrc.errors import ConfigError
from mrc.fabric.faults import LinkChange
from mrc.fabric.targets import Target
from mrc.sim.scenario import load_scenario, replace_value, scenario_names
from mrc.testbed import shape as shapes
from mrc.testbed.plan import census, make_plan
from mrc.testbed.shape import Fabric, LinkProperties, Shape

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
    """Each key in the example is known, and its stated defaults are the defaults."""
    text = (Path(shapes.__file__).parent / "topologies" / "README.md").read_text()
    example = tomllib.loads(text.split("```toml\n")[1].split("```")[0])
    bare = {"topology": {"hosts": 8, "planes": 4, "t1": 4}}
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
@pytest.mark.parametrize(("hosts", "t0"), [(2, 2), (4, 2), (6, 1)])
def test_census__counts_what_is_planned(fabric: Fabric, hosts: int, t0: int) -> None:
    shape = Shape(hosts=hosts, planes=3, t0=t0, t1=2, fabric=fabric)
    plan, found = make_plan("x", shape), census(shape)
    assert found.namespaces == len(plan.nodes)
    assert found.links == len(plan.links)
    assert found.routes == sum(len(node.routes) for node in plan.nodes.values())
    paths = [shape.paths(src, dst) for src in range(hosts) for dst in range(hosts) if src != dst]
    assert found.paths == sum(map(len, paths))
