# SPDX-License-Identifier: Apache-2.0
"""The parts of a test bed, as data that can be printed and tested. Pure.

Each host and switch is a network namespace, joined by veths. `mgmt` routes between the hosts'
management interfaces, like the front-end network of a cluster. In an emulated fabric one namespace
stands for all switches, and the emulator moves packets between its interfaces.
`mrc.testbed.shape` has the names of all nodes.

A link's upper end is fe80::1 and its lower end fe80::2, so every next hop is one of the two. Both
ends have a permanent neighbour entry for the other. Neighbour discovery may take a second when a
link returns, which would look like slowness of mrc.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from ipaddress import IPv4Address, IPv4Interface, IPv6Address, IPv6Interface, IPv6Network
from typing import Any, ClassVar, Self

from msgspec import Struct
from msgspec.structs import replace

from mrc.testbed.faults import (
    LOSSY,
    Hop,
    all_hops_of,
    drop_rules,
    lossy,
)
from mrc.testbed.routes import Route, Srv6Action
from mrc.testbed.shape import (
    FABRIC,
    MANAGEMENT,
    NO_RATE_BPS,
    LinkProperties,
    Shape,
    check_name,
    host_name,
    interface_name,
    namespace_of,
    part_name,
    t0_name,
    t1_name,
    t2_name,
    usual_queue_bytes,
)
from mrc.testbed.topology import Topology

# The kernel's size of the largest UDP_SEGMENT message: its data with IPv6 headers for each of up to
# 128 packets. A tbf with a smaller burst would cut the message into packets.
BURST_BYTES = 80 * 1024
_NO_LIMIT_BYTES = 1 << 30
_MAX_LIMIT_BYTES = (1 << 32) - 1  # of a tbf

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
_FORWARDING = {f"net/ipv6/conf/{scope}/forwarding": "1" for scope in ("all", "default")}


class Shaper(Struct, frozen=True):
    """A token bucket for the packets that an interface sends."""

    rate_bps: int
    burst_bytes: int
    limit_bytes: int
    """the longest queue, including the burst"""


class Egress(Struct, frozen=True):
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


class BedLink(Struct, frozen=True):
    """A veth between a lower and an upper node. Both ends receive packets of its MTU."""

    UPPER_MAC: ClassVar = "02:00:00:00:00:01"
    LOWER_MAC: ClassVar = "02:00:00:00:00:02"
    UPPER: ClassVar = IPv6Address("fe80::1")
    LOWER: ClassVar = IPv6Address("fe80::2")
    """the addresses of its ends"""

    lower: str
    lower_name: str
    upper: str
    upper_name: str
    mtu: int
    up: Egress = Egress()
    down: Egress = Egress()
    is_emulated: bool = False
    """the emulator reads the upper end: it has no shaper and receives packets one by one"""
    lower_mac: str = LOWER_MAC
    tunnel: Tunnel | None = None
    """to the end that another machine has; None: both are here"""

    def through(self, end: int, vni: int, remote: IPv4Address | IPv6Address, port: int) -> BedLink:
        """The link by a tunnel to another machine; see Tunnel."""
        return replace(self, tunnel=Tunnel(end, vni, remote, port))

    @property
    def ends(self) -> tuple[tuple[str, str, Egress], ...]:
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

    @property
    def part(self) -> str:
        """Its name on the command line."""
        return part_name(self.name)

    def on_links(self, links: tuple[BedLink, ...]) -> Self:
        """With an address and a neighbour on each of its links."""
        lower = [link.lower_name for link in links if link.lower == self.name and link.is_here(0)]
        upper = [link.upper_name for link in links if link.upper == self.name and link.is_here(1)]
        return replace(
            self,
            addresses=(
                *self.addresses,
                *((name, IPv6Interface((BedLink.LOWER, 64))) for name in lower),
                *((name, IPv6Interface((BedLink.UPPER, 64))) for name in upper),
            ),
            neighbours=(
                *self.neighbours,
                *((name, BedLink.UPPER, BedLink.UPPER_MAC) for name in lower),
                *((name, BedLink.LOWER, BedLink.LOWER_MAC) for name in upper),
            ),
        )


class BedPlan(Struct, frozen=True):
    ROUTER_IPV4: ClassVar = IPv4Interface("100.127.255.254/32")  # of `mgmt`

    name: str
    shape: Shape
    nodes: dict[str, Node]
    links: tuple[BedLink, ...]
    hosts_file: str
    """/etc/hosts inside the hosts"""
    configs: dict[str, str]
    """host -> its configuration file"""


class Census(Struct, frozen=True):
    """How many of each a test bed takes."""

    namespaces: int
    """Network namespaces."""
    links: int
    """Links (veth pairs)."""
    routes: int
    """Routes in the kernel."""
    paths: int
    """Paths from any host to any other."""


class MachineShare(Struct, frozen=True, kw_only=True):
    """What a machine has of a test bed over several."""

    name: str
    """Its name in `--on`."""
    address: str | None
    """Where the other machines reach it; null: it was not looked up."""
    hosts: tuple[str, ...]
    """Its hosts."""
    switches: tuple[str, ...]
    """Its T0s and T1s."""
    tunnels: int
    """Its links to switches on other machines, over VXLAN."""
    lost: str | None
    """Why it does not answer; null: it does."""


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
    if shape.is_emulated:
        return Census(shape.hosts + 2, links, routes, paths)
    inner = shape.t0 * shape.t1s_per_pod + shape.pods * shape.t2
    shifts = shape.t1 + shape.t2
    return Census(
        namespaces=shape.hosts + 1 + shape.planes * (shape.t0 + shifts),
        links=links + shape.planes * inner,
        routes=routes + shape.planes * (2 * shape.hosts + 2 * inner + shifts),
        paths=paths,
    )


def _count(plan: BedPlan) -> Census:
    hosts = plan.shape.host_numbers()
    return Census(
        namespaces=len(plan.nodes),
        links=len(plan.links),
        routes=sum(len(node.routes) for node in plan.nodes.values()),
        paths=sum(len(plan.shape.present(a, b)) for a in hosts for b in hosts if a != b),
    )


def make_plan(name: str, shape: Shape) -> BedPlan:
    """Makes the plan of a whole test bed. Raises ArgumentError for an invalid name."""
    check_name(name)
    links = tuple(_links(shape))
    mtus: dict[int, dict[int, int]] = {host: {} for host in shape.host_numbers()}
    for link, (up, _) in shape.link_properties().items():
        if link.host is not None:
            mtus[link.host][link.plane] = up.mtu
    nodes = [
        *(_host_node(name, shape, host) for host in shape.host_numbers()),
        *_fabric(name, shape),
        _management(name, shape),
    ]
    return BedPlan(
        name=name,
        shape=shape,
        nodes={node.name: node if node.name == FABRIC else node.on_links(links) for node in nodes},
        links=links,
        hosts_file=hosts_file(shape),
        configs={host_name(host): host_config(shape, host, mtus[host]) for host in mtus},
    )


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
    same = ("hosts", "planes", "t0", "t1", "pods", "t2", "jitter_ns")
    delays = ("host_delay_ns", "fabric_delay_ns", "core_delay_ns")
    rates = ("host_rate_bps", "fabric_rate_bps", "core_rate_bps")
    config = {
        "seed": 1,
        "topology": {
            **{key: getattr(shape, key) for key in (*same, *delays)},
            **{key: getattr(shape, key) or NO_RATE_BPS for key in rates},
            **shape.port_queue(),
            "trims": int(shape.trim),
        },
        "block": int(shape.addresses.block.network_address) >> 112,
        "mtu": shape.mtu,
    }
    usual, whole = Hop.every(replace(shape, links=())), replace(shape, absent=(), links=())
    return {
        "config": config,
        "links": [  # rates, delays, parts per million lost, MTUs
            [hop, its.rate_bps or NO_RATE_BPS, its.delay_ns, round(its.loss * 1e6), its.mtu]
            for hop, its in Hop.every(shape).items()
            if its != usual[hop]
        ],
        "absent": [hop for name in shape.absent for hop in all_hops_of(whole.target(name), whole)],
    }


def _links(shape: Shape) -> Iterator[BedLink]:
    for host in shape.host_numbers():
        yield BedLink(host_name(host), "mgmt", MANAGEMENT, host_name(host), 1500)
    for link, (up, down) in shape.link_properties().items():
        lower, upper = (hop.port for hop in Hop.both_ways(link, shape))
        if not shape.is_emulated:
            yield BedLink(*lower, *upper, shape.mtu, _egress(up, shape), _egress(down, shape))
        elif link.host is not None:
            # The host has a shaper, because only its own queue can slow down its sockets. The
            # shaper counts fewer bytes a packet than the emulator. With 1% less rate, the packets
            # queue at the host and not in the emulator.
            queue = None if up.rate_bps is None else shaper(up.rate_bps * 99 // 100)
            upper = (FABRIC, interface_name(link.host, link.plane))
            sending = Egress(queue, mtu=_own_mtu(up, shape))
            yield BedLink(*lower, *upper, shape.mtu, sending, is_emulated=True)


def _egress(properties: LinkProperties, shape: Shape) -> Egress:
    rate_bps = properties.rate_bps
    queue = None if rate_bps is None else shaper(rate_bps, shape.buffer_bytes)
    return Egress(queue, properties.delay_ns, _own_mtu(properties, shape))


def _own_mtu(properties: LinkProperties, shape: Shape) -> int | None:
    return None if properties.mtu == shape.mtu else properties.mtu


def _host_node(name: str, fabric: Topology, host: int) -> Node:
    """A host: it ends carriers, owns its prefix, and has a route for every path to every peer.

    Programs that select a path by address have an address in each plane, whose packets stay there
    both ways, and one on all planes.
    """
    addresses = fabric.addresses
    routes = [
        Route(addresses.host_prefix(host), "lo", local=True),
        Route(addresses.management, "mgmt", via=BedLink.UPPER),
    ]
    for plane in fabric.planes_of(host):
        routes.append(Route(addresses.locator_block(plane), f"p{plane}", via=BedLink.UPPER))
        ours = addresses.locator(plane, fabric.host_usid(host))
        routes.append(Route(ours, f"p{plane}", action=Srv6Action("End.DT6")))
    own = addresses.host(host)
    planes = {f"p{plane}": addresses.in_plane(host, plane) for plane in fabric.planes_of(host)}
    for peer in fabric.host_numbers():
        if peer != host:
            every = _ways(fabric, peer, fabric.origin(host, peer))
            ways = [every[number] for number in fabric.present(host, peer)]
            routes += [
                Route(way.dst, way.dev, BedLink.UPPER, planes[way.dev], way.action) for way in ways
            ]
            most, taken = _shared_in_plane(fabric, len(ways)), Counter[str]()
            for way in ways:  # ECMP uses the first ones of each plane
                taken[way.dev] += 1
                if taken[way.dev] <= most:
                    shared = (way.shared_dst, way.dev, BedLink.UPPER, own, way.action)
                    routes.append(Route(*shared, shared=True))
    return Node(
        name=host_name(host),
        namespace=namespace_of(name, host_name(host)),
        sysctls=_SYSCTLS | _ECMP,
        addresses=(
            ("lo", IPv6Interface(own)),
            *((name, IPv6Interface(address)) for name, address in planes.items()),
            ("mgmt", IPv6Interface(addresses.oob(host))),
        ),
        ipv4=(("mgmt", addresses.oob_ipv4(host), None),),
        neighbours=tuple(  # the kernel takes them to be on the link; the management forwards
            ("mgmt", addresses.oob_ipv4(peer).ip, BedLink.UPPER_MAC)
            for peer in fabric.host_numbers()
            if peer != host
        ),
        routes=tuple(routes),
        rules=ECN,
        reassembly=REASSEMBLY,
        tunnel_source=own,
    )


def _shared_in_plane(fabric: Topology, paths: int) -> int:
    """How many of a plane's paths to a peer ECMP uses."""
    return min(paths, max(1, _MAX_SHARED // fabric.planes))


class _Way(Struct, frozen=True):
    """What the routes of all hosts over a path have in common."""

    dst: IPv6Network
    dev: str
    action: Srv6Action
    shared_dst: IPv6Network
    """the peer's address on all planes"""


@lru_cache(maxsize=1024)
def _ways(fabric: Topology, peer: int, origin: int | None) -> tuple[_Way, ...]:
    every = IPv6Network(fabric.addresses.host(peer))
    return tuple(
        _Way(
            dst=IPv6Network(path.dst),
            dev=f"p{path.plane}",
            action=Srv6Action("encap.red", path.segments),
            shared_dst=every,
        )
        for path in fabric.paths_to(peer, origin)
    )


def _fabric(name: str, shape: Shape) -> Iterator[Node]:
    if not shape.is_emulated:
        losses = {  # what drops the packets that links of a switch lose
            node: drop_rules(LOSSY, [condition for condition, _ in found])
            for node, found in lossy(shape).items()
        }
        for plane in shape.plane_numbers():
            for node, routes in switches(shape, plane):
                yield replace(_switch_node(name, node, routes), rules=losses.get(node, ""))
    else:  # the kernel must leave all packets to the emulator
        sysctls = {f"net/ipv6/conf/{scope}/disable_ipv6": "1" for scope in ("all", "default")}
        yield Node(FABRIC, namespace_of(name, FABRIC), sysctls, routes=())


def _management(name: str, shape: Shape) -> Node:
    routes = (
        Route(IPv6Network(shape.addresses.oob(host)), host_name(host), via=BedLink.LOWER)
        for host in shape.host_numbers()
    )
    ipv4 = (
        (host_name(host), BedPlan.ROUTER_IPV4, shape.addresses.oob_ipv4(host).ip)
        for host in shape.host_numbers()
    )
    node = _switch_node(name, MANAGEMENT, tuple(routes))
    return replace(node, sysctls=node.sysctls | _FORWARDING_IPV4, ipv4=tuple(ipv4))


def _switch_node(name: str, node: str, routes: tuple[Route, ...]) -> Node:
    return Node(
        name=node,
        namespace=namespace_of(name, node),
        sysctls=_SYSCTLS | _FORWARDING,
        routes=routes,
    )


# ---- Routes of switches --------------------------------------------------------------------------


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
            (fabric.usid("t0", t0), f"t0-{t0}", BedLink.LOWER)
            for t0 in fabric.t0s_below(t1)
            if fabric.has_uplink(plane, t0, t1)
        ] + [
            (fabric.usid("t2", t2), f"t2-{t2}", BedLink.UPPER)
            for t2 in fabric.t2s_above(t1)
            if fabric.has_core_link(plane, t1, t2)
        ]
        if links:
            own = fabric.usid("t1", t1)
            yield t1_name(plane, t1), _routes_of_upper(fabric, plane, own, links)
    for t2 in fabric.t2_numbers():
        links = [
            (fabric.usid("t1", t1), f"t1-{t1}", BedLink.LOWER)
            for t1 in fabric.t1s_below(t2)
            if fabric.has_core_link(plane, t1, t2)
        ]
        if links:
            own = fabric.usid("t2", t2)
            yield t2_name(plane, t2), _routes_of_upper(fabric, plane, own, links)


def _routes_of_t0(fabric: Topology, plane: int, t0: int) -> list[Route]:
    locator = partial(fabric.addresses.locator, plane)
    own = locator(fabric.usid("t0", t0))
    routes = []
    for place, host in enumerate(fabric.hosts_below(t0)):
        if not fabric.has_link(host, plane):
            continue
        shift = Route(own, host_name(host), action=Srv6Action("End"))
        routes.append(dataclasses.replace(shift, metric=shift.metric + place))
        routes.append(Route(locator(fabric.host_usid(host)), host_name(host), via=BedLink.LOWER))
    return routes + [
        Route(locator(fabric.usid("t1", t1)), f"t1-{t1}", via=BedLink.UPPER)
        for t1 in fabric.t1s_above(t0)
        if fabric.has_uplink(plane, t0, t1)
    ]


def _routes_of_upper(
    fabric: Topology, plane: int, own: int, links: Sequence[tuple[int, str, IPv6Address]]
) -> tuple[Route, ...]:
    """Those of a T1 or T2 from its uSID, and the uSID, interface and address of each neighbour."""
    locator = partial(fabric.addresses.locator, plane)
    shift = Route(locator(own), links[0][1], action=Srv6Action("End"))
    return (shift, *(Route(locator(usid), dev, via=via) for usid, dev, via in links))


# ---- Files of hosts ------------------------------------------------------------------------------


def hosts_file(shape: Shape) -> str:
    """/etc/hosts inside the hosts: names on all planes, in each plane and on the management.

    The planes are IPv6. Programs that know only IPv4 reach `h1` over the management, as in a
    cluster: perftest, for example, which only exchanges its parameters there.
    """
    addresses, lines = shape.addresses, ["127.0.0.1 localhost", "::1 localhost"]
    for host in shape.host_numbers():
        lines.append(f"{addresses.host(host)} h{host} h{host}.any")
        lines += [
            f"{address} h{host}.p{plane}"
            for plane, address in zip(
                shape.planes_of(host), shape.plane_addresses(host), strict=True
            )
        ]
        lines.append(f"{addresses.oob(host)} h{host}.mgmt")
        lines.append(f"{addresses.oob_ipv4(host).ip} h{host}.mgmt h{host}")
    return "\n".join(lines) + "\n"


def host_config(shape: Shape, host: int, mtus: Mapping[int, int]) -> str:
    """The host's configuration file: its ports, its peers and the paths to them. `mtus`: plane ->
    MTU of the port there.
    """
    lines = ["schema = 1", f'host = "h{host}"', 'source = "srv6"', 'security = "none"']
    for plane, mtu in mtus.items():
        lines += ["", "[[ports]]", f'ifname = "p{plane}"']
        lines += [f'address = "{shape.addresses.host(host)}"', f"mtu = {mtu}", f"plane = {plane}"]
    real = shape.outside.hosts
    alone = {int(each.host.removeprefix("h")) for each in real if each.management is None}
    for peer in shape.host_numbers():
        present = shape.present(host, peer) if peer != host else ()
        if present:
            by_planes = bool({host, peer} & alone)
            head, paths = _texts_of_peer(shape, peer, shape.origin(host, peer), by_planes)
            lines += [head, *(paths[number] for number in present)]
    return "\n".join(lines) + "\n"


@lru_cache(maxsize=1024)
def _texts_of_peer(
    shape: Shape, peer: int, origin: int | None, by_planes: bool
) -> tuple[str, list[str]]:
    """The text of a peer, and of each path to it. `by_planes`: one of the two has no management
    network.
    """
    own = shape.addresses.host(peer)
    oob = own if by_planes else shape.addresses.oob(peer)
    return f'\n[peers.h{peer}]\noob = "{oob}"\nsources = ["{own}"]', [
        f'\n[[peers.h{peer}.paths]]\nplane = {path.plane}\nname = "{path.name}"\n'
        f'dst = "{path.dst}"\nsegments = [{_quoted(path.segments)}]\n'
        f"usids = [{_quoted(path.usid_words)}]"
        for path in shape.paths_to(peer, origin)
    ]


def _quoted(words: Iterable[object]) -> str:
    return ", ".join(f'"{word}"' for word in words)


# ---- Rules of hosts ------------------------------------------------------------------------------


ECN = """\
table ip6 mrc
delete table ip6 mrc
table ip6 mrc {
  chain repair {
    type filter hook prerouting priority raw
    ip6 nexthdr 41 ip6 ecn ce @nh,330,2 set 3
  }
}
"""
"""End.DT6 discards the ECN mark of the outer header, so this rule first copies CE to the inner
one.
"""

REASSEMBLY = """\
table ip6 mrc_reassembly
delete table ip6 mrc_reassembly
table ip6 mrc_reassembly {
  chain unused {
    meta l4proto udp tproxy to :1
  }
}
"""
"""Linux encapsulates a datagram before it fragments it, and End.DT6 drops fragments. The kernel
reassembles fragments before it routes them while some rule needs whole packets. No packet meets
this rule, because nothing leads to its chain: unlike a rule with `ct`, it tracks no connection and
leaves NAT alone.
"""
