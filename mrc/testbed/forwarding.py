# SPDX-License-Identifier: Apache-2.0
"""How the switches of a kernel fabric forward: the routes of each. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from ipaddress import IPv6Address

from mrc.fabric.srv6 import DEFAULT_METRIC, EndUN, Route, locator
from mrc.fabric.topology import Topology
from mrc.testbed.names import host_name, t0_name, t1_name, t2_name

UPPER, LOWER = IPv6Address("fe80::1"), IPv6Address("fe80::2")
"""The addresses of a link's ends."""


def switches(fabric: Topology, plane: int) -> Iterator[tuple[str, tuple[Route, ...]]]:
    """The switches of a plane with their routes: one static route per uSID.

    A route that shifts must name an interface and disappears with it. A T0 has one for each host's
    interface, as substitutes for each other. A T1 or T2 has one for its first interface, which goes
    down only if the whole switch is down.
    """
    for t0 in fabric.t0_numbers():
        if routes := _routes_of_t0(fabric, plane, t0):
            yield t0_name(plane, t0), tuple(routes)
    for t1 in fabric.t1_numbers():
        links = [
            (fabric.usid("t0", t0), f"t0-{t0}", LOWER)
            for t0 in fabric.t0s_below(t1)
            if fabric.has_uplink(plane, t0, t1)
        ] + [
            (fabric.usid("t2", t2), f"t2-{t2}", UPPER)
            for t2 in fabric.t2s_above(t1)
            if fabric.has_core_link(plane, t1, t2)
        ]
        if links:
            own = fabric.usid("t1", t1)
            yield t1_name(plane, t1), _routes(fabric, plane, own, links)
    for t2 in fabric.t2_numbers():
        links = [
            (fabric.usid("t1", t1), f"t1-{t1}", LOWER)
            for t1 in fabric.t1s_below(t2)
            if fabric.has_core_link(plane, t1, t2)
        ]
        if links:
            own = fabric.usid("t2", t2)
            yield t2_name(plane, t2), _routes(fabric, plane, own, links)


def _routes_of_t0(fabric: Topology, plane: int, t0: int) -> list[Route]:
    block = fabric.addresses.locator_block(plane)
    own = locator(block, fabric.usid("t0", t0))
    routes = []
    for host in fabric.hosts_below(t0):
        if not fabric.has_link(host, plane):
            continue
        metric = DEFAULT_METRIC + host - fabric.hosts_below(t0)[0]
        routes.append(Route(own, host_name(host), action=EndUN(), metric=metric))
        here = locator(block, fabric.host_usid(host))
        routes.append(Route(here, host_name(host), via=LOWER))
    return routes + [
        Route(locator(block, fabric.usid("t1", t1)), f"t1-{t1}", via=UPPER)
        for t1 in fabric.t1s_above(t0)
        if fabric.has_uplink(plane, t0, t1)
    ]


def _routes(
    fabric: Topology, plane: int, own: int, links: Sequence[tuple[int, str, IPv6Address]]
) -> tuple[Route, ...]:
    """Those of a T1 or T2 from its uSID, and the uSID, interface and address of each neighbour."""
    block = fabric.addresses.locator_block(plane)
    shift = Route(locator(block, own), links[0][1], action=EndUN())
    return (shift, *(Route(locator(block, usid), dev, via=via) for usid, dev, via in links))
