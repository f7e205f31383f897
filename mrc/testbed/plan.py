# SPDX-License-Identifier: Apache-2.0
"""The parts of a test bed, as data that can be printed and tested. Pure.

Each host and switch is a network namespace, joined by veths. `mgmt` routes between the hosts'
management interfaces, like the front-end network of a cluster. In an emulated fabric one namespace
stands for all switches, and the emulator moves packets between its interfaces.
`mrc.testbed.names` has the names of all nodes.

A link's upper end is fe80::1 and its lower end fe80::2, so every next hop is one of the two. Both
ends have a permanent neighbour entry for the other. Neighbour discovery may take a second when a
link returns, which would look like slowness of mrc.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Interface, IPv6Address, IPv6Interface, IPv6Network
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from mrc.fabric.srv6 import LOCAL_TABLE, EncapRed, EndDT6, Route, locator
from mrc.fabric.targets import parse_target
from mrc.fabric.topology import Origin, Topology
from mrc.testbed import hostfiles, hostrules
from mrc.testbed.fault import LOSSY, rules
from mrc.testbed.forwarding import LOWER, UPPER, switches
from mrc.testbed.hops import all_hops, all_hops_of, hops_of_link, lossy, port
from mrc.testbed.names import (
    FABRIC,
    MANAGEMENT,
    check_name,
    host_name,
    interface_name,
    namespace,
)
from mrc.testbed.results import Census, LinkProperties
from mrc.testbed.shape import NO_RATE_BPS, Fabric, Shape, usual_queue_bytes

# The kernel's size of the largest UDP_SEGMENT message: its data with IPv6 headers for each of up to
# 128 packets. A tbf with a smaller burst would cut the message into packets.
BURST_BYTES = 80 * 1024
_NO_LIMIT_BYTES = 1 << 30
_MAX_LIMIT_BYTES = (1 << 32) - 1  # of a tbf

UPPER_MAC, LOWER_MAC = "02:00:00:00:00:01", "02:00:00:00:00:02"

# Every interface: SRv6 on, no duplicate detection, no automatic addresses. New veths copy the
# values of "default", so it is set before they are made.
_SYSCTLS = {
    f"net/ipv6/conf/{scope}/{key}": value
    for scope in ("all", "default", "lo")
    for key, value in {
        "disable_ipv6": "0",
        "seg6_enabled": "1",
        "accept_dad": "0",
        "accept_ra": "0",
        "addr_gen_mode": "1",
    }.items()
}
_ECMP = {"net/ipv6/fib_multipath_hash_policy": "1"}  # by addresses and ports
_MAX_SHARED = 256  # routes between two hosts; the kernel lists them in one message of 64 KiB
_FORWARDING_IPV4 = {"net/ipv4/ip_forward": "1"}
ROUTER_IPV4 = IPv4Interface("100.127.255.254/32")
_FORWARDING = {f"net/ipv6/conf/{scope}/forwarding": "1" for scope in ("all", "default")}


class Shaper(Struct, frozen=True):
    """A token bucket for the packets that an interface sends."""

    rate_bps: int
    burst_bytes: int
    limit_bytes: int
    """the longest queue, including the burst"""


class Sending(Struct, frozen=True):
    """What an end of a link does with the packets that it sends."""

    shaper: Shaper | None = None
    delay_ns: int = 0
    mtu: int | None = None
    """IPv6 drops larger packets here; None: the MTU of the link"""


class Tunnel(Struct, frozen=True):
    """How packets reach the end of a link that another machine has: by VXLAN."""

    end: int
    """which of the link's ends is here: 0, the lower one, or 1"""
    vni: int
    remote: IPv4Address | IPv6Address
    """address of the other machine"""
    port: int
    """UDP port"""


class Link(Struct, frozen=True):
    """A veth between a lower and an upper node. Both ends receive packets of its MTU."""

    lower: str
    lower_name: str
    upper: str
    upper_name: str
    mtu: int
    up: Sending = Sending()
    down: Sending = Sending()
    is_emulated: bool = False
    """the emulator reads the upper end: it has no shaper and receives packets one by one"""
    lower_mac: str = LOWER_MAC
    tunnel: Tunnel | None = None
    """to the end that another machine has; None: both are here"""

    @property
    def ends(self) -> tuple[tuple[str, str, Sending], ...]:
        """Node, interface and what it does when it sends, of the ends on this machine."""
        both = (self.lower, self.lower_name, self.up), (self.upper, self.upper_name, self.down)
        return both if self.tunnel is None else (both[self.tunnel.end],)

    def is_here(self, end: int) -> bool:
        """Whether this machine has the end: 0, the lower one, or 1."""
        return self.tunnel is None or self.tunnel.end == end


class Node(Struct, frozen=True):
    """One namespace and its contents."""

    name: str
    namespace: str
    sysctls: dict[str, str]
    """path under /proc/sys -> value"""
    routes: tuple[Route, ...]
    addresses: tuple[tuple[str, IPv6Interface], ...] = ()
    """interface, address"""
    ipv4: tuple[tuple[str, IPv4Interface, IPv4Address | None], ...] = ()
    """interface, address, the only host behind the interface"""
    neighbours: tuple[tuple[str, IPv6Address | IPv4Address, str], ...] = ()
    """interface, address, MAC address"""
    rules: str = ""
    """nftables rules"""
    reassembly: str = ""
    """nftables rules without which the kernel loses only datagrams larger than the MTU"""
    gateway: tuple[str, IPv4Address] | None = None
    """interface and next hop of its IPv4 default route"""
    tunnel_source: IPv6Address | None = None
    """outer source address of its SRv6 encapsulations"""


class Plan(Struct, frozen=True):
    name: str
    shape: Shape
    nodes: dict[str, Node]
    links: tuple[Link, ...]
    hosts_file: str
    """/etc/hosts inside the hosts"""
    configs: dict[str, str]
    """host -> its configuration file"""


def census(shape: Shape) -> Census:
    """Counts the parts of the plan; makes it only if links are absent."""
    if shape.absent:
        return _count(make_plan("plan", shape))
    below, in_pod = shape.hosts_per_t0, shape.hosts // shape.pods
    peers = (  # paths of a plane, and how many peers of a host have so many
        (1, below - 1),
        (shape.t1s_per_pod, in_pod - below),
        (shape.t2, shape.hosts - in_pod),
    )
    paths = shape.hosts * shape.planes * sum(n * count for n, count in peers)
    shared = sum(_shared_in_plane(shape, n) * count for n, count in peers)
    shared *= shape.hosts * shape.planes
    routes = shape.hosts * (3 + 2 * shape.planes) + paths + shared  # at hosts and at mgmt
    links = shape.hosts * (1 + shape.planes)
    if shape.fabric is Fabric.EMULATED:
        return Census(shape.hosts + 2, links, routes, paths)
    inner = shape.t0 * shape.t1s_per_pod + shape.pods * shape.t2
    shifts = shape.t1 + shape.t2
    return Census(
        namespaces=shape.hosts + 1 + shape.planes * (shape.t0 + shifts),
        links=links + shape.planes * inner,
        routes=routes + shape.planes * (2 * shape.hosts + 2 * inner + shifts),
        paths=paths,
    )


def _count(plan: Plan) -> Census:
    hosts = plan.shape.host_numbers()
    return Census(
        namespaces=len(plan.nodes),
        links=len(plan.links),
        routes=sum(len(node.routes) for node in plan.nodes.values()),
        paths=sum(len(plan.shape.present(a, b)) for a in hosts for b in hosts if a != b),
    )


def make_plan(name: str, shape: Shape) -> Plan:
    """Makes the plan of a whole test bed. Raises ValueError for an invalid name."""
    check_name(name)
    links = tuple(_links(shape))
    mtus: dict[int, dict[int, int]] = {host: {} for host in shape.host_numbers()}
    for link, (up, _) in shape.link_properties().items():
        if link.host is not None:
            mtus[link.host][link.plane] = up.mtu
    nodes = [
        *(_host(name, shape, host) for host in shape.host_numbers()),
        *_fabric(name, shape),
        _management(name, shape),
    ]
    return Plan(
        name=name,
        shape=shape,
        nodes={node.name: node if node.name == FABRIC else on_links(node, links) for node in nodes},
        links=links,
        hosts_file=hostfiles.hosts_file(shape),
        configs={host_name(host): hostfiles.config(shape, host, mtus[host]) for host in mtus},
    )


def mtu_key(interface: str) -> str:
    """The sysctl of the largest packet that IPv6 sends on an interface."""
    return f"net/ipv6/conf/{interface}/mtu"


def shaper(rate_bps: int, buffer_bytes: int | None = None) -> Shaper:
    """A bucket for one whole burst and a queue of `buffer_bytes`: 0: no limit; None: 10 ms at this
    rate, at least 256 KiB.
    """
    queued = usual_queue_bytes(rate_bps) if buffer_bytes is None else buffer_bytes
    limit = min(BURST_BYTES + (queued or _NO_LIMIT_BYTES), _MAX_LIMIT_BYTES)
    return Shaper(rate_bps, BURST_BYTES, limit)


def emulator_config(shape: Shape) -> dict[str, Any]:
    """The fields of `struct mrc_emu_config`, the hops that differ from their tier, and those that
    are absent.
    """
    host_rate_bps = shape.host_rate_bps or NO_RATE_BPS
    config = {
        "seed": 1,
        "hosts": shape.hosts,
        "planes": shape.planes,
        "t0": shape.t0,
        "t1": shape.t1,
        "pods": shape.pods,
        "t2": shape.t2,
        "block": int(shape.addresses.block.network_address) >> 112,
        "mtu": shape.mtu,
        "host_rate_bps": host_rate_bps,
        "fabric_rate_bps": shape.fabric_rate_bps or NO_RATE_BPS,
        "core_rate_bps": shape.core_rate_bps or NO_RATE_BPS,
        "host_delay_ns": shape.host_delay_ns,
        "fabric_delay_ns": shape.fabric_delay_ns,
        "core_delay_ns": shape.core_delay_ns,
        "jitter_ns": shape.jitter_ns,
        **shape.port_queue(),
        "trims": int(shape.trim),
    }
    return {"config": config, "links": _changed_hops(shape), "absent": _absent_hops(shape)}


def _absent_hops(shape: Shape) -> list[Any]:
    whole = replace(shape, absent=(), links=())
    return [hop for name in shape.absent for hop in all_hops_of(parse_target(name, whole), whole)]


def _changed_hops(shape: Shape) -> list[Any]:
    """Hop, rate, delay, parts per million lost, MTU."""
    usual = all_hops(replace(shape, links=()))
    return [
        [hop, its.rate_bps or NO_RATE_BPS, its.delay_ns, round(its.loss * 1e6), its.mtu]
        for hop, its in all_hops(shape).items()
        if its != usual[hop]
    ]


def _links(shape: Shape) -> Iterator[Link]:
    for host in shape.host_numbers():
        yield Link(host_name(host), "mgmt", MANAGEMENT, host_name(host), 1500)
    for link, (up, down) in shape.link_properties().items():
        lower, upper = map(port, hops_of_link(link, shape))
        if shape.fabric is Fabric.KERNEL:
            yield Link(*lower, *upper, shape.mtu, _sending(up, shape), _sending(down, shape))
        elif link.host is not None:
            # The host has a shaper, because only its own queue can slow down its sockets. The
            # shaper counts fewer bytes a packet than the emulator. With 1% less rate, the packets
            # queue at the host and not in the emulator.
            queue = None if up.rate_bps is None else shaper(up.rate_bps * 99 // 100)
            upper = (FABRIC, interface_name(link.host, link.plane))
            sending = Sending(queue, mtu=_own_mtu(up, shape))
            yield Link(*lower, *upper, shape.mtu, sending, is_emulated=True)


def _sending(properties: LinkProperties, shape: Shape) -> Sending:
    rate_bps = properties.rate_bps
    queue = None if rate_bps is None else shaper(rate_bps, shape.buffer_bytes)
    return Sending(queue, properties.delay_ns, _own_mtu(properties, shape))


def _own_mtu(properties: LinkProperties, shape: Shape) -> int | None:
    return None if properties.mtu == shape.mtu else properties.mtu


def on_links(node: Node, links: tuple[Link, ...]) -> Node:
    """The node with an address and a neighbour on each of its links."""
    lower = [link.lower_name for link in links if link.lower == node.name and link.is_here(0)]
    upper = [link.upper_name for link in links if link.upper == node.name and link.is_here(1)]
    return replace(
        node,
        addresses=(
            *node.addresses,
            *((name, IPv6Interface((LOWER, 64))) for name in lower),
            *((name, IPv6Interface((UPPER, 64))) for name in upper),
        ),
        neighbours=(
            *node.neighbours,
            *((name, UPPER, UPPER_MAC) for name in lower),
            *((name, LOWER, LOWER_MAC) for name in upper),
        ),
    )


def _host(name: str, fabric: Topology, host: int) -> Node:
    """A host: it ends carriers, owns its prefix, and has a route for every path to every peer.

    Programs that select a path by address have an address in each plane, whose packets stay there
    both ways, and one on all planes.
    """
    addresses = fabric.addresses
    routes = [
        Route(addresses.host_prefix(host), "lo", local=True),
        Route(addresses.management, "mgmt", via=UPPER),
    ]
    for plane in fabric.planes_of(host):
        block = addresses.locator_block(plane)
        routes.append(Route(block, f"p{plane}", via=UPPER))
        ours = locator(block, fabric.host_usid(host))
        routes.append(Route(ours, f"p{plane}", action=EndDT6(LOCAL_TABLE)))
    own = addresses.host(host)
    planes = {f"p{plane}": addresses.in_plane(host, plane) for plane in fabric.planes_of(host)}
    for peer in fabric.host_numbers():
        if peer != host:
            every = _ways(fabric, peer, fabric.origin(host, peer))
            ways = [every[number] for number in fabric.present(host, peer)]
            routes += [Route(way.dst, way.dev, UPPER, planes[way.dev], way.action) for way in ways]
            routes += [
                Route(way.shared_dst, way.dev, UPPER, own, way.action, shared=True)
                for way in _shared(ways, _shared_in_plane(fabric, len(ways)))
            ]
    return Node(
        name=host_name(host),
        namespace=namespace(name, host_name(host)),
        sysctls=_SYSCTLS | _ECMP,
        addresses=(
            ("lo", IPv6Interface(own)),
            *((name, IPv6Interface(address)) for name, address in planes.items()),
            ("mgmt", IPv6Interface(addresses.oob(host))),
        ),
        ipv4=(("mgmt", addresses.oob_ipv4(host), None),),
        neighbours=tuple(  # the kernel takes them to be on the link; the management forwards
            ("mgmt", addresses.oob_ipv4(peer).ip, UPPER_MAC)
            for peer in fabric.host_numbers()
            if peer != host
        ),
        routes=tuple(routes),
        rules=hostrules.ECN,
        reassembly=hostrules.REASSEMBLY,
        tunnel_source=own,
    )


def _shared_in_plane(fabric: Topology, paths: int) -> int:
    """How many of a plane's paths to a peer ECMP uses."""
    return min(paths, max(1, _MAX_SHARED // fabric.planes))


class _Way(Struct, frozen=True):
    """What the routes of all hosts over a path have in common."""

    dst: IPv6Network
    dev: str
    action: EncapRed
    shared_dst: IPv6Network
    """the peer's address on all planes"""


def _shared(ways: Sequence[_Way], in_plane: int) -> Iterator[_Way]:
    """Those that ECMP uses: the first ones of each plane."""
    taken: Counter[str] = Counter()
    for way in ways:
        taken[way.dev] += 1
        if taken[way.dev] <= in_plane:
            yield way


@lru_cache(maxsize=1024)
def _ways(fabric: Topology, peer: int, origin: Origin) -> tuple[_Way, ...]:
    every = IPv6Network(fabric.addresses.host(peer))
    return tuple(
        _Way(
            dst=IPv6Network(path.dst),
            dev=f"p{path.plane}",
            action=EncapRed(path.segments),
            shared_dst=every,
        )
        for path in fabric.paths_to(peer, origin)
    )


def _fabric(name: str, shape: Shape) -> Iterator[Node]:
    if shape.fabric is Fabric.KERNEL:
        losses = _losses(shape)
        for plane in shape.plane_numbers():
            for node, routes in switches(shape, plane):
                yield replace(_switch(name, node, routes), rules=losses.get(node, ""))
    else:  # the kernel must leave all packets to the emulator
        sysctls = {f"net/ipv6/conf/{scope}/disable_ipv6": "1" for scope in ("all", "default")}
        yield Node(FABRIC, namespace(name, FABRIC), sysctls, routes=())


def _losses(shape: Shape) -> dict[str, str]:
    """Switch -> nftables rules that drop what its links lose."""
    return {
        node: rules(LOSSY, [condition for condition, _ in found])
        for node, found in lossy(shape).items()
    }


def _management(name: str, shape: Shape) -> Node:
    routes = (
        Route(IPv6Network(shape.addresses.oob(host)), host_name(host), via=LOWER)
        for host in shape.host_numbers()
    )
    ipv4 = (
        (host_name(host), ROUTER_IPV4, shape.addresses.oob_ipv4(host).ip)
        for host in shape.host_numbers()
    )
    node = _switch(name, MANAGEMENT, tuple(routes))
    return replace(node, sysctls=node.sysctls | _FORWARDING_IPV4, ipv4=tuple(ipv4))


def _switch(name: str, node: str, routes: tuple[Route, ...]) -> Node:
    return Node(
        name=node,
        namespace=namespace(name, node),
        sysctls=_SYSCTLS | _FORWARDING,
        routes=routes,
    )
