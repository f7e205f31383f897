# SPDX-License-Identifier: Apache-2.0
"""The queues of a kernel fabric: their changes by faults, and the counters of queues and links."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack

from msgspec import Struct
from msgspec.structs import replace

from mrc.fabric.targets import Target
from mrc.linux.netlink import Netem, Netlink
from mrc.testbed import hops, nft, sizes
from mrc.testbed.fault import LOSSY, Fault, table
from mrc.testbed.hops import Hop
from mrc.testbed.names import MANAGEMENT
from mrc.testbed.plan import Plan, Sending, Shaper, shaper


class Queue(Struct, frozen=True):
    """The queue of an interface for the packets that it sends."""

    shaper: Shaper | None
    netem: Netem | None = None


def wanted(plan: Plan, faults: Mapping[Target, Fault]) -> dict[Hop, Queue]:
    """The queues that faults change, with their new values.

    Raises ValueError for faults that the kernel cannot inject.
    """
    impairing = {
        target: replace(fault, loss=0.0) for target, fault in faults.items() if fault.is_impairment
    }
    placed = hops.place(impairing, plan.shape)
    usual = _usual(plan)
    found = {}
    for hop, rows in placed.items():
        if (queue := usual.get(hops.port(hop))) is None:  # another machine has it
            continue
        own_delay_ns = queue.netem.delay_ns if queue.netem else 0
        told = {kind: a for kind, a, _ in rows}
        netem = Netem(
            delay_ns=told.get("delay", own_delay_ns),
            jitter_ns=told.get("jitter", 0),
            corrupt=told.get("corrupt", 0),
            duplicate=told.get("duplicate", 0),
            reorder=told.get("reorder", 0),
            reorder_ns=next((b for kind, _, b in rows if kind == "reorder"), 0),
        )
        found[hop] = Queue(
            shaper(told["rate"]) if "rate" in told else queue.shaper,
            None if netem == Netem() else netem,
        )
    return found


def change(plan: Plan, before: Mapping[Hop, Queue], after: Mapping[Hop, Queue]) -> None:
    """Replace the queues `before` by those in `after`. Restores queues that are only in `before`.

    Raises NetlinkError.
    """
    usual = _usual(plan)
    with ExitStack() as stack:
        links: dict[str, Netlink] = {}
        for hop in {**before, **after}:
            node, interface = hops.port(hop)
            queue = usual[node, interface]
            was, shall = before.get(hop, queue), after.get(hop, queue)
            if was == shall:
                continue
            if node not in links:
                links[node] = stack.enter_context(Netlink(plan.nodes[node].namespace))
            if was.netem or not shall.shaper:
                links[node].remove_qdisc(interface)
            add(links[node], interface, shall)


def add(link: Netlink, interface: str, shall: Queue) -> None:
    """Add a queue to an interface. Raises NetlinkError."""
    if shall.shaper:
        link.add_shaper(
            interface,
            rate_bps=shall.shaper.rate_bps,
            burst_bytes=shall.shaper.burst_bytes,
            limit_bytes=shall.shaper.limit_bytes,
        )
    if shall.netem:
        link.add_netem(interface, shall.netem, below_tbf=shall.shaper is not None)


def has_netem(plan: Plan) -> bool:
    """Whether the kernel can delay, corrupt, duplicate and reorder packets."""
    with Netlink(plan.nodes[MANAGEMENT].namespace) as link:
        return link.has_qdisc("netem")


def read(plan: Plan, faults: Mapping[Target, Fault]) -> dict[Hop, dict[str, int]]:
    """The counters of each hop so far, with the keys of an emulated hop.

    Linux neither marks nor trims, so these counters are 0. Raises NetlinkError.
    """
    lost = _lost(plan, faults)
    interfaces = {}
    for node in plan.nodes.values():
        with Netlink(node.namespace) as link:
            interfaces[node.name] = link.counters()
    found = {}
    for hop in hops.all_hops(plan.shape):
        node_name, interface = hops.port(hop)
        if node_name not in interfaces:  # another machine has it
            continue
        sent = interfaces[node_name][interface]
        found[hop] = {
            "packets": sent.packets,
            "bytes": sent.bytes,
            "queue_bytes": sent.queue_bytes,
            "lost": lost.get(hop, 0),
            "dropped": sent.dropped,
            "trimmed": 0,
            "marked": 0,
        }
    return found


def _lost(plan: Plan, faults: Mapping[Target, Fault]) -> dict[Hop, int]:
    """Packets that lossy links, MTUs of links, and the current faults since their start, dropped on
    each hop.
    """
    drops = {
        table(target): hops.dropped_by(target, fault, plan.shape)
        for target, fault in faults.items()
    }
    drops[LOSSY] = hops.lossy(plan.shape)
    here = {name: node.namespace for name, node in plan.nodes.items()}
    counted = nft.dropped(
        {here[node] for found in drops.values() for node in found if node in here}
    )
    lost = sizes.dropped(plan, faults)
    for name, found in drops.items():
        for node, conditions in found.items():
            counts = counted.get(here.get(node, ""), {}).get(name, [])
            for (_, hop), count in zip(conditions, counts, strict=False):
                lost[hop] = lost.get(hop, 0) + count
    return lost


def of(end: Sending) -> Queue:
    """The queue at an end of a link without faults."""
    return Queue(end.shaper, Netem(delay_ns=end.delay_ns) if end.delay_ns else None)


def _usual(plan: Plan) -> dict[tuple[str, str], Queue]:
    """Node and interface -> queue without faults, for both ends of each link."""
    return {(node, name): of(end) for link in plan.links for node, name, end in link.ends}
