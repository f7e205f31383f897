# SPDX-License-Identifier: Apache-2.0
"""Reads topology files: TOML with the table `[topology]` of a scenario, and what is a bed's alone.

A scenario is a topology file too: what it says of traffic and checks is the simulator's, and left
unread. mrc/testbed/topologies/README.md lists every key.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from ipaddress import IPv6Network
from typing import Any

from mrc.fabric.targets import parse_target
from mrc.fabric.topology import Addresses, Topology
from mrc.sim import document
from mrc.sim import reader as scenarios
from mrc.sim import scenario as simulated
from mrc.sim.table import Table
from mrc.sim.topology import read_link, read_topology
from mrc.testbed.shape import Fabric, LinkChange, Shape

# How the fabric is used, not what it is: read by the simulator, faults by mrc.testbed.schedule too.
_OF_OTHERS = (
    "claim", "baselines", "plot", "transport", "traffic", "reference", "run", "checks", "variants",
    "faults",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class TopologyFile:
    """What a file says of a test bed."""

    name: str
    title: str
    shape: Shape


def names() -> list[str]:
    """The built-in topologies."""
    return sorted(document.builtin("mrc.testbed", "topologies"))


def load(name: str, fabric: Fabric = Fabric.KERNEL) -> TopologyFile:
    """Reads a built-in topology, a built-in scenario or, when `name` looks like a path, a file.

    Raises ConfigError, which names the file and the key.
    """
    known = scenarios.known() | document.builtin("mrc.testbed", "topologies")
    found = document.read(name, known, "topology")
    return parse(found.values, found.name, found.place, fabric)


def parse(
    values: dict[str, Any], name: str, place: str, fabric: Fabric = Fabric.KERNEL
) -> TopologyFile:
    """Makes sense of a document; raises ConfigError."""
    table = Table(values, place)
    for key in _OF_OTHERS:
        table.has(key)
    title = table.text("title", "")
    within = table.table("topology")
    tiers = read_topology(within)
    if tiers.routing != "source-routes":
        raise within.error("routing", "is for the simulator: hosts of a test bed choose the path")
    if tiers.ecn_last_hop:
        raise within.error("ecn_last_hop", "is for the simulator: no test bed marks there")
    addresses = _addresses(table.table("addresses"))
    try:
        topology = Topology(tiers.hosts, tiers.planes, tiers.t1, tiers.t0, addresses)
        links = tuple(
            LinkChange(*read_link(item, partial(parse_target, fabric=topology)))
            for item in table.tables("links")
        )
        shape = shape_of(tiers, addresses, links, fabric)
    except ValueError as error:
        raise table.error("topology", str(error)) from error
    table.close()
    return TopologyFile(name, title, shape)


def shape_of(
    tiers: simulated.Topology,
    addresses: Addresses,
    links: tuple[LinkChange, ...],
    fabric: Fabric,
) -> Shape:
    """The test bed of a simulated fabric; raises ValueError."""
    return Shape(
        hosts=tiers.hosts,
        planes=tiers.planes,
        t0=tiers.t0,
        t1=tiers.t1,
        host_rate_bps=tiers.host_rate_bps,
        fabric_rate_bps=tiers.fabric_rate_bps,
        host_delay_ns=tiers.host_delay_ns,
        fabric_delay_ns=tiers.fabric_delay_ns,
        jitter_ns=tiers.jitter_ns,
        links=links,
        mtu=tiers.mtu,
        buffer_bytes=tiers.buffer_bytes,
        ecn_low_bytes=tiers.ecn_low_bytes,
        ecn_high_bytes=tiers.ecn_high_bytes,
        trim=tiers.trimming,
        fabric=fabric,
        addresses=addresses,
    )


def _addresses(table: Table) -> Addresses:
    usual = Addresses()
    read = {
        key: table.parsed(key, IPv6Network, str(getattr(usual, key)))
        for key in ("block", "hosts", "management")
    }
    table.close()
    try:
        return Addresses(**read)
    except ValueError as error:
        raise table.error("block", str(error)) from error
