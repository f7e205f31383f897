# SPDX-License-Identifier: Apache-2.0
"""The network between simulated hosts: planes, paths, and what goes wrong on them.

Interface n of each host is on plane n. A plane has several paths; the source port and flow label of
a packet choose one, as ECMP does. All faults are attributes that a scenario changes at any time.
"""

from __future__ import annotations

import errno
import random
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any

from virtual.loop import Agenda

if TYPE_CHECKING:
    from virtual.host import Host
    from virtual.kernel import Kernel

_V4_BYTES, _V6_BYTES = 28, 48  # IP and UDP headers


@dataclass
class Path:
    """One of the paths of a plane, in one direction."""

    delay_ns: int = 50_000
    jitter_ns: int = 0
    loss: float = 0.0
    mtu: int = 9000  # of its smallest link, from the IP header on
    icmp: bool = True  # the router before that link reports packets that are too large
    up: bool = True
    udp: bool = True  # a filter lets UDP through
    tcp: bool = True


@dataclass
class Link:
    """One plane in one direction between two hosts."""

    agenda: Agenda
    rng: random.Random
    bits_per_second: float = 1e9
    queue_bytes: int = 1 << 18
    paths: list[Path] = field(default_factory=lambda: [Path()])
    departs_ns: int = 0
    carried: int = 0
    """packets delivered"""
    carried_bytes: int = 0
    """of their UDP payload"""

    def serial_ns(self, size: int) -> float:
        return size * 8e9 / self.bits_per_second

    def tcp_serial_ns(self, size: int) -> int:
        """How long a piece of a TCP stream occupies the link."""
        return int(self.serial_ns(size + size // 20))

    def tcp_delay_ns(self, size: int) -> float | None:
        """When a piece of a TCP stream arrives; None: not as long as the path is as it is."""
        path = self.paths[0]
        if not (path.up and path.tcp):
            return None
        delay = path.delay_ns + self.rng.random() * path.jitter_ns
        segments = size // 1400 + 1
        lost = self.rng.random() < 1 - (1 - path.loss) ** segments
        return delay + (200_000_000 if lost else 0)


@dataclass(frozen=True)
class Way:
    """How a host reaches an address."""

    peer: Host
    address: str
    """its own address on the plane"""
    there: Link
    back: Link


class Network:
    """All hosts and links."""

    def __init__(self, agenda: Agenda, kernel: Kernel, rng: random.Random) -> None:
        self.agenda, self.kernel, self.rng = agenda, kernel, rng
        self.hosts: list[Host] = []
        self._links: dict[tuple[str, str], Link] = {}
        self.dropped: dict[str, int] = {}

    def link(self, source: str, target: str) -> Link:
        """The link from one interface to another."""
        key = source, target
        if key not in self._links:
            self._links[key] = Link(self.agenda, random.Random(self.rng.random()))
        return self._links[key]

    def links(self) -> Sequence[Link]:
        """All links, in both directions."""
        return list(self._links.values())

    def addresses_of(self, name: str) -> list[str]:
        """The addresses of a host by its name."""
        return [
            str(address.ip)
            for host in self.hosts
            if host.name == name
            for interface in host.interfaces
            for address in interface.addresses
        ]

    def owner(self, address: str) -> tuple[Host, Any] | None:
        """The host and the interface that have an address."""
        wanted = ip_address(address)
        for host in self.hosts:
            for interface in host.interfaces:
                if any(each.ip == wanted for each in interface.addresses):
                    return host, interface
        return None

    def route(self, host: Host, address: str) -> Way | None:
        """How `host` reaches the address; None: it has no route."""
        found = self.owner(address)
        if found is None:
            return None
        peer, theirs = found
        for ours in host.interfaces:
            if ours.plane == theirs.plane and ours.up:
                own = next(
                    str(each.ip)
                    for each in ours.addresses
                    if each.version == ip_address(address).version
                )
                return Way(
                    peer, own, self.link(ours.name, theirs.name), self.link(theirs.name, ours.name)
                )
        return None

    # ---- Packets --------------------------------------------------------------------------

    def flush(self) -> None:
        """Sends on what sockets have sent."""
        while (packet := self.kernel.take()) is not None:
            self._send(packet)

    def _drop(self, why: str) -> None:
        self.dropped[why] = self.dropped.get(why, 0) + 1

    def _send(self, packet: Any) -> None:
        found = self.owner(packet.target_address)
        if found is None or not found[1].up:
            self.kernel.departed(packet.fd, packet.bytes)
            self._drop("no such address")
            return
        link = self.link(packet.ifname, found[1].name)
        size = packet.bytes + (_V4_BYTES if packet.family == 4 else _V6_BYTES)
        now = self.agenda.now_ns
        waiting = (link.departs_ns - now) * link.bits_per_second / 8e9
        if waiting > link.queue_bytes:
            self.kernel.departed(packet.fd, packet.bytes)
            self._drop("full queue")
            return
        link.departs_ns = int(max(link.departs_ns, now) + link.serial_ns(size + 38))
        self.agenda.at(link.departs_ns, lambda: self._depart(link, packet, size, found))

    def _depart(self, link: Link, packet: Any, size: int, found: tuple[Host, Any]) -> None:
        self.kernel.departed(packet.fd, packet.bytes)
        flow = zlib.crc32(f"{packet.sport} {packet.flow_label} {packet.dport}".encode())
        path = link.paths[flow % len(link.paths)]
        if not path.up or not path.udp:
            self._drop("path down" if not path.up else "filter")
        elif size > path.mtu:
            self._drop("too large")
            if path.icmp:
                self.agenda.after(
                    path.delay_ns, lambda: self.kernel.report(packet.fd, errno.EMSGSIZE)
                )
        elif link.rng.random() < path.loss:
            self._drop("loss")
        else:
            delay = path.delay_ns + link.rng.random() * path.jitter_ns
            self.agenda.after(delay, lambda: self._arrive(link, packet, found))

    def _arrive(self, link: Link, packet: Any, found: tuple[Host, Any]) -> None:
        host, interface = found
        if not interface.up or not host.powered:
            self._drop("interface down")
        elif self.kernel.deliver(interface.name, packet):
            link.carried += 1
            link.carried_bytes += packet.bytes
        else:
            self._drop("no socket")
