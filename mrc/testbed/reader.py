# SPDX-License-Identifier: Apache-2.0
"""Reads topology files: TOML with the table `[topology]` of a scenario, and what is a bed's alone.

A scenario is a topology file too: what it says of traffic and checks is the simulator's, and left
unread. mrc/testbed/topologies/README.md lists every key.
"""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import IPv6Network
from typing import Any

from mrc.sim import document, units
from mrc.sim import reader as scenarios
from mrc.sim import scenario as simulated
from mrc.sim.table import Table
from mrc.sim.topology import read_topology
from mrc.testbed.shape import LinkChange, Shape
from mrc.testbed.targets import parse_target
from mrc.topology import Addresses, Topology

# Of a scenario: how the fabric is used, not what it is.
_SIMULATORS = (
    "claim", "baselines", "plot", "transport", "traffic", "reference", "run", "checks", "variants",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class TopologyFile:
    """What a file says of a test bed."""

    name: str
    title: str
    shape: Shape
    faults: tuple[Table, ...]
    """its `[[faults]]`, which nobody has looked into yet"""


def names() -> list[str]:
    """The built-in topologies."""
    return sorted(document.builtin("mrc.testbed", "topologies"))


def load(name: str) -> TopologyFile:
    """Reads a built-in topology, a built-in scenario or, when `name` looks like a path, a file.

    Raises ConfigError, which names the file and the key.
    """
    known = scenarios.known() | document.builtin("mrc.testbed", "topologies")
    found = document.read(name, known, "topology")
    return parse(found.values, found.name, found.place)


def parse(values: dict[str, Any], name: str, place: str) -> TopologyFile:
    """Makes sense of a document; raises ConfigError."""
    table = Table(values, place)
    for key in _SIMULATORS:
        table.has(key)
    title = table.text("title", "")
    within = table.table("topology")
    fabric = read_topology(within)
    if fabric.routing != "source-routes":
        raise within.error("routing", "is for the simulator: hosts of a test bed choose the path")
    addresses = _addresses(table.table("addresses"))
    try:
        topology = Topology(fabric.hosts, fabric.planes, fabric.t1, fabric.t0, addresses)
        links = tuple(_link(item, topology) for item in table.tables("links"))
        shape = _shape(fabric, addresses, links)
    except ValueError as error:
        raise table.error("topology", str(error)) from error
    faults = tuple(table.tables("faults"))
    table.close()
    return TopologyFile(name, title, shape, faults)


def _shape(
    fabric: simulated.Topology, addresses: Addresses, links: tuple[LinkChange, ...]
) -> Shape:
    return Shape(
        hosts=fabric.hosts,
        planes=fabric.planes,
        t0=fabric.t0,
        t1=fabric.t1,
        host_rate_bps=fabric.host_rate_bps,
        fabric_rate_bps=fabric.fabric_rate_bps,
        host_delay_ns=fabric.host_delay_ns,
        fabric_delay_ns=fabric.fabric_delay_ns,
        jitter_ns=fabric.jitter_ns,
        links=links,
        mtu=fabric.mtu,
        buffer_bytes=fabric.buffer_bytes,
        ecn_low_bytes=fabric.ecn_low_bytes,
        ecn_high_bytes=fabric.ecn_high_bytes,
        trim=fabric.trimming,
        addresses=addresses,
    )


def _link(table: Table, topology: Topology) -> LinkChange:
    target = table.text("target")
    try:
        parse_target(target, topology)
    except ValueError as error:
        raise table.error("target", str(error)) from error
    change = LinkChange(
        target,
        table.parsed("rate", units.parse_rate) if table.has("rate") else None,
        table.parsed("delay", units.parse_time) if table.has("delay") else None,
    )
    table.close()
    if change.rate_bps is None and change.delay_ns is None:
        raise table.error("target", "has neither rate nor delay")
    if change.rate_bps == 0:
        raise table.error("rate", "a link without a rate carries nothing")
    return change


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
