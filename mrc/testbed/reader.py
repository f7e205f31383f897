# SPDX-License-Identifier: Apache-2.0
"""Reads topology files: TOML with a scenario's table `[topology]`, and keys of test beds.

A scenario is also a topology file. Its traffic and checks are for the simulator and ignored here.
mrc/testbed/topologies/README.md lists every key.
"""

from __future__ import annotations

from functools import partial
from ipaddress import IPv6Network
from typing import Any

from msgspec import Struct
from msgspec.structs import fields, replace

from mrc.fabric import document
from mrc.fabric.document import Table
from mrc.fabric.faults import LinkChange, Tiers, read_link, read_topology
from mrc.fabric.targets import parse_target
from mrc.fabric.topology import Addresses, AddressesError
from mrc.testbed import extras
from mrc.testbed.shape import Fabric, Shape

# Keys about the use of a fabric. The simulator reads them, and mrc.testbed.schedule the faults.
_OF_OTHERS = (
    "claim", "baselines", "plot", "transport", "traffic", "reference", "run", "checks", "variants",
    "faults", "figure", "slow",
)  # fmt: skip


class TopologyFile(Struct, frozen=True):
    """The contents of a topology file."""

    name: str
    title: str
    shape: Shape


def names() -> list[str]:
    """The built-in topologies."""
    return sorted(document.builtin("testbed/topologies"))


def load(name: str, fabric: Fabric = Fabric.KERNEL) -> TopologyFile:
    """Reads a built-in topology, a built-in scenario or, if `name` looks like a path, a file.

    Raises ConfigError with the file and the key.
    """
    known = document.builtin("sim/scenarios") | document.builtin("testbed/topologies")
    found = document.read(name, known, "topology")
    return parse(found.values, found.name, found.place, fabric)


def parse(
    values: dict[str, Any], name: str, place: str, fabric: Fabric = Fabric.KERNEL
) -> TopologyFile:
    """Converts a document; raises ConfigError."""
    table = Table(values, place)
    for key in _OF_OTHERS:
        table.has(key)
    title = table.text("title", "")
    within = table.table("topology")
    tiers = read_topology(within)
    if tiers.routing != "source-routes":
        raise within.error("routing", "must be source-routes: ecmp is for the simulator")
    if tiers.ecn_last_hop:
        raise within.error("ecn_last_hop", "is for the simulator: remove it for a test bed")
    addresses = _addresses(table.table("addresses"))
    try:
        links = tuple(
            read_link(item, partial(parse_target, fabric=tiers), tiers)
            for item in table.tables("links")
        )
        shape = shape_of(tiers, addresses, links, fabric)
    except ValueError as error:
        raise table.error("topology", str(error)) from error
    world = shape.outside
    if table.has("outside"):
        world = extras.need(extras.OUTSIDE).read(table.table("outside"))
    table.close()
    try:
        shape = replace(shape, outside=world)
    except ValueError as error:
        raise table.error("outside", str(error)) from error
    return TopologyFile(name, title, shape)


def shape_of(
    tiers: Tiers,
    addresses: Addresses,
    links: tuple[LinkChange, ...],
    fabric: Fabric,
) -> Shape:
    """The shape of a test bed with these tiers and links; raises ValueError."""
    both = {each.name for each in fields(Tiers)} & {each.name for each in fields(Shape)}
    same: dict[str, Any] = {name: getattr(tiers, name) for name in both}
    own = {"trim": tiers.trimming, "links": links, "fabric": fabric, "addresses": addresses}
    return Shape(**same | own)


def _addresses(table: Table) -> Addresses:
    usual = Addresses()
    read = {
        key: table.parsed(key, partial(_network, getattr(usual, key)), str(getattr(usual, key)))
        for key in ("block", "hosts", "management")
    }
    most = usual.carrier_usids
    carrier_usids = table.integer("carrier_usids", 1, most, most)
    table.close()
    try:
        return Addresses(**read, carrier_usids=carrier_usids)
    except AddressesError as error:
        given = next((key for key in error.keys if table.has(key)), error.keys[0])
        raise table.error(given, error.text) from error


def _network(usual: IPv6Network, text: str) -> IPv6Network:
    try:
        return IPv6Network(text)
    except ValueError:
        raise ValueError(f"{text!r} is not an IPv6 network such as {usual}") from None
