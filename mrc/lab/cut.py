# SPDX-License-Identifier: Apache-2.0
"""Cuts a test bed between machines. Pure.

A T0 has the same machine in every plane, with all its hosts: neighbours in their order. The other
switches are dealt out in turns, so each machine has some of every plane. Every machine has a `mgmt`
for its hosts, and a link from it to that of every other machine:

    mK      interface of `mgmt`, to that of machine K; the machine with the lower number is above

A link between nodes on two machines is a VXLAN with a VNI of its own. All VNIs of a test bed begin
with the same byte, which depends on its name.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from ipaddress import IPv4Address
from itertools import combinations, count
from zlib import crc32

from msgspec import Struct
from msgspec.structs import replace

from mrc.lab.machines import Machines
from mrc.testbed.plan import (
    LOWER,
    LOWER_MAC,
    UPPER,
    UPPER_MAC,
    BedLink,
    BedPlan,
    Node,
    Tunnel,
    on_links,
)
from mrc.testbed.results import MachineShare
from mrc.testbed.shape import MANAGEMENT, NOTHING, Fabric, Shape, part_name
from mrc.units import counted

OVERHEAD = {4: 50, 6: 70}
"""What VXLAN adds to the MTU of a link, by the version of the machines' addresses."""

_MOST_LINKS = 1 << 16


def check(shape: Shape, machines: int) -> None:
    """Raises ValueError for a test bed that cannot be cut."""
    if shape.fabric is Fabric.EMULATED:
        raise ValueError(
            "the switches of an emulated fabric are one process, on one machine: use a kernel "
            "fabric over several"
        )
    if shape.outside != NOTHING:
        raise ValueError(
            "an uplink, interfaces and real hosts join a test bed on one machine to the world: not "
            "over several"
        )
    if machines > shape.t0:
        raise ValueError(
            f"{counted(machines, 'machine')} for {counted(shape.t0, 'T0')} in a plane: a T0 with "
            f"its hosts is on one machine; use at most {shape.t0}, or --t0 {machines} or more"
        )


def owners(plan: BedPlan, machines: int) -> dict[str, int]:
    """Node -> number of its machine. `mgmt` is on all of them and is left out."""
    shape, turns = plan.shape, count()
    found = {}
    for name in plan.nodes:
        if name in plan.configs:
            found[name] = shape.t0_of(int(name[1:])) * machines // shape.t0
        elif name.startswith("t0-"):
            found[name] = int(name.rpartition("-")[2]) * machines // shape.t0
        elif name != MANAGEMENT:
            found[name] = next(turns) % machines
    return found


class Share(Struct, frozen=True):
    """What a machine has."""

    hosts: tuple[str, ...]
    switches: tuple[str, ...]
    """by the names that faults use"""
    tunnels: int
    """links that lead to other machines, without those of `mgmt`"""


def shares(plan: BedPlan, machines: int) -> list[Share]:
    """What each machine has."""
    of = owners(plan, machines)
    crossing = [
        {of[link.lower], of[link.upper]}
        for link in plan.links
        if link.upper != MANAGEMENT and of[link.lower] != of[link.upper]
    ]
    return [
        Share(
            tuple(name for name in plan.configs if of[name] == machine),
            tuple(
                part_name(name)
                for name in plan.nodes
                if of.get(name) == machine and name not in plan.configs
            ),
            sum(machine in pair for pair in crossing),
        )
        for machine in range(machines)
    ]


def machine_shares(
    plan: BedPlan, machines: Machines, lost: Mapping[str, str]
) -> tuple[MachineShare, ...]:
    """`lost`: machine -> why it does not answer."""
    return tuple(
        MachineShare(
            name=machine.name,
            address=machine.address or None,
            hosts=share.hosts,
            switches=share.switches,
            tunnels=share.tunnels,
            lost=lost.get(machine.name),
        )
        for machine, share in zip(machines.every, shares(plan, len(machines.every)), strict=True)
    )


def part(plan: BedPlan, machines: Machines) -> BedPlan:
    """The part of a whole plan that this machine has."""
    of, here = owners(plan, len(machines.every)), machines.here
    links = tuple(_links(plan, of, machines))
    nodes = {name: node for name, node in plan.nodes.items() if of.get(name, here) == here}
    nodes[MANAGEMENT] = on_links(_management(nodes[MANAGEMENT], of, here), links)
    configs = {host: text for host, text in plan.configs.items() if of[host] == here}
    return replace(plan, nodes=nodes, links=links, configs=configs)


def _links(plan: BedPlan, of: Mapping[str, int], machines: Machines) -> Iterator[BedLink]:
    here, vnis = machines.here, count((1 + crc32(plan.name.encode()) % 255) * _MOST_LINKS)

    def tunnel(link: BedLink, lower: int, upper: int) -> Iterator[BedLink]:
        vni = next(vnis)
        if here in (lower, upper):
            end = int(upper == here)
            remote = machines.every[lower if end else upper].ip
            yield replace(link, tunnel=Tunnel(end, vni, remote, machines.port))

    for one, other in combinations(range(len(machines.every)), 2):
        # As large as those of the planes, to try at `up` whether packets of this size pass.
        link = BedLink(MANAGEMENT, f"m{one}", MANAGEMENT, f"m{other}", plan.shape.mtu)
        yield from tunnel(link, other, one)
    for link in plan.links:
        lower = of[link.lower]
        upper = of.get(link.upper, lower)  # the mgmt of its machine
        if lower != upper:
            yield from tunnel(link, lower, upper)
        elif lower == here:
            is_plane = link.upper != MANAGEMENT
            yield link if is_plane else replace(link, mtu=min(link.mtu, plan.shape.mtu))


def _management(node: Node, of: Mapping[str, int], here: int) -> Node:
    """The `mgmt` of this machine, without its addresses on its links."""
    way = {host: f"m{at}" for host, at in of.items() if host[0] == "h" and at != here}
    # Our end of a link to a machine with a lower number is the lower one.
    far = {f"m{at}": (UPPER, UPPER_MAC) if at < here else (LOWER, LOWER_MAC) for at in of.values()}

    def passed_on() -> Iterator[tuple[str, IPv4Address, str]]:
        for host, _, address in node.ipv4:
            if host in way and address is not None:
                yield way[host], address, far[way[host]][1]

    return replace(
        node,
        routes=tuple(
            dataclasses.replace(route, dev=way[route.dev], via=far[way[route.dev]][0])
            if route.dev in way
            else route
            for route in node.routes
        ),
        addresses=(),
        neighbours=tuple(passed_on()),
        ipv4=tuple((way.get(host, host), own, address) for host, own, address in node.ipv4),
    )
