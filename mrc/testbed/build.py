# SPDX-License-Identifier: Apache-2.0
"""Builds a plan in the kernel, restores links after faults, and removes everything again."""

from __future__ import annotations

import errno
import logging
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from mrc.errors import NetlinkError
from mrc.linux import netns
from mrc.linux.netlink import Netlink, Veth, Vxlan, set_tunnel_source, wait_until_up
from mrc.testbed import nft, queues, sizes
from mrc.testbed.names import is_namespace_of, namespace, part_name
from mrc.testbed.plan import LOWER_MAC, UPPER_MAC, Link, Node, Plan

# A veth reports that it is up within a second, except on a busy machine.
_UP_SECONDS = 10.0
_THREADS = 8
# The kernel removes the contents of a namespace some time after its name.
_GONE_SECONDS, _POLL_SECONDS = 10.0, 0.01

_log = logging.getLogger("mrc.testbed")

# One end of a link: node and interface.
LinkEnd = tuple[str, str]


def build(plan: Plan) -> None:
    """Build the test bed and wait until every link is up. A failure removes its namespaces.

    Raises NetlinkError.
    """
    links = _by_node_of(plan)
    try:
        for node in plan.nodes.values():
            netns.create(node.namespace)
            netns.set_sysctls(node.namespace, node.sysctls)
        for name in plan.nodes:
            with _opened(plan, name) as netlink:
                _add_veths(plan, name, links[name], netlink)
        _add_tunnels(plan)
        for name in plan.nodes:
            with _opened(plan, name) as netlink:
                _configure(plan.nodes[name], links[name], netlink)
        _at_once(
            partial(_apply_rules, plan),
            *(partial(_add_routes, plan, name) for name in plan.nodes),
        )
        _wait_until_up(plan, {name: _interfaces(name, links[name]) for name in plan.nodes})
        sizes.limit(plan)
    except BaseException:
        remove(plan.name)
        raise


def _opened(plan: Plan, node: str) -> Netlink:
    """One at a time: a large test bed has more nodes than a process may open files."""
    return Netlink(plan.nodes[node].namespace)


def _wait_until_up(plan: Plan, interfaces: Mapping[str, Iterable[str]]) -> None:
    """`interfaces`: node -> its interfaces."""

    def opened() -> Iterator[tuple[Netlink, Iterable[str]]]:
        for name, wanted in interfaces.items():
            with _opened(plan, name) as netlink:
                yield netlink, wanted

    wait_until_up(opened(), _UP_SECONDS)


def _add_routes(plan: Plan, name: str) -> None:
    node = plan.nodes[name]
    with _opened(plan, name) as netlink:
        netlink.add_routes(node.routes)
        if node.gateway is not None:
            netlink.add_gateway(*node.gateway)
    if node.tunnel_source is not None:
        set_tunnel_source(node.namespace, node.tunnel_source)


def _apply_rules(plan: Plan) -> None:
    nodes = plan.nodes.values()
    nft.apply({node.namespace: node.rules for node in nodes if node.rules})
    try:
        nft.apply({node.namespace: node.reassembly for node in nodes if node.reassembly})
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
    return {each: part_name(each.removeprefix(namespace(name, ""))) for each in found}


def missing(plan: Plan) -> list[str]:
    """The nodes of a plan whose namespaces no longer exist."""
    there = set(netns.names())
    return [node.name for node in plan.nodes.values() if node.namespace not in there]


def set_down(plan: Plan, ends: Iterable[LinkEnd]) -> None:
    """Set link ends down."""
    for name, interfaces in _by_node(ends).items():
        with Netlink(plan.nodes[name].namespace) as netlink:
            netlink.set_links(interfaces, up=False)


def add_link(plan: Plan, link: Link) -> None:
    """Makes a link that was deleted again, with its queues. Both ends start down."""
    with _opened(plan, link.lower) as netlink:
        _add_veths(plan, link.lower, [link], netlink)
    for node in (link.lower, link.upper):
        with _opened(plan, node) as netlink:
            _add_queues(node, [link], netlink)


def set_up(plan: Plan, ends: Iterable[LinkEnd], still_down: Collection[LinkEnd]) -> None:
    """Set link ends up again, and wait until both ends are up, except at links still held down.

    When the ends went down, the kernel removed their addresses, neighbours and routes. This adds
    them again, and touches no other interface: its user may have changed it.
    """
    ends = list(ends)
    for name, interfaces in _by_node(ends).items():
        node = plan.nodes[name]
        with Netlink(node.namespace) as netlink:
            netlink.set_links(interfaces, up=True)
            netlink.add_addresses([each for each in node.addresses if each[0] in interfaces])
            netlink.add_ipv4([each for each in node.ipv4 if each[0] in interfaces])
            netlink.add_neighbours([each for each in node.neighbours if each[0] in interfaces])
            netlink.add_routes([route for route in node.routes if route.dev in interfaces])
            if node.gateway is not None and node.gateway[0] in interfaces:
                netlink.add_gateway(*node.gateway)
    far = _far_ends(plan)
    whole = [end for end in ends if far.get(end) not in still_down]
    _wait_until_up(plan, _by_node(whole + [far[end] for end in whole if end in far]))
    sizes.limit(plan, ends)


def _add_veths(plan: Plan, node: str, links: Sequence[Link], netlink: Netlink) -> None:
    """Makes those of a node's links whose lower end it is. They start down."""
    netlink.add_veths(
        Veth(
            name=link.lower_name,
            peer_name=link.upper_name,
            peer_namespace=plan.nodes[link.upper].namespace,
            mtu=link.mtu,
            mac=link.lower_mac,
            gso_max_segs=1 if link.is_emulated else None,
            peer_mac=UPPER_MAC,
        )
        for link in links
        if link.lower == node and link.tunnel is None
    )


def _add_tunnels(plan: Plan) -> None:
    """Makes the links that lead to other machines. They start down."""
    tunnels = [
        Vxlan(
            name=interface,
            namespace=plan.nodes[node].namespace,
            mtu=link.mtu,
            mac=UPPER_MAC if link.tunnel.end else LOWER_MAC,
            vni=link.tunnel.vni,
            remote=link.tunnel.remote,
            port=link.tunnel.port,
        )
        for link in plan.links
        if link.tunnel is not None
        for node, interface, _ in link.ends
    ]
    deadline = time.monotonic() + _GONE_SECONDS
    if tunnels:
        with Netlink() as underlay:
            for tunnel in tunnels:
                while not _add_tunnel(underlay, tunnel, deadline):
                    time.sleep(_POLL_SECONDS)


def _add_tunnel(underlay: Netlink, tunnel: Vxlan, deadline: float) -> bool:
    """False: the kernel still removes the one of an earlier test bed, with its namespace."""
    try:
        underlay.add_vxlans([tunnel])
    except NetlinkError as exc:
        if exc.code != errno.EEXIST or time.monotonic() > deadline:
            raise
        return False
    return True


def _configure(node: Node, links: Sequence[Link], netlink: Netlink) -> None:
    """Sets up the ends of a node's links, with their queues, addresses and neighbours."""
    _add_queues(node.name, links, netlink)
    netlink.set_links(["lo", *_interfaces(node.name, links)], up=True)
    netlink.add_addresses(node.addresses)
    netlink.add_ipv4(node.ipv4)
    netlink.add_neighbours(node.neighbours)


def _add_queues(node: str, links: Iterable[Link], netlink: Netlink) -> None:
    for link in links:
        for name, interface, end in link.ends[: 1 if link.is_emulated else 2]:
            if name == node:
                queues.add(netlink, interface, queues.of(end))


def _by_node_of(plan: Plan) -> dict[str, list[Link]]:
    """Node -> its links."""
    found: dict[str, list[Link]] = {name: [] for name in plan.nodes}
    for link in plan.links:
        for node, _, _ in link.ends:
            found[node].append(link)
    return found


def _interfaces(node: str, links: Iterable[Link]) -> list[str]:
    return [interface for link in links for name, interface, _ in link.ends if name == node]


def _far_ends(plan: Plan) -> dict[LinkEnd, LinkEnd]:
    """The other end of each end, if it is on this machine."""
    pairs = [
        ((link.lower, link.lower_name), (link.upper, link.upper_name))
        for link in plan.links
        if link.tunnel is None
    ]
    return dict(pairs) | {upper: lower for lower, upper in pairs}


def _by_node(ends: Iterable[LinkEnd]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for node, interface in ends:
        found.setdefault(node, []).append(interface)
    return found
