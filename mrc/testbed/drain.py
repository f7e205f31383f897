# SPDX-License-Identifier: Apache-2.0
"""Moves the hosts' traffic off parts of a test bed, and back.

Each host withdraws its routes over the drained links. Packets in flight still arrive, because the
fabric goes on forwarding. mrc notices that the kernel has no route and sends on other paths; TCP
and other programs keep to the paths in their addresses, or use others by `h1` (ECMP).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from ipaddress import IPv6Network

from mrc.fabric.srv6 import EncapRed, Route
from mrc.fabric.targets import Target, without
from mrc.linux.netlink import Netlink
from mrc.testbed.plan import Plan, make_plan

_Own = dict[IPv6Network, Route]
_Shared = dict[IPv6Network, list[Route]]


def change(plan: Plan, before: Sequence[Target], after: Sequence[Target]) -> None:
    """Applies the difference between two lists of drained targets. Raises NetlinkError."""
    was, shall = _without(plan, before), _without(plan, after)
    for host in plan.configs:
        (own, shared), (own_now, shared_now) = _paths(was, host), _paths(shall, host)
        changed = [routes for dst, routes in shared_now.items() if routes != shared.get(dst)]
        with Netlink(plan.nodes[host].namespace) as netlink:
            # First what ECMP uses: it must not choose a path whose own route is gone.
            netlink.add_routes(
                [
                    route
                    for first, *others in changed
                    for route in (dataclasses.replace(first, shared=False), *others)
                ]
            )
            netlink.remove_routes([route for dst, route in own.items() if dst not in own_now])
            netlink.add_routes([route for dst, route in own_now.items() if dst not in own])


def _without(plan: Plan, targets: Sequence[Target]) -> Plan:
    return make_plan(plan.name, without(plan.shape, targets)) if targets else plan


def _paths(plan: Plan, host: str) -> tuple[_Own, _Shared]:
    """The routes over paths to other hosts: one for each path, and those that ECMP uses."""
    own: _Own = {}
    shared: _Shared = {}
    for route in plan.nodes[host].routes:
        if isinstance(route.action, EncapRed) and route.shared:
            shared.setdefault(route.dst, []).append(route)
        elif isinstance(route.action, EncapRed):
            own[route.dst] = route
    return own, shared
