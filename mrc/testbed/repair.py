# SPDX-License-Identifier: Apache-2.0
"""Finds and repairs links that somebody took down by hand.

The kernel removes the IPv6 addresses and routes of an interface that goes down, and does not add
them when it comes up again. A fabric of namespaces has no daemon that would.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from mrc.errors import StateError
from mrc.fabric.targets import Target, links_of
from mrc.linux.interfaces import interfaces
from mrc.testbed import build
from mrc.testbed.build import LinkEnd
from mrc.testbed.hops import hops_of_link, port
from mrc.testbed.names import MANAGEMENT, part_name
from mrc.testbed.plan import Link, Plan

Found = dict[LinkEnd, str]
"""End of a link -> the target that heals it."""


def lost(plan: Plan, target: Target, held_down: Collection[LinkEnd]) -> Found:
    """The ends of a target's links that are down or lack an address of the plan, although no fault
    holds them down. They may be up again. Raises NetlinkError.
    """
    found: Found = {}
    wanted: dict[str, Found] = {}
    for link, name in _links(plan, target):
        for node, interface, _ in link.ends:
            if (node, interface) not in held_down:
                wanted.setdefault(node, {})[node, interface] = name
    for node, ends in wanted.items():
        whole = _whole(plan, node)
        found |= {end: name for end, name in ends.items() if end[1] not in whole}
    return found


def repair(plan: Plan, target: Target, held_down: Collection[LinkEnd]) -> list[str]:
    """Restores the links of a target that `lost` finds; returns their names.

    Raises NetlinkError, and StateError for an interface that somebody removed.
    """
    found = lost(plan, target, held_down)
    for node in dict.fromkeys(node for node, _ in found):
        there = {each.name for each in interfaces(plan.nodes[node].namespace)}
        for gone in (each for each in found if each[0] == node and each[1] not in there):
            raise StateError(
                f"{end_name(gone)} was removed: run mrc testbed down --name {plan.name} and the "
                "same mrc testbed up"
            )
    if found:
        build.set_up(plan, found, held_down)
    return list(dict.fromkeys(found.values()))


def end_name(end: LinkEnd) -> str:
    """`t0:1.0:h0`"""
    return f"{part_name(end[0])}:{end[1]}"


def _links(plan: Plan, target: Target) -> Iterable[tuple[Link, str]]:
    names = {
        port(hops_of_link(link, plan.shape)[0]): str(link) for link in links_of(target, plan.shape)
    }
    for link in plan.links:
        if name := names.get((link.lower, link.lower_name)):
            yield link, name
        elif target.kind == "all" and link.upper == MANAGEMENT:
            yield link, "all"


def _whole(plan: Plan, node: str) -> set[str]:
    """The interfaces of a node that are enabled and have all their addresses."""
    wanted: dict[str, set[object]] = {}
    for interface, address in plan.nodes[node].addresses:
        wanted.setdefault(interface, set()).add(address)
    return {
        each.name
        for each in interfaces(plan.nodes[node].namespace)
        if each.enabled and wanted.get(each.name, set()) <= set(each.addresses)
    }
