# SPDX-License-Identifier: Apache-2.0
"""What a test bed consists of, as data that can be printed and tested. Pure.

Each host, T0 and T1 is a network namespace, joined by veths; `mgmt` routes between the hosts'
management interfaces, as the front-end network of a cluster does. Plane P, T1 S, host H:

    mrc-NAME-hH         p1..pP, mgmt
    mrc-NAME-t0-P-H     hH down to its host, t1-S up to each T1
    mrc-NAME-t1-P-S     t0-H down to each T0
    mrc-NAME-mgmt       hH to each host

In an emulated fabric one namespace stands for all T0s and T1s, and the emulator moves packets
between its interfaces:

    mrc-NAME-fabric     hH-P to each host in each plane

A link's upper end is fe80::1 and its lower end fe80::2, so every next hop is one of the two. Both
know the other's MAC address from the start: neighbour discovery may take a second when a link comes
back, which would pass for the slowness of something else.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from ipaddress import IPv6Address, IPv6Interface, IPv6Network

from mrc import topology
from mrc.srv6 import LOCAL_TABLE, EncapRed, End, EndDT6, Route, format_usid, locator
from mrc.topology import Topology

DEFAULT_NAME = "lab"
FABRIC = "fabric"
DEFAULT_RATE = "500mbit"

MIN_MTU, MAX_MTU = 1400, 65535
MAX_RATE_BPS = 30_000_000_000  # tbf counts bytes per second in 32 bits
_NO_RATE_BPS = 1_000_000_000_000  # the emulator's links have one: 4 KiB take 33 ns

# The largest UDP_SEGMENT message with its IPv6 headers, and a header more for each of its up to
# 128 packets, as the kernel counts it: below this tbf would cut the message into packets.
_BURST_BYTES = 80 * 1024
_QUEUE_SECONDS = 0.010
_MIN_QUEUE_BYTES = 256 * 1024

_UPPER, UPPER_MAC = IPv6Address("fe80::1"), "02:00:00:00:00:01"
_LOWER, LOWER_MAC = IPv6Address("fe80::2"), "02:00:00:00:00:02"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,31}")
_RATE = re.compile(r"(\d+(?:\.\d+)?)(|k|m|g)(?:bit)?")
_RATE_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9}

# Every interface: SRv6 on, no duplicate detection, no addresses but ours. Set on "default" too,
# before the veths are made, since that is what they start from.
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
_FORWARDING = {f"net/ipv6/conf/{scope}/forwarding": "1" for scope in ("all", "default")}

# End.DT6 drops the ECN mark of the outer header: copy a CE to the inner one before it does.
_ECN_RULES = """\
table ip6 mrc
delete table ip6 mrc
table ip6 mrc {
  chain repair {
    type filter hook prerouting priority raw
    ip6 nexthdr 41 ip6 ecn ce @nh,330,2 set 3
  }
}
"""


class Fabric(StrEnum):
    """Who forwards packets between the hosts."""

    KERNEL = "kernel"
    """a namespace for each switch, in which Linux does the uSID forwarding"""
    EMULATED = "emulated"
    """one process: the simulator's switches, in real time"""


@dataclass(frozen=True, slots=True)
class Shape:
    """The parameters of a test bed. Those from delay_ns on are of an emulated fabric only."""

    hosts: int = 2
    planes: int = 4
    t1: int = 2
    """T1s per plane"""
    rate_bps: int | None = 500_000_000
    """of every link of the fabric, each way; None: as fast as the machine can"""
    mtu: int = 9000
    fabric: Fabric = Fabric.KERNEL
    delay_ns: int = 0
    """of every link of the fabric"""
    jitter_ns: int = 0
    """added to it by chance, up to this; order is kept"""
    buffer_bytes: int = 0
    """of a switch port, for data and for control; 0: 10 ms at the rate, at least 256 KiB"""
    ecn_low_bytes: int = 0
    """data is marked by chance from here on; 0: a tenth of the buffer"""
    ecn_high_bytes: int = 0
    """and always from here on; 0: four tenths of the buffer"""
    trim: bool = True
    """what finds no room loses its payload; False: it is dropped"""

    def __post_init__(self) -> None:
        Topology(self.hosts, self.planes, self.t1)
        if not MIN_MTU <= self.mtu <= MAX_MTU:
            raise ValueError(f"mtu is {self.mtu}, not in {MIN_MTU}..{MAX_MTU}")
        if self.rate_bps is not None and not 1000 <= self.rate_bps <= MAX_RATE_BPS:
            raise ValueError(f"rate is {self.rate_bps} bit/s, not in 1kbit..30gbit (or none)")
        object.__setattr__(self, "fabric", Fabric(self.fabric))
        times = (self.delay_ns, self.jitter_ns)
        sizes = (self.buffer_bytes, self.ecn_low_bytes, self.ecn_high_bytes)
        if self.fabric is Fabric.KERNEL and (any((*times, *sizes)) or not self.trim):
            raise ValueError("delay, jitter, buffer, ECN and trimming are of an emulated fabric")

    @property
    def topology(self) -> Topology:
        return Topology(self.hosts, self.planes, self.t1)


@dataclass(frozen=True, slots=True)
class Shaper:
    """A token bucket on what leaves an interface."""

    rate_bps: int
    burst_bytes: int
    limit_bytes: int
    """the longest queue, the burst included"""


@dataclass(frozen=True, slots=True)
class Link:
    """A veth between two nodes, named from below; both ends have the same MTU."""

    lower: str
    lower_name: str
    upper: str
    upper_name: str
    mtu: int
    shaper: Shaper | None
    is_emulated: bool = False
    """the upper end is the emulator's: without a shaper, and given packets one by one"""


@dataclass(frozen=True, slots=True)
class Node:
    """One namespace and what is in it."""

    name: str
    namespace: str
    sysctls: dict[str, str]
    """path under /proc/sys -> value"""
    routes: tuple[Route, ...]
    addresses: tuple[tuple[str, IPv6Interface], ...] = ()
    """interface, address"""
    neighbours: tuple[tuple[str, IPv6Address, str], ...] = ()
    """interface, address, MAC address"""
    rules: str = ""
    """nftables rules"""


@dataclass(frozen=True, slots=True)
class Plan:
    name: str
    shape: Shape
    nodes: dict[str, Node]
    links: tuple[Link, ...]
    hosts_file: str
    """/etc/hosts inside the hosts"""
    configs: dict[str, str]
    """host -> its configuration file"""


def make_plan(name: str, shape: Shape) -> Plan:
    """Work out the whole test bed."""
    if not _NAME.fullmatch(name):
        raise ValueError(f"name {name!r} is not 1 to 32 letters, digits, '-' or '_'")
    links = tuple(_links(shape))
    nodes = [
        *(_host(name, shape.topology, host) for host in range(shape.hosts)),
        *_fabric(name, shape),
        _management(name, shape),
    ]
    return Plan(
        name=name,
        shape=shape,
        nodes={
            node.name: node if node.name == FABRIC else _on_links(node, links) for node in nodes
        },
        links=links,
        hosts_file=_hosts_file(shape),
        configs={f"h{host}": _config(shape, host) for host in range(shape.hosts)},
    )


def parse_rate(text: str) -> int | None:
    """A rate as tc(8) writes it: `500mbit`, `10gbit`, plain bit/s; `none` for no limit."""
    if text == "none":
        return None
    match = _RATE.fullmatch(text.lower())
    if match is None:
        raise ValueError(f"rate {text!r} is not like 500mbit, 10gbit or none")
    return round(float(match[1]) * _RATE_UNITS[match[2]])


def namespace(name: str, node: str) -> str:
    return f"mrc-{name}-{node}"


def is_namespace_of(name: str, candidate: str) -> bool:
    """Whether a namespace belongs to the test bed of this name, and not to `NAME-more`."""
    node = r"(h\d+|t[01]-\d+-\d+|mgmt|fabric)"
    return re.fullmatch(re.escape(namespace(name, "")) + node, candidate) is not None


def t0_name(plane: int, host: int) -> str:
    return f"t0-{plane}-{host}"


def t1_name(plane: int, number: int) -> str:
    return f"t1-{plane}-{number}"


def interface_name(host: int, plane: int) -> str:
    """The emulator's end of a host's link."""
    return f"h{host}-{plane}"


def shaper(rate_bps: int) -> Shaper:
    """A queue of about 10 ms behind a bucket that lets any one message pass whole."""
    return Shaper(rate_bps, _BURST_BYTES, _BURST_BYTES + _queue_bytes(rate_bps))


def _port_shaper(shape: Shape) -> Shaper | None:
    """Of a host before an emulated fabric. Only a queue of the host's own can hold its sockets
    back, and it counts some bytes less a packet than the emulator: 1% keeps the two apart.
    """
    return None if shape.rate_bps is None else shaper(shape.rate_bps * 99 // 100)


def emulator_config(shape: Shape) -> dict[str, int]:
    """The fields of `struct mrc_emu_config`."""
    rate_bps = shape.rate_bps or _NO_RATE_BPS
    buffer_bytes = shape.buffer_bytes or _queue_bytes(rate_bps)
    return {
        "seed": 1,
        "hosts": shape.hosts,
        "planes": shape.planes,
        "t1": shape.t1,
        "mtu": shape.mtu,
        "rate_bps": rate_bps,
        "delay_ns": shape.delay_ns,
        "jitter_ns": shape.jitter_ns,
        "buffer_bytes": buffer_bytes,
        "ecn_low_bytes": shape.ecn_low_bytes or buffer_bytes // 10,
        "ecn_high_bytes": shape.ecn_high_bytes or buffer_bytes * 4 // 10,
        "trims": int(shape.trim),
    }


def _queue_bytes(rate_bps: int) -> int:
    return max(round(rate_bps / 8 * _QUEUE_SECONDS), _MIN_QUEUE_BYTES)


def _links(shape: Shape) -> Iterator[Link]:
    fabric = (shape.mtu, None if shape.rate_bps is None else shaper(shape.rate_bps))
    for host in range(shape.hosts):
        yield Link(f"h{host}", "mgmt", "mgmt", f"h{host}", 1500, None)
        for plane in shape.topology.plane_numbers():
            if shape.fabric is Fabric.EMULATED:
                fabric = (shape.mtu, _port_shaper(shape))
                upper = (FABRIC, interface_name(host, plane))
                yield Link(f"h{host}", f"p{plane}", *upper, *fabric, is_emulated=True)
                continue
            below = t0_name(plane, host)
            yield Link(f"h{host}", f"p{plane}", below, f"h{host}", *fabric)
            for number in range(shape.t1):
                yield Link(below, f"t1-{number}", t1_name(plane, number), f"t0-{host}", *fabric)


def _on_links(node: Node, links: tuple[Link, ...]) -> Node:
    """The node with an address and a neighbour on each of its links."""
    lower = [link.lower_name for link in links if link.lower == node.name]
    upper = [link.upper_name for link in links if link.upper == node.name]
    return replace(
        node,
        addresses=(
            *node.addresses,
            *((name, IPv6Interface((_LOWER, 64))) for name in lower),
            *((name, IPv6Interface((_UPPER, 64))) for name in upper),
        ),
        neighbours=(
            *((name, _UPPER, UPPER_MAC) for name in lower),
            *((name, _LOWER, LOWER_MAC) for name in upper),
        ),
    )


def _host(name: str, fabric: Topology, host: int) -> Node:
    """Ends its carriers, owns its prefix, and has a route for every path to every peer."""
    routes = [
        Route(topology.host_prefix(host), "lo", local=True),
        Route(topology.MANAGEMENT, "mgmt", via=_UPPER),
    ]
    for plane in fabric.plane_numbers():
        block = topology.block(plane)
        routes.append(Route(block, f"p{plane}", via=_UPPER))
        ours = locator(block, topology.HOST_USID)
        routes.append(Route(ours, f"p{plane}", action=EndDT6(LOCAL_TABLE)))
    own = topology.host_address(host)
    for peer in fabric.host_numbers():
        if peer != host:
            routes += [
                Route(
                    IPv6Network(path.dst),
                    f"p{path.plane}",
                    via=_UPPER,
                    src=own,
                    action=EncapRed(path.segments),
                )
                for path in fabric.paths(peer)
            ]
    return Node(
        name=f"h{host}",
        namespace=namespace(name, f"h{host}"),
        sysctls=_SYSCTLS,
        addresses=(
            ("lo", IPv6Interface(own)),
            ("mgmt", IPv6Interface(topology.oob_address(host))),
        ),
        routes=tuple(routes),
        rules=_ECN_RULES,
    )


def _fabric(name: str, shape: Shape) -> Iterator[Node]:
    if shape.fabric is Fabric.KERNEL:
        for plane in shape.topology.plane_numbers():
            yield from _switches(name, shape, plane)
    else:  # the kernel there is to leave all packets to the emulator
        sysctls = {f"net/ipv6/conf/{scope}/disable_ipv6": "1" for scope in ("all", "default")}
        yield Node(FABRIC, namespace(name, FABRIC), sysctls, routes=())


def _switches(name: str, shape: Shape, plane: int) -> Iterator[Node]:
    """The T0s and T1s of a plane: one static route per uSID.

    A route that shifts needs some interface to hang on. It is the host's for a T0 and the first
    one for a T1: without these the switch has no work, or is down as a whole.
    """
    block = topology.block(plane)
    up = [
        Route(locator(block, topology.t1_usid(number)), f"t1-{number}", via=_UPPER)
        for number in range(shape.t1)
    ]
    for host in range(shape.hosts):
        own = Route(locator(block, topology.t0_usid(host)), f"h{host}", action=End())
        down = Route(locator(block, topology.HOST_USID), f"h{host}", via=_LOWER)
        yield _switch(name, t0_name(plane, host), (own, down, *up))
    below = [
        Route(locator(block, topology.t0_usid(host)), f"t0-{host}", via=_LOWER)
        for host in range(shape.hosts)
    ]
    for number in range(shape.t1):
        own = Route(locator(block, topology.t1_usid(number)), "t0-0", action=End())
        yield _switch(name, t1_name(plane, number), (own, *below))


def _management(name: str, shape: Shape) -> Node:
    routes = (
        Route(IPv6Network(topology.oob_address(host)), f"h{host}", via=_LOWER)
        for host in range(shape.hosts)
    )
    return _switch(name, "mgmt", tuple(routes))


def _switch(name: str, node: str, routes: tuple[Route, ...]) -> Node:
    return Node(
        name=node,
        namespace=namespace(name, node),
        sysctls=_SYSCTLS | _FORWARDING,
        routes=routes,
    )


def _hosts_file(shape: Shape) -> str:
    lines = ["127.0.0.1 localhost", "::1 localhost"]
    lines += [f"{topology.oob_address(host)} h{host}" for host in range(shape.hosts)]
    return "\n".join(lines) + "\n"


def _config(shape: Shape, host: int) -> str:
    """The host's configuration file: its ports, its peers and the paths to them."""
    lines = ["schema = 1", f'host = "h{host}"', 'source = "srv6"']
    for plane in shape.topology.plane_numbers():
        lines += [
            "",
            "[[ports]]",
            f'ifname = "p{plane}"',
            f'address = "{topology.host_address(host)}"',
            f"mtu = {shape.mtu}",
        ]
    for peer in shape.topology.host_numbers():
        if peer != host:
            lines += _config_of_peer(shape, peer)
    return "\n".join(lines) + "\n"


def _config_of_peer(shape: Shape, peer: int) -> list[str]:
    lines = [
        "",
        f"[peers.h{peer}]",
        f'oob = "{topology.oob_address(peer)}"',
        f'sources = ["{topology.host_address(peer)}"]',
    ]
    for path in shape.topology.paths(peer):
        segments = ", ".join(f'"{segment}"' for segment in path.segments)
        usids = ", ".join(f'"{format_usid(usid)}"' for usid in path.usids)
        lines += [
            "",
            f"[[peers.h{peer}.paths]]",
            f"plane = {path.plane}",
            f'name = "{path.name}"',
            f'dst = "{path.dst}"',
            f"segments = [{segments}]",
            f"usids = [{usids}]",
        ]
    return lines
