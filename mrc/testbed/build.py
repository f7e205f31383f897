# SPDX-License-Identifier: Apache-2.0
"""Builds a plan in the kernel and removes it; changes it by faults, in the kernel or the emulator;
repairs links, and drains parts.

A switch's port drops packets larger than its limit by the MTU of IPv6 there, which also measures
the packets within a burst. Packets from a host are limited by a rule in its T0, because a host
would notice a limit of its own port. A rule sees a burst as one packet, so the host must then send
each packet alone.

The kernel removes the IPv6 addresses and routes of an interface that goes down, and does not add
them when it comes up again. A fabric of namespaces has no daemon that would.

Of drained links each host withdraws its routes. Packets in flight still arrive, because the fabric
goes on forwarding. mrc notices that the kernel has no route and sends on other paths; TCP and other
programs keep to the paths in their addresses, or use others by `h1` (ECMP).
"""

from __future__ import annotations

import dataclasses
import errno
import json
import logging
import subprocess
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from ipaddress import IPv6Network
from itertools import islice
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from mrc.errors import NetlinkError, StateError
from mrc.linux import netns, system
from mrc.linux.rtnetlink import Interface
from mrc.testbed import emulator, state
from mrc.testbed.faults import (
    HOST_UP,
    LOSSY,
    Fault,
    Hop,
    Mode,
    drop_rules,
    dropped_by,
    emulated_ends,
    kernel_ends,
    lossy,
    no_drop_rules,
    place_faults,
    table_of,
)
from mrc.testbed.netlink import Netem, Netlink
from mrc.testbed.plan import (
    BedLink,
    BedPlan,
    Egress,
    Shaper,
    make_plan,
    shaper,
)
from mrc.testbed.routes import Route
from mrc.testbed.shape import MANAGEMENT, extra, is_namespace_of, namespace_of, part_name
from mrc.testbed.topology import Target

# A veth reports that it is up within a second, except on a busy machine.
_UP_SECONDS = 10.0
_THREADS = 8
# The kernel removes the contents of a namespace some time after its name.
_GONE_SECONDS, _POLL_SECONDS = 10.0, 0.01

_log = logging.getLogger("mrc.testbed")

# One end of a link: node and interface.
LinkEnd = tuple[str, str]


def build(plan: BedPlan) -> None:
    """Build the test bed and wait until every link is up. A failure removes its namespaces.

    Raises NetlinkError.
    """
    links: dict[str, list[BedLink]] = {name: [] for name in plan.nodes}
    for link in plan.links:
        for name, _, _ in link.ends:
            links[name].append(link)
    try:
        for node in plan.nodes.values():
            netns.create(node.namespace)
            netns.set_sysctls(node.namespace, node.sysctls)
        for name in plan.nodes:
            with _opened(plan, name) as netlink:
                _add_veths(plan, name, links[name], netlink)
        _add_tunnels(plan)
        for name, node in plan.nodes.items():
            with _opened(plan, name) as netlink:
                _add_queues(name, links[name], netlink)
                netlink.set_links(["lo", *_interfaces(name, links[name])], up=True)
                netlink.add_addresses(node.addresses)
                netlink.add_ipv4(node.ipv4)
                netlink.add_neighbours(node.neighbours)
        _at_once(
            partial(_apply_rules, plan),
            *(partial(_add_routes, plan, name) for name in plan.nodes),
        )
        _wait_until_up(plan, {name: _interfaces(name, links[name]) for name in plan.nodes})
        _limit_sizes(plan)
    except BaseException:
        remove(plan.name)
        raise


def _opened(plan: BedPlan, node: str) -> Netlink:
    """One at a time: a large test bed has more nodes than a process may open files."""
    return Netlink(plan.nodes[node].namespace)


def _wait_until_up(plan: BedPlan, interfaces: Mapping[str, Iterable[str]]) -> None:
    """`interfaces`: node -> its interfaces."""

    def opened() -> Iterator[tuple[Netlink, Iterable[str]]]:
        for name, wanted in interfaces.items():
            with _opened(plan, name) as netlink:
                yield netlink, wanted

    Netlink.wait_until_up(opened(), _UP_SECONDS)


def _add_routes(plan: BedPlan, name: str) -> None:
    node = plan.nodes[name]
    with _opened(plan, name) as netlink:
        netlink.add_routes(node.routes)
        if node.gateway is not None:
            netlink.add_gateway(*node.gateway)
    if node.tunnel_source is not None:
        Netlink.set_tunnel_source(node.namespace, node.tunnel_source)


def _apply_rules(plan: BedPlan) -> None:
    nodes = plan.nodes.values()
    apply_rules({node.namespace: node.rules for node in nodes if node.rules})
    try:
        apply_rules({node.namespace: node.reassembly for node in nodes if node.reassembly})
    except NetlinkError as exc:
        _log.warning("datagrams larger than the MTU will be lost, see mrc doctor: %s", exc)


def _at_once(*tasks: Callable[[], object]) -> None:
    """Runs tasks in threads, because some requests wait 10 ms in the kernel. Raises the first
    error after all running tasks have ended. The tasks must not use pyroute2, whose classes
    complete themselves on first use.
    """
    with ThreadPoolExecutor(_THREADS) as pool:
        try:
            for done in [pool.submit(task) for task in tasks]:
                done.result()
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def remove(name: str) -> list[str]:
    """Remove every namespace of a test bed, with its contents. Returns their names."""
    found = list(namespaces(name))
    for each in found:
        netns.remove(each)
    return found


def namespaces(name: str) -> dict[str, str]:
    """Every namespace of a test bed, with the name of its host or switch for people."""
    found = (each for each in netns.names() if is_namespace_of(name, each))
    return {each: part_name(each.removeprefix(namespace_of(name, ""))) for each in found}


def missing(plan: BedPlan) -> list[str]:
    """The nodes of a plan whose namespaces no longer exist."""
    there = set(netns.names())
    return [node.name for node in plan.nodes.values() if node.namespace not in there]


def set_down(plan: BedPlan, ends: Iterable[LinkEnd]) -> None:
    """Set link ends down."""
    for name, names in _by_node(ends).items():
        with Netlink(plan.nodes[name].namespace) as netlink:
            netlink.set_links(names, up=False)


def add_link(plan: BedPlan, link: BedLink) -> None:
    """Makes a link that was deleted again, with its queues. Both ends start down."""
    with _opened(plan, link.lower) as netlink:
        _add_veths(plan, link.lower, [link], netlink)
    for node in (link.lower, link.upper):
        with _opened(plan, node) as netlink:
            _add_queues(node, [link], netlink)


def set_up(plan: BedPlan, ends: Iterable[LinkEnd], still_down: Collection[LinkEnd]) -> None:
    """Set link ends up again, and wait until both ends are up, except at links still held down.

    When the ends went down, the kernel removed their addresses, neighbours and routes. This adds
    them again, and touches no other interface: its user may have changed it.
    """
    ends = list(ends)
    for name, names in _by_node(ends).items():
        node = plan.nodes[name]
        with Netlink(node.namespace) as netlink:
            netlink.set_links(names, up=True)
            netlink.add_addresses([each for each in node.addresses if each[0] in names])
            netlink.add_ipv4([each for each in node.ipv4 if each[0] in names])
            netlink.add_neighbours([each for each in node.neighbours if each[0] in names])
            netlink.add_routes([route for route in node.routes if route.dev in names])
            if node.gateway is not None and node.gateway[0] in names:
                netlink.add_gateway(*node.gateway)
    here = [link for link in plan.links if link.tunnel is None]
    pairs = [((each.lower, each.lower_name), (each.upper, each.upper_name)) for each in here]
    far = dict(pairs) | {upper: lower for lower, upper in pairs}
    whole = [end for end in ends if far.get(end) not in still_down]
    _wait_until_up(plan, _by_node(whole + [far[end] for end in whole if end in far]))
    _limit_sizes(plan, ends)


def _add_veths(plan: BedPlan, node: str, links: Sequence[BedLink], netlink: Netlink) -> None:
    """Makes those of a node's links whose lower end it is. They start down."""
    for link in links:
        if link.lower == node and link.tunnel is None:
            netlink.add_veth(
                link.lower_name,
                link.upper_name,
                plan.nodes[link.upper].namespace,
                link.mtu,
                link.lower_mac,
                BedLink.UPPER_MAC,
                gso_max_segs=1 if link.is_emulated else None,
            )


def _add_tunnels(plan: BedPlan) -> None:
    """Makes the links that lead to other machines. They start down."""
    tunnels = [
        (interface, plan.nodes[node].namespace, link.mtu, link.tunnel)
        for link in plan.links
        if link.tunnel is not None
        for node, interface, _ in link.ends
    ]
    deadline = time.monotonic() + _GONE_SECONDS
    if tunnels:
        with Netlink() as underlay:
            while tunnels:
                name, place, mtu, its = tunnels[0]
                mac = BedLink.UPPER_MAC if its.end else BedLink.LOWER_MAC
                try:
                    underlay.add_vxlan(name, place, mtu, mac, its.vni, its.remote, its.port)
                    del tunnels[0]
                except NetlinkError as exc:
                    # The kernel may still remove that of an earlier test bed, with its namespace.
                    if exc.code != errno.EEXIST or time.monotonic() > deadline:
                        raise
                    time.sleep(_POLL_SECONDS)


def _add_queues(node: str, links: Iterable[BedLink], netlink: Netlink) -> None:
    for link in links:
        for name, interface, end in link.ends[: 1 if link.is_emulated else 2]:
            if name == node:
                _add_queue(netlink, interface, queue_of(end))


def _interfaces(node: str, links: Iterable[BedLink]) -> list[str]:
    return [interface for link in links for name, interface, _ in link.ends if name == node]


def _by_node(ends: Iterable[LinkEnd]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for node, interface in ends:
        found.setdefault(node, []).append(interface)
    return found


# ---- Rules of nftables ---------------------------------------------------------------------------


Ready = Callable[[], None]

_AT_ONCE = 32


def apply_rules(scripts: Mapping[str, str], ready: Ready | None = None) -> None:
    """Run one script per namespace, each as one transaction; without `ready` only some at once.

    Calls `ready` when every nft runs and waits for its script, and sends the scripts when it
    returns. Raises NetlinkError for the first script that nft refuses, after all have ended.
    """
    if ready is not None:
        _run_nft(["-f", "-"], scripts, ready)
        return
    for some in _some_scripts(scripts):
        _run_nft(["-f", "-"], some)


def dropped_by_rules(namespaces: Iterable[str]) -> dict[str, dict[str, list[int]]]:
    """Namespace -> IPv6 table -> packets counted by each of its rules, in the order of the rules.

    Raises NetlinkError.
    """
    return {
        namespace: _packets_of_rules(json.loads(text))
        for some in _some_scripts(dict.fromkeys(namespaces, ""))
        for namespace, text in _run_nft(["-j", "list", "ruleset", "ip6"], some).items()
    }


def _some_scripts(scripts: Mapping[str, str]) -> Iterator[dict[str, str]]:
    """Parts of the scripts: each process takes three descriptors."""
    each = iter(scripts.items())
    while some := dict(islice(each, _AT_ONCE)):
        yield some


def _packets_of_rules(
    listed: Mapping[str, list[dict[str, dict[str, object]]]],
) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for rule in (each["rule"] for each in listed["nftables"] if "rule" in each):
        expressions = rule["expr"]
        assert isinstance(expressions, list)
        counts = [each["counter"]["packets"] for each in expressions if "counter" in each]
        found.setdefault(str(rule["table"]), []).extend(counts)
    return found


def _run_nft(
    arguments: list[str], scripts: Mapping[str, str], ready: Ready | None = None
) -> dict[str, str]:
    """`scripts`: namespace -> standard input of nft there. Returns namespace -> its output."""
    argv, pipe = [*system.require("nft"), *arguments], subprocess.PIPE
    running = []
    try:
        for namespace, script in scripts.items():
            with netns.inside(namespace):
                # In a process group of its own: ^C at the terminal must not interrupt a change.
                started = subprocess.Popen(
                    argv, stdin=pipe, stdout=pipe, stderr=pipe, text=True, process_group=0
                )
                running.append((namespace, script, started))
        if ready is not None:
            ready()
    finally:
        answers = [
            (namespace, process.communicate(script), process.returncode)
            for namespace, script, process in running
        ]
    for namespace, (_, complaint), code in answers:
        if code != 0:
            reason = complaint.strip().splitlines()[0] if complaint.strip() else f"exit code {code}"
            raise NetlinkError(f"nft in {namespace}: {reason}")
    return {namespace: text for namespace, (text, _), _ in answers}


# ---- Queues of a kernel fabric -------------------------------------------------------------------


class Queue(Struct, frozen=True):
    """The queue of an interface for the packets that it sends."""

    shaper: Shaper | None
    netem: Netem | None = None


def queues_with(plan: BedPlan, faults: Mapping[Target, Fault]) -> dict[Hop, Queue]:
    """The queues that faults change, with their new values.

    Raises ValueError for faults that the kernel cannot inject.
    """
    impairing = {
        target: replace(fault, loss=0.0) for target, fault in faults.items() if fault.is_impairment
    }
    placed = place_faults(impairing, plan.shape)
    usual = _usual_queues(plan)
    found = {}
    for hop, rows in placed.items():
        if (queue := usual.get(hop.port)) is None:  # another machine has it
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


def _change_queues(plan: BedPlan, before: Mapping[Hop, Queue], after: Mapping[Hop, Queue]) -> None:
    """Replace the queues `before` by those in `after`. Restores queues that are only in `before`.

    Raises NetlinkError.
    """
    usual = _usual_queues(plan)
    with ExitStack() as stack:
        links: dict[str, Netlink] = {}
        for hop in {**before, **after}:
            node, interface = hop.port
            queue = usual[node, interface]
            was, shall = before.get(hop, queue), after.get(hop, queue)
            if was == shall:
                continue
            if node not in links:
                links[node] = stack.enter_context(Netlink(plan.nodes[node].namespace))
            if was.netem or not shall.shaper:
                links[node].remove_qdisc(interface)
            _add_queue(links[node], interface, shall)


def _add_queue(link: Netlink, interface: str, shall: Queue) -> None:
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


def has_netem(plan: BedPlan) -> bool:
    """Whether the kernel can delay, corrupt, duplicate and reorder packets."""
    with Netlink(plan.nodes[MANAGEMENT].namespace) as link:
        return link.has_qdisc("netem")


def read_counters(plan: BedPlan, faults: Mapping[Target, Fault]) -> dict[Hop, dict[str, int]]:
    """The counters of each hop so far, with the keys of an emulated hop.

    Linux neither marks nor trims, so these counters are 0. Raises NetlinkError.
    """
    lost = _lost_packets(plan, faults)
    interfaces = {}
    for node in plan.nodes.values():
        with Netlink(node.namespace) as link:
            interfaces[node.name] = link.counters()
    found = {}
    for hop in Hop.every(plan.shape):
        node_name, interface = hop.port
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


def _lost_packets(plan: BedPlan, faults: Mapping[Target, Fault]) -> dict[Hop, int]:
    """Packets that lossy links, MTUs of links, and the current faults since their start, dropped on
    each hop.
    """
    drops = {
        table_of(target): dropped_by(target, fault, plan.shape) for target, fault in faults.items()
    }
    drops[LOSSY] = lossy(plan.shape)
    here = {name: node.namespace for name, node in plan.nodes.items()}
    counted = dropped_by_rules(
        {here[node] for found in drops.values() for node in found if node in here}
    )
    lost = _dropped_by_size(plan, faults)
    for name, found in drops.items():
        for node, conditions in found.items():
            counts = counted.get(here.get(node, ""), {}).get(name, [])
            for (_, hop), count in zip(conditions, counts, strict=False):
                lost[hop] = lost.get(hop, 0) + count
    return lost


def queue_of(end: Egress) -> Queue:
    """The queue at an end of a link without faults."""
    return Queue(end.shaper, Netem(delay_ns=end.delay_ns) if end.delay_ns else None)


def _usual_queues(plan: BedPlan) -> dict[tuple[str, str], Queue]:
    """Node and interface -> queue without faults, for both ends of each link."""
    return {(node, name): queue_of(end) for link in plan.links for node, name, end in link.ends}


# ---- Links that lose large packets ---------------------------------------------------------------


_BURST_PACKETS = 65535
"""the kernel's default limit of a burst"""


def _limit_sizes(plan: BedPlan, ends: Collection[tuple[str, str]] | None = None) -> None:
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


def _change_sizes(
    plan: BedPlan, before: Mapping[Target, Fault], after: Mapping[Target, Fault]
) -> None:
    """Limits what faults limit, also of links that have just come up."""
    was, shall = _limited_hops(plan, before), _limited_hops(plan, after)
    if not was and not shall:
        return
    usual = {
        (node, interface): end.mtu or link.mtu
        for link in plan.links
        for node, interface, end in link.ends
    }
    switches = []
    for hop in {**was, **shall}:
        node, interface = hop.port
        if (node, interface) not in usual:  # another machine has it
            continue
        if hop.kind != HOST_UP:
            switches.append((node, interface, shall.get(hop, usual[node, interface])))
        elif (hop in was) != (hop in shall):
            with Netlink(plan.nodes[node].namespace) as link:
                link.set_gso_max_segs(interface, 1 if hop in shall else _BURST_PACKETS)
    _set_mtus(plan, switches)


def _dropped_by_size(plan: BedPlan, faults: Mapping[Target, Fault]) -> dict[Hop, int]:
    """Packets that switches dropped because they exceed the MTU of an end of a link."""
    limited = {(node, name) for link in plan.links for node, name, end in link.ends if end.mtu}
    limited |= {hop.port for hop in _limited_hops(plan, faults)}
    return {
        hop: _fragmentations_refused(plan.nodes[node].namespace, interface)
        for hop in (Hop.every(plan.shape) if limited else ())
        for node, interface in [hop.port]
        if hop.kind != HOST_UP and (node, interface) in limited and node in plan.nodes
    }


def _limited_hops(plan: BedPlan, faults: Mapping[Target, Fault]) -> dict[Hop, int]:
    """The hops that faults limit, and their MTUs."""
    limiting = {target: fault for target, fault in faults.items() if fault.mtu is not None}
    placed = place_faults(limiting, plan.shape) if limiting else {}
    return {hop: a for hop, rows in placed.items() for kind, a, _ in rows if kind == "mtu"}


def _set_mtus(plan: BedPlan, wanted: Collection[tuple[str, str, int]]) -> None:
    """`wanted`: node, interface and MTU."""
    found: dict[str, dict[str, str]] = {}
    for node, interface, mtu in wanted:
        found.setdefault(node, {})[netns.mtu_key(interface)] = str(mtu)
    for node, sysctls in found.items():
        netns.set_sysctls(plan.nodes[node].namespace, sysctls)


def _fragmentations_refused(namespace: str, interface: str) -> int:
    with netns.inside(namespace):
        text = Path("/proc/thread-self/net/dev_snmp6", interface).read_text()
    return int(dict(map(str.split, text.splitlines()))["Ip6FragFails"])


# ---- Faults --------------------------------------------------------------------------------------


Faults = Mapping[Target, Fault]


def check_faults(plan: BedPlan, faults: Faults) -> None:
    """Raises ValueError for faults that this fabric or this kernel cannot have."""
    place_faults(faults, plan.shape)
    if any(each.mode is Mode.DOWN and target.direction for target, each in faults.items()):
        raise ValueError("a link goes down in both directions: use mode silent for one")
    if plan.shape.is_emulated:
        return
    queues_with(plan, faults)
    if any(each.touches_packets for each in faults.values()) and not has_netem(plan):
        raise ValueError(
            "this kernel lacks netem (CONFIG_NET_SCH_NETEM), so it can only drop packets and limit "
            "rates: use --fabric emulated"
        )


def change_faults(plan: BedPlan, before: Faults, after: Faults, ready: Ready | None) -> None:
    """Apply the difference. Calls `ready` when everything is prepared; the change takes effect when
    it returns. None: at once. A link goes up once no fault holds it down.
    """
    down, stay_down = ends_down(plan, before), ends_down(plan, after)
    is_kernel = not plan.shape.is_emulated
    apply_rules(_scripts_of_drops(plan, before, after) if is_kernel else {}, ready)
    set_down(plan, [end for end in stay_down if end not in down])
    if is_kernel:
        _change_queues(plan, queues_with(plan, before), queues_with(plan, after))
    else:
        placed = list(place_faults(after, plan.shape).items())
        emulator.ask(state.folder(plan.name), {"do": "faults", "hops": placed})
    set_up(plan, [end for end in down if end not in stay_down], stay_down)
    if is_kernel:
        _change_sizes(plan, before, after)
    if plan.shape.outside.hosts:
        extra("uplink").follow(plan, stay_down)


def _scripts_of_drops(plan: BedPlan, before: Faults, after: Faults) -> dict[str, str]:
    """Namespace -> nftables script for the changed drops."""
    scripts: dict[str, str] = {}
    for target in {**before, **after}:
        was, shall = before.get(target), after.get(target)
        if was == shall:
            continue
        dropped, drops = (
            {} if fault is None else dropped_by(target, fault, plan.shape) for fault in (was, shall)
        )
        for node in {**dropped, **drops}:
            if node not in plan.nodes:  # another machine has it
                continue
            if node in drops:
                script = drop_rules(table_of(target), [condition for condition, _ in drops[node]])
            else:
                script = no_drop_rules(target)
            namespace = plan.nodes[node].namespace
            scripts[namespace] = scripts.get(namespace, "") + script
    return scripts


def ends_down(plan: BedPlan, faults: Faults) -> dict[LinkEnd, None]:
    """The ends of links that faults hold down."""
    find = emulated_ends if plan.shape.is_emulated else kernel_ends
    return {
        end: None
        for target, fault in faults.items()
        if fault.mode is Mode.DOWN
        for end in find(target, plan.shape)
        if end[0] in plan.nodes
    }


# ---- Links that somebody took down by hand -------------------------------------------------------


LostEnds = dict[LinkEnd, str]
"""End of a link -> the target that heals it."""


def lost_ends(plan: BedPlan, target: Target, held_down: Collection[LinkEnd]) -> LostEnds:
    """The ends of a target's links that are down or lack an address of the plan, although no fault
    holds them down. They may be up again. Raises NetlinkError.
    """
    found: LostEnds = {}
    wanted: dict[str, LostEnds] = {}
    for link, name in _links_of(plan, target):
        for node, interface, _ in link.ends:
            if (node, interface) not in held_down:
                wanted.setdefault(node, {})[node, interface] = name
    for node, ends in wanted.items():
        whole = _whole_interfaces(plan, node)
        found |= {end: name for end, name in ends.items() if end[1] not in whole}
    return found


def repair_links(plan: BedPlan, target: Target, held_down: Collection[LinkEnd]) -> list[str]:
    """Restores the links of a target that `lost` finds; returns their names.

    Raises NetlinkError, and StateError for an interface that somebody removed.
    """
    found = lost_ends(plan, target, held_down)
    for node in dict.fromkeys(node for node, _ in found):
        there = {each.name for each in Interface.all(plan.nodes[node].namespace)}
        for gone in (each for each in found if each[0] == node and each[1] not in there):
            raise StateError(
                f"{end_name(gone)} was removed: run mrc testbed down --name {plan.name} and the "
                "same mrc testbed up"
            )
    if found:
        set_up(plan, found, held_down)
    return list(dict.fromkeys(found.values()))


def end_name(end: LinkEnd) -> str:
    """`t0:1.0:h0`"""
    return f"{part_name(end[0])}:{end[1]}"


def _links_of(plan: BedPlan, target: Target) -> Iterable[tuple[BedLink, str]]:
    names = {
        Hop.both_ways(link, plan.shape)[0].port: str(link) for link in plan.shape.links_of(target)
    }
    for link in plan.links:
        if name := names.get((link.lower, link.lower_name)):
            yield link, name
        elif target.kind == "all" and link.upper == MANAGEMENT:
            yield link, "all"


def _whole_interfaces(plan: BedPlan, node: str) -> set[str]:
    """The interfaces of a node that are enabled and have all their addresses."""
    wanted: dict[str, set[object]] = {}
    for interface, address in plan.nodes[node].addresses:
        wanted.setdefault(interface, set()).add(address)
    return {
        each.name
        for each in Interface.all(plan.nodes[node].namespace)
        if each.enabled and wanted.get(each.name, set()) <= set(each.addresses)
    }


# ---- Drained parts -------------------------------------------------------------------------------


_Own = dict[IPv6Network, Route]
_Shared = dict[IPv6Network, list[Route]]


def change_drains(plan: BedPlan, before: Sequence[Target], after: Sequence[Target]) -> None:
    """Applies the difference between two lists of drained targets. Raises NetlinkError."""
    was, shall = _plan_without(plan, before), _plan_without(plan, after)
    for host in plan.configs:
        (own, shared), (own_now, shared_now) = (
            _routes_of_paths(was, host),
            _routes_of_paths(shall, host),
        )
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


def _plan_without(plan: BedPlan, targets: Sequence[Target]) -> BedPlan:
    return make_plan(plan.name, plan.shape.without(targets)) if targets else plan


def _routes_of_paths(plan: BedPlan, host: str) -> tuple[_Own, _Shared]:
    """The routes over paths to other hosts: one for each path, and those that ECMP uses."""
    own: _Own = {}
    shared: _Shared = {}
    for route in plan.nodes[host].routes:
        if route.action is None or not route.action.segments:
            continue
        if route.shared:
            shared.setdefault(route.dst, []).append(route)
        else:
            own[route.dst] = route
    return own, shared
