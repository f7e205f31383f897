# SPDX-License-Identifier: Apache-2.0
"""Links of a kernel fabric that lose packets larger than their MTU.

A switch's port has such a limit as the MTU of IPv6 there, which also measures the packets within a
burst. Packets from a host are limited by a rule in its T0, because a host would notice a limit of
its own port. A rule sees a burst as one packet, so the host must then send each packet alone.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path

from mrc.fabric.targets import Target
from mrc.linux import netns
from mrc.linux.netlink import Netlink
from mrc.testbed import hops
from mrc.testbed.fault import Fault
from mrc.testbed.hops import HOST_UP, Hop
from mrc.testbed.plan import Plan, mtu_key

_BURST_PACKETS = 65535
"""the kernel's default limit of a burst"""


def limit(plan: Plan, ends: Collection[tuple[str, str]] | None = None) -> None:
    """Limits what IPv6 sends at these ends of links, None: at all, that have an MTU of their own;
    an interface that comes up loses the limit. The MTU of the interface itself would also limit
    what it receives.
    """
    wanted = [
        (name, interface, end.mtu)
        for link in plan.links
        for name, interface, end in link.ends
        if end.mtu is not None and (ends is None or (name, interface) in ends)
    ]
    _set_mtus(plan, wanted)


def change(plan: Plan, before: Mapping[Target, Fault], after: Mapping[Target, Fault]) -> None:
    """Limits what faults limit, also of links that have just come up."""
    was, shall = _limited(plan, before), _limited(plan, after)
    if not was and not shall:
        return
    usual = {
        (node, interface): end.mtu or link.mtu
        for link in plan.links
        for node, interface, end in link.ends
    }
    switches = []
    for hop in {**was, **shall}:
        node, interface = hops.port(hop)
        if (node, interface) not in usual:  # another machine has it
            continue
        if hop.kind != HOST_UP:
            switches.append((node, interface, shall.get(hop, usual[node, interface])))
        elif (hop in was) != (hop in shall):
            with Netlink(plan.nodes[node].namespace) as link:
                link.set_gso_max_segs(interface, 1 if hop in shall else _BURST_PACKETS)
    _set_mtus(plan, switches)


def dropped(plan: Plan, faults: Mapping[Target, Fault]) -> dict[Hop, int]:
    """Packets that switches dropped because they exceed the MTU of an end of a link."""
    limited = {(node, name) for link in plan.links for node, name, end in link.ends if end.mtu}
    limited |= {hops.port(hop) for hop in _limited(plan, faults)}
    return {
        hop: _fragmentations_refused(plan.nodes[node].namespace, interface)
        for hop in (hops.all_hops(plan.shape) if limited else ())
        for node, interface in [hops.port(hop)]
        if hop.kind != HOST_UP and (node, interface) in limited and node in plan.nodes
    }


def _limited(plan: Plan, faults: Mapping[Target, Fault]) -> dict[Hop, int]:
    """The hops that faults limit, and their MTUs."""
    limiting = {target: fault for target, fault in faults.items() if fault.mtu is not None}
    placed = hops.place(limiting, plan.shape) if limiting else {}
    return {hop: a for hop, rows in placed.items() for kind, a, _ in rows if kind == "mtu"}


def _set_mtus(plan: Plan, wanted: Collection[tuple[str, str, int]]) -> None:
    """`wanted`: node, interface and MTU."""
    found: dict[str, dict[str, str]] = {}
    for node, interface, mtu in wanted:
        found.setdefault(node, {})[mtu_key(interface)] = str(mtu)
    for node, sysctls in found.items():
        netns.set_sysctls(plan.nodes[node].namespace, sysctls)


def _fragmentations_refused(namespace: str, interface: str) -> int:
    with netns.inside(namespace):
        text = Path("/proc/thread-self/net/dev_snmp6", interface).read_text()
    return int(dict(map(str.split, text.splitlines()))["Ip6FragFails"])
