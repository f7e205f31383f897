# SPDX-License-Identifier: Apache-2.0
"""Wirings: two hosts with one to four interfaces each, drawn from a seed or made by hand.

    a  e0 ---- switch ---- e0  b        segments are switches (bridges of one namespace) or cables;
       e1 ---- switch ---- e1           a router joins the routed ones; an overlay is a VXLAN over
       e2 ---- cable ----- e2           two interfaces; a firewall drops between two of them

A wiring is data, in one line of text. `built` makes it, with the defaults of the kernel. `Reach`
is what plain UDP sockets reach in it, tried with packets, and how much that can carry at most.
"""

from __future__ import annotations

import errno
import random
import selectors
import socket
import subprocess
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, product
from pathlib import Path
from typing import Literal

from netns.conftest import fresh_name
from netns.plain import namespaces
from slowness import SLOWNESS

from mrc.linux import netns

Pair = tuple[str, str]
"""an interface of a and one of b"""

HOSTS = ("a", "b")
OVERLAY = "vx"
_OVERLAY_BYTES = 70
"""of a VXLAN over IPv6: Ethernet, IP, UDP and its own header"""


@dataclass(frozen=True)
class Segment:
    """One switch, or a cable without any."""

    versions: tuple[int, ...] = (4,)
    """Versions of IP that have addresses here."""
    mtu: int = 1500
    """In bytes, of all its interfaces."""
    routed: bool = False
    """Whether the router has a port here, by which hosts reach the other routed segments."""
    cable: bool = False
    """Whether it joins one interface of each host without a switch."""

    def __str__(self) -> str:
        kind = "cable" if self.cable else "routed" if self.routed else "switch"
        return f"{kind} v{'+'.join(map(str, self.versions))} mtu {self.mtu}"


@dataclass(frozen=True)
class Link:
    """What an interface of a host is plugged into. Its name is e and its place among the links."""

    segment: int
    mbit: int = 50
    """Rate in each direction, in Mbit/s."""

    def __str__(self) -> str:
        return f"{self.segment}@{self.mbit}M"


@dataclass(frozen=True)
class Firewall:
    """Host b drops what comes from an interface of a to one of its own."""

    between: Pair
    drops: Literal["udp", "all"] = "udp"

    def __str__(self) -> str:
        return f"{'-'.join(self.between)} {self.drops}"


@dataclass(frozen=True)
class Wiring:
    """Two hosts and all between them."""

    segments: tuple[Segment, ...]
    a: tuple[Link, ...]
    b: tuple[Link, ...]
    overlay: Pair | None = None
    firewalls: tuple[Firewall, ...] = ()
    rp_filter: int = 0
    """Of both hosts: the kernel's default is 0, many distributions have 2, some 1."""

    def __str__(self) -> str:
        parts = [
            f"a {' '.join(map(str, self.a))}",
            f"b {' '.join(map(str, self.b))}",
            *(f"{number}: {each}" for number, each in enumerate(self.segments)),
        ]
        if self.overlay:
            parts.append(f"vxlan over {'-'.join(self.overlay)}")
        parts += [f"drop {each}" for each in self.firewalls]
        return ", ".join([*parts, f"rp_filter {self.rp_filter}"])

    @classmethod
    def drawn(cls, seed: int) -> Wiring:
        """The wiring of a seed."""
        rng = random.Random(seed)
        counts = [rng.choice((1, 1, 2, 2, 2, 3, 4)) for _ in HOSTS]
        segments, hosts = [], ([], [])  # type: tuple[list[Segment], tuple[list[Link], list[Link]]]
        for _ in range(rng.choice((0, 0, 0, 1, 1, 2))):
            if min(counts) > 0:
                mbit = rng.choice(_MBIT)
                for host in (0, 1):
                    hosts[host].append(Link(len(segments), mbit))
                    counts[host] -= 1
                segments.append(Segment(_versions(rng), _mtu(rng), cable=True))
        first = len(segments)
        if any(counts):
            has_router = rng.random() < 0.7
            segments += [
                Segment(_versions(rng), _mtu(rng), has_router and rng.random() < 0.9)
                for _ in range(rng.choice((1, 1, 2, 2, 3, 4)))
            ]
        for links, count in zip(hosts, counts, strict=True):
            links += [
                Link(rng.randrange(first, len(segments)), rng.choice(_MBIT)) for _ in range(count)
            ]
            rng.shuffle(links)
        a, b = (tuple(links) for links in hosts)
        wiring = cls(tuple(segments), a, b, rp_filter=rng.choice((0, 0, 0, 2, 1)))
        return wiring._with_more(rng)

    def _with_more(self, rng: random.Random) -> Wiring:
        """With firewalls and an overlay, perhaps."""
        pairs = list(product(self.names("a"), self.names("b")))
        firewalls = tuple(
            Firewall(pair, rng.choice(("udp", "all")))
            for pair in pairs
            if rng.random() < 0.3
        ) if rng.random() < 0.3 else ()  # fmt: skip
        alone = [pair for pair in pairs if self._carries_overlay(pair)]
        overlay = rng.choice(alone) if alone and rng.random() < 0.3 else None
        return Wiring(self.segments, self.a, self.b, overlay, firewalls, self.rp_filter)

    def _carries_overlay(self, pair: Pair) -> bool:
        """Whether each of them is its host's only interface in its segment: else the packets of
        the overlay could take another.
        """
        links = [self.links(host)[int(name[1:])] for host, name in zip(HOSTS, pair, strict=True)]
        near, far = (self.segments[link.segment] for link in links)
        joined = near is far or (near.routed and far.routed)
        both = set(near.versions) & set(far.versions)
        return joined and bool(both) and min(near.mtu, far.mtu) >= 1280 + _OVERLAY_BYTES and all(
            [each.segment for each in self.links(host)].count(link.segment) == 1
            for host, link in zip(HOSTS, links, strict=True)
        )  # fmt: skip

    def links(self, host: str) -> tuple[Link, ...]:
        return self.a if host == "a" else self.b

    def names(self, host: str) -> list[str]:
        """Its interfaces, without the overlay."""
        return [f"e{number}" for number in range(len(self.links(host)))]

    def addresses(self, host: str) -> dict[str, list[str]]:
        """Those of each interface, with the overlay. Addresses of one segment are in one subnet."""
        found = {}
        offset = 1 + 100 * HOSTS.index(host)
        for number, link in enumerate(self.links(host)):
            segment = self.segments[link.segment]
            own = offset + number
            found[f"e{number}"] = [_address(v, link.segment, own) for v in segment.versions]
        if self.overlay:
            found[OVERLAY] = [_address(4, _OVERLAY_NET, offset)]
        return found

    def mtu(self, pair: Pair) -> int:
        """The largest IP packet that passes between two interfaces."""
        if OVERLAY in pair:
            assert self.overlay
            return self.mtu(self.overlay) - _OVERLAY_BYTES
        a, b = (int(name[1:]) for name in pair)
        return min(self.segments[link.segment].mtu for link in (self.a[a], self.b[b]))

    def most(self, pairs: Iterable[Pair], without: tuple[str, str] = ("", "")) -> int:
        """The Mbit/s that these pairs can carry together from a to b: what an overlay carries
        passes its links too. `without` is a host and an interface that is down.
        """
        residual: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
        for host in HOSTS:
            for number, link in enumerate(self.links(host)):
                end = f"{host} e{number}"
                rate = 0 if without == (host, f"e{number}") else link.mbit
                near, far = ("source", end) if host == "a" else (end, "sink")
                residual[near][far] = rate
        for pair in pairs:
            near, far = self.overlay if self.overlay and OVERLAY in pair else pair
            residual[f"a {near}"][f"b {far}"] = 1 << 30
        return _max_flow(residual)


_MBIT = (10, 15, 20, 30, 50)
_OVERLAY_NET = 99


def _versions(rng: random.Random) -> tuple[int, ...]:
    return rng.choice(((4,), (4,), (6,), (4, 6), (4, 6)))


def _mtu(rng: random.Random) -> int:
    return rng.choice((1500, 1500, 1500, 1280, 1400, 4000, 9000))


def _address(version: int, segment: int, own: int) -> str:
    return f"10.0.{segment}.{own}" if version == 4 else f"fd00:{segment + 1:x}::{own}"


def _max_flow(residual: dict[str, dict[str, int]]) -> int:
    """From source to sink (Edmonds and Karp); `residual` has the capacities, and changes."""
    total = 0
    while True:
        before = {"source": ""}
        queue = ["source"]
        for node in queue:
            for after, room in list(residual[node].items()):
                if room and after not in before:
                    before[after] = node
                    queue.append(after)
        if "sink" not in before:
            return total
        path, node = [], "sink"
        while node != "source":
            path.append((before[node], node))
            node = before[node]
        flow = min(residual[near][far] for near, far in path)
        for near, far in path:
            residual[near][far] -= flow
            residual[far][near] += flow
        total += flow


# ---- How it is built -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Built:
    """A wiring that exists. Each host is a namespace, and so are the switches and the router."""

    wiring: Wiring
    a: str
    b: str
    switches: str
    router: str

    def namespace(self, host: str) -> str:
        return self.a if host == "a" else self.b

    def down(self, host: str, interface: str) -> None:
        """The interface has no carrier any more, and no routes."""
        _batch(["ip", "-n", self.namespace(host)], [f"link set {interface} down"])

    def silence(self, host: str, interface: str) -> None:
        """The link loses all packets, and both ends still see a carrier."""
        _rules(self.namespace(host), _silent(interface))
        link = self.wiring.links(host)[int(interface[1:])]
        if not self.wiring.segments[link.segment].cable:
            _rules(self.switches, _silent(f"{host}{interface}"))
            return
        other = HOSTS[1 - HOSTS.index(host)]
        (far,) = (
            f"e{number}"
            for number, each in enumerate(self.wiring.links(other))
            if each.segment == link.segment
        )
        _rules(self.namespace(other), _silent(far))

    def forget_neighbours(self) -> None:
        for name in (self.a, self.b, self.router):
            _batch(["ip", "-n", name], ["neigh flush all"])

    def carried_bytes(self) -> dict[tuple[str, str], int]:
        """What each link of both hosts has carried from a to b."""
        found = {}
        for host, column in ((HOSTS[0], 8), (HOSTS[1], 0)):
            with netns.inside(self.namespace(host)):
                lines = Path("/proc/thread-self/net/dev").read_text().splitlines()
            counts = {name.strip(): rest.split() for name, _, rest in
                      (line.partition(":") for line in lines)}  # fmt: skip
            for name in self.wiring.names(host):
                found[host, name] = int(counts[name][column])
        return found


@contextmanager
def built(wiring: Wiring) -> Iterator[Built]:
    """Makes a wiring, and removes it."""
    names = [f"mrc-{fresh_name()}" for _ in range(4)]
    with namespaces(*names):
        made = Built(wiring, *names)
        for name in names:
            _sysctl(name, "net.ipv6.conf.all.accept_dad=0 net.ipv6.conf.default.accept_dad=0")
        for host in HOSTS:
            for which in ("all", "default"):
                _sysctl(made.namespace(host), f"net.ipv4.conf.{which}.rp_filter={wiring.rp_filter}")
        _sysctl(made.router, "net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1")
        _switches(made)
        for host in HOSTS:
            _links(made, host)
        for host in HOSTS:
            _addresses(made, host)
        if wiring.overlay:
            _overlay(made, wiring.overlay)
        if wiring.firewalls:
            _rules(made.b, ["add table inet wiring",
                            "add chain inet wiring input { type filter hook input priority 0; }",
                            *(f"add rule inet wiring input {each}" for each in _drops(wiring)),
                            ])  # fmt: skip
        yield made


def _switches(made: Built) -> None:
    _sysctl(made.switches, "net.ipv6.conf.all.disable_ipv6=1 net.ipv6.conf.default.disable_ipv6=1")
    inside, router = [], []
    for number, segment in enumerate(made.wiring.segments):
        if segment.cable:
            continue
        inside.append(f"link add s{number} type bridge")
        inside.append(f"link set s{number} mtu {segment.mtu} up")
        if segment.routed:
            inside.append(f"link add r{number} mtu {segment.mtu} type veth "
                          f"peer name r{number} netns {made.router} mtu {segment.mtu}")  # fmt: skip
            inside.append(f"link set r{number} master s{number} up")
            router.append(f"link set r{number} up")
            router += [f"addr add {_address(v, number, 254)}{_length(v)} dev r{number}"
                       for v in segment.versions]  # fmt: skip
    _batch(["ip", "-n", made.switches], inside)
    _batch(["ip", "-n", made.router], router)


def _links(made: Built, host: str) -> None:
    """Joins the interfaces of a host. A cable is made for both by host a."""
    inside, switches = [], []
    shaped = {made.a: [], made.b: [], made.switches: []}  # type: dict[str, list[str]]
    for number, link in enumerate(made.wiring.links(host)):
        segment = made.wiring.segments[link.segment]
        name = f"e{number}"
        other, far = made.switches, f"{host}{name}"
        if segment.cable:
            if host == "b":
                continue
            (place,) = (n for n, each in enumerate(made.wiring.b) if each.segment == link.segment)
            other, far = made.b, f"e{place}"
        inside.append(f"link add {name} mtu {segment.mtu} type veth "
                      f"peer name {far} netns {other} mtu {segment.mtu}")  # fmt: skip
        if not segment.cable:
            switches.append(f"link set {far} master s{link.segment} up")
        for namespace, interface in ((made.namespace(host), name), (other, far)):
            shaped[namespace].append(f"qdisc add dev {interface} root tbf rate {link.mbit}mbit "
                                     f"burst 20k limit 300k")  # fmt: skip
    _batch(["ip", "-n", made.namespace(host)], inside)
    _batch(["ip", "-n", made.switches], switches)
    for namespace, commands in shaped.items():
        _batch(["tc", "-n", namespace], commands)


def _addresses(made: Built, host: str) -> None:
    commands = []
    for number, link in enumerate(made.wiring.links(host)):
        segment, name = made.wiring.segments[link.segment], f"e{number}"
        commands.append(f"link set {name} up")
        for each in made.wiring.addresses(host)[name]:
            version = 6 if ":" in each else 4
            commands.append(f"addr add {each}{_length(version)} dev {name}")
            if segment.routed:
                commands.append(f"route add default via "
                                f"{_address(version, link.segment, 254)} dev {name} "
                                f"metric {100 + number}")  # fmt: skip
    _batch(["ip", "-n", made.namespace(host)], commands)


def _overlay(made: Built, pair: Pair) -> None:
    links = [made.wiring.links(host)[int(name[1:])] for host, name in zip(HOSTS, pair, strict=True)]
    versions = [set(made.wiring.segments[link.segment].versions) for link in links]
    version = min(set.intersection(*versions))
    ends = [
        next(x for x in made.wiring.addresses(host)[name] if (":" in x) == (version == 6))
        for host, name in zip(HOSTS, pair, strict=True)
    ]
    for host, name, near, far in zip(HOSTS, pair, ends, reversed(ends), strict=True):
        (own,) = made.wiring.addresses(host)[OVERLAY]
        _batch(["ip", "-n", made.namespace(host)], [
            f"link add {OVERLAY} type vxlan id 1 local {near} remote {far} dev {name} dstport 4789",
            f"link set {OVERLAY} mtu {made.wiring.mtu((OVERLAY, OVERLAY))} up",
            f"addr add {own}/24 dev {OVERLAY}",
        ])  # fmt: skip


def _drops(wiring: Wiring) -> Iterator[str]:
    for each in wiring.firewalls:
        near, far = (wiring.addresses(host)[name] for host, name in
                     zip(HOSTS, each.between, strict=True))  # fmt: skip
        for a, b in product(near, far):
            if (":" in a) == (":" in b):
                ip = "ip6" if ":" in a else "ip"
                protocol = " meta l4proto udp" if each.drops == "udp" else ""
                yield f"{ip} saddr {a} {ip} daddr {b}{protocol} drop"


def _silent(interface: str) -> list[str]:
    table = f"netdev silent-{interface}"
    hook = f"type filter hook ingress device {interface} priority 0; policy drop;"
    return [f"add table {table}", f"add chain {table} ingress {{ {hook} }}"]


def _length(version: int) -> str:
    return "/24" if version == 4 else "/64 nodad"


def _batch(program: list[str], commands: list[str]) -> None:
    if commands:
        text = "\n".join(commands)
        print(*program, text, sep="\n  ")
        subprocess.run([*program, "-batch", "-"], input=text, text=True, check=True)


def _rules(namespace: str, lines: list[str]) -> None:
    argv = ["ip", "netns", "exec", namespace, "nft", "-f", "-"]
    subprocess.run(argv, input="\n".join(lines), text=True, check=True)


def _sysctl(namespace: str, settings: str) -> None:
    values = dict(each.split("=") for each in settings.split())
    netns.set_sysctls(namespace, {key.replace(".", "/"): value for key, value in values.items()})


# ---- What plain UDP reaches ----------------------------------------------------------------------


_PORT = 7000
_QUIET_SECONDS = 1.2 * SLOWNESS
"""a neighbour is looked for again after a second"""
_ROUND_SECONDS = 0.05


class Reach:
    """What plain UDP sockets reach between the hosts of a wiring, each tied to an interface and an
    address, as those of a program that uses all of them are.

    Two interfaces of one host in one subnet both answer for all its addresses (arp_ignore is 0), so
    it depends on who sends first where packets arrive: the neighbour learns the right one from
    whoever sends from it. A pair counts if packets arrive either way round: no switch is in the
    way then, and after a few seconds the kernel's own probes of neighbours heal the entry. A strict
    rp_filter drops answers that arrive by the other interface; whoever reads them there uses more.
    """

    def __init__(self, made: Built) -> None:
        self.made = made
        self.heard: set[tuple[str, str, str, str]] = set()
        """host, its interface, the interface where that came from, version"""
        self.tcp: list[str] = []
        """addresses of b to which a's TCP connects"""
        for first in HOSTS:
            made.forget_neighbours()
            self._try(first)
        self._try_tcp()

    @cached_property
    def pairs(self) -> list[Pair]:
        """Interfaces that reach each other, both ways."""
        both = {(x, y, v) for host, x, y, v in self.heard if host == "a"} & {
            (y, x, v) for host, x, y, v in self.heard if host == "b"
        }
        return sorted({(x, y) for x, y, _ in both})

    def _try(self, first: str) -> None:
        """Each socket sends to each of the other host until nothing new has arrived for a while."""
        with ExitStack() as stack, selectors.DefaultSelector() as ready:
            ends: dict[str, list[_End]] = {}
            for host in HOSTS:
                ends[host] = [
                    _End(stack, self.made, host, name, address)
                    for name, addresses in self.made.wiring.addresses(host).items()
                    for address in addresses
                ]
                for end in ends[host]:
                    ready.register(end.socket, selectors.EVENT_READ, end)
            far = {"a": ends["b"], "b": ends["a"]}
            quiet = 0.0
            order = [first, HOSTS[1 - HOSTS.index(first)]]
            while quiet < _QUIET_SECONDS and not self._complete(ends):
                for host in order:
                    for end, other in product(ends[host], far[host]):
                        end.send(other)
                    if self._read(ready, far):
                        quiet = 0.0
                quiet += 2 * _ROUND_SECONDS

    def _read(self, ready: selectors.BaseSelector, far: dict[str, list[_End]]) -> bool:
        """Reads until nothing has arrived for a moment; whether something new did."""
        before = len(self.heard)
        while events := ready.select(_ROUND_SECONDS):
            for key, _ in events:
                end: _End = key.data
                with suppress(OSError):  # of an earlier packet
                    source = end.socket.recvfrom(100)[1][0]
                    for other in far[end.host]:
                        if other.address == source:
                            heard = (end.host, end.interface, other.interface, end.version)
                            self.heard.add(heard)
        return len(self.heard) > before

    def _complete(self, ends: dict[str, list[_End]]) -> bool:
        wanted = {(x.version, x.interface, y.interface) for x, y in product(ends["a"], ends["b"])
                  if x.version == y.version}  # fmt: skip
        return all(
            ("a", x, y, v) in self.heard and ("b", y, x, v) in self.heard for v, x, y in wanted
        )

    def _try_tcp(self) -> None:
        """Connects without binding, as a program that was given the address."""
        for address in chain(*self.made.wiring.addresses("b").values()):
            family = socket.AF_INET6 if ":" in address else socket.AF_INET
            with ExitStack() as stack:
                with netns.inside(self.made.b):
                    listener = stack.enter_context(socket.socket(family, socket.SOCK_STREAM))
                with netns.inside(self.made.a):
                    client = stack.enter_context(socket.socket(family, socket.SOCK_STREAM))
                listener.bind((address, 0))
                listener.listen()
                client.settimeout(_QUIET_SECONDS)
                with suppress(OSError):
                    client.connect(listener.getsockname())
                    self.tcp.append(address)


class _End:
    """A socket of a host, tied to one of its interfaces and addresses."""

    def __init__(
        self, stack: ExitStack, made: Built, host: str, interface: str, address: str
    ) -> None:
        self.host, self.interface, self.address = host, interface, address
        self.version = "6" if ":" in address else "4"
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        with netns.inside(made.namespace(host)):
            self.socket = stack.enter_context(socket.socket(family, socket.SOCK_DGRAM))
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, interface.encode())
        self.socket.bind((address, _PORT))
        self.socket.setblocking(False)

    def send(self, other: _End) -> None:
        if self.version == other.version:
            try:
                self.socket.sendto(b"x", (other.address, _PORT))
            except OSError as error:
                assert error.errno in _UNREACHABLE, error


_UNREACHABLE = (errno.ENETUNREACH, errno.EHOSTUNREACH, errno.ECONNREFUSED, errno.EAGAIN)
