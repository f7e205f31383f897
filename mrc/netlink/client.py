# SPDX-License-Identifier: Apache-2.0
"""One rtnetlink socket in a namespace, and what can be done with it."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from ipaddress import IPv4Interface, IPv6Address, IPv6Interface
from typing import Self

from mrc import netns
from mrc.errors import NetlinkError
from mrc.netlink import links, qdiscs, routes
from mrc.netlink.links import Interface, Veth
from mrc.netlink.qdiscs import Counters, Netem
from mrc.nlsocket import NLM_F_CREATE, NLM_F_EXCL, NLM_F_REPLACE, NetlinkSocket, Request
from mrc.srv6 import Route

_RTM_NEWLINK, _RTM_GETLINK, _RTM_SETLINK = 16, 18, 19
_RTM_NEWADDR, _RTM_GETADDR = 20, 22
_RTM_NEWROUTE, _RTM_GETROUTE = 24, 26
_RTM_NEWNEIGH = 28
_RTM_NEWQDISC, _RTM_DELQDISC, _RTM_GETQDISC = 36, 37, 38

_SET = NLM_F_CREATE | NLM_F_REPLACE
_POLL_SECONDS = 0.01


def interfaces(namespace: str | None = None) -> list[Interface]:
    """The interfaces of this namespace, or of a named one, by index; needs no privilege."""
    with Netlink(namespace) as link:
        return link.interfaces()


def wait_until_up(wanted: Iterable[tuple[Netlink, Iterable[str]]], timeout: float) -> None:
    """Wait until all interfaces can carry packets.

    The kernel may take a second to notice that a veth can, unless asked for that one interface.
    Raises NetlinkError naming the first one that does not come up.
    """
    deadline = time.monotonic() + timeout
    for link, names in wanted:
        for name in names:
            while not link.is_up(name):
                if time.monotonic() > deadline:
                    where = f" in {link.namespace}" if link.namespace else ""
                    raise NetlinkError(f"interface {name}{where} does not come up")
                time.sleep(_POLL_SECONDS)


class Netlink:
    """One rtnetlink socket; it stays in the namespace it was made in.

    Every call raises NetlinkError, naming what was refused and why, and where it can the remedy.
    """

    def __init__(self, namespace: str | None = None) -> None:
        self.namespace = namespace
        if namespace is None:
            self._socket = NetlinkSocket()
        else:
            with netns.inside(namespace):
                self._socket = NetlinkSocket()
        self._indices: dict[str, int] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        self._socket.close()

    def interfaces(self) -> list[Interface]:
        known = self._links()
        addresses: dict[int, list[IPv4Interface | IPv6Interface]] = {}
        for body in self._socket.dump(_RTM_GETADDR, links.ALL_ADDRESSES):
            if found := links.decode_address(body):
                addresses.setdefault(found[0], []).append(found[1])
        told = [replace(each, addresses=tuple(addresses.get(each.index, ()))) for each in known]
        return sorted(told, key=lambda each: each.index)

    def is_up(self, name: str) -> bool:
        """Whether an interface can carry packets."""
        wanted = links.by_index(self._index(name))
        return links.decode(self._socket.get(_RTM_GETLINK, wanted, f"read the state of {name}")).up

    def add_veths(self, veths: Iterable[Veth]) -> None:
        """Make pairs of interfaces; both ends stay down."""
        peers: dict[str, int] = {}
        try:
            for veth in (veths := list(veths)):
                if veth.peer_namespace not in peers:
                    path = netns.FOLDER / veth.peer_namespace
                    peers[veth.peer_namespace] = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            self._socket.request(
                [_veth_request(veth, peers[veth.peer_namespace]) for veth in veths]
            )
        except OSError as exc:
            raise NetlinkError(f"cannot open namespace: {exc}") from exc
        finally:
            for fd in peers.values():
                os.close(fd)

    def set_links(self, names: Iterable[str], *, up: bool) -> None:
        """Set interfaces up or down. Down takes an interface's IPv6 routes and addresses away."""
        requests = []
        for name in names:
            what = f"set {name} {'up' if up else 'down'}"
            body = links.set_link(self._index(name), up=up)
            requests.append(Request(what, _RTM_SETLINK, body))
        self._socket.request(requests)

    def add_addresses(self, addresses: Iterable[tuple[str, IPv6Interface]]) -> None:
        """Give interfaces addresses that are usable at once (no duplicate detection)."""
        requests = []
        for name, address in addresses:
            body = links.address(self._index(name), address)
            requests.append(Request(f"add address {address} to {name}", _RTM_NEWADDR, body, _SET))
        self._socket.request(requests)

    def add_neighbours(self, neighbours: Iterable[tuple[str, IPv6Address, str]]) -> None:
        """Say, for an interface, which MAC address a next hop has, so that nobody has to ask."""
        requests = []
        for name, address, mac in neighbours:
            body = links.neighbour(self._index(name), address, mac)
            what = f"add neighbour {address} to {name}"
            requests.append(Request(what, _RTM_NEWNEIGH, body, _SET))
        self._socket.request(requests)

    def add_shaper(self, name: str, *, rate_bps: int, burst_bytes: int, limit_bytes: int) -> None:
        """Limit the rate at which an interface sends, or change the limit; the queue holds
        limit_bytes (tbf).
        """
        index = self._index(name)
        body = qdiscs.shaper(
            index, rate_bps=rate_bps, burst_bytes=burst_bytes, limit_bytes=limit_bytes
        )
        self._add_qdisc(f"shape {name} to {rate_bps} bit/s", body, "CONFIG_NET_SCH_TBF")

    def add_netem(self, name: str, wanted: Netem, *, below_tbf: bool) -> None:
        """Let packets suffer on their way out, in place of what they suffered before."""
        body = qdiscs.netem(self._index(name), wanted, below_tbf=below_tbf)
        needs = "CONFIG_NET_SCH_NETEM, or --fabric emulated"
        self._add_qdisc(f"delay or impair {name}", body, needs)

    def remove_qdisc(self, name: str) -> None:
        """Let an interface have no queue, if it has one; what waits there is lost."""
        body = qdiscs.at_root(self._index(name))
        try:
            self._socket.request([Request(f"free {name}", _RTM_DELQDISC, body)])
        except NetlinkError as exc:
            if exc.code != errno.ENOENT:
                raise

    def has_qdisc(self, kind: str) -> bool:
        """Whether the kernel has a kind of queue: lo is given one, and loses it again."""
        body = qdiscs.empty(self._index("lo"), kind)
        try:
            self._add_qdisc(f"try {kind}", body, "")
        except NetlinkError as exc:
            # One that wants to be told more is there as well.
            return exc.code not in (errno.ENOENT, errno.EOPNOTSUPP)
        self.remove_qdisc("lo")
        return True

    def _add_qdisc(self, what: str, body: bytes, needs: str) -> None:
        self._socket.request([Request(what, _RTM_NEWQDISC, body, _SET, needs)])

    def counters(self) -> dict[str, Counters]:
        """What each interface has sent so far."""
        queues = self._socket.dump(_RTM_GETQDISC, qdiscs.ALL_QUEUES)
        return qdiscs.counters(self._socket.dump(_RTM_GETLINK, links.ALL_LINKS), queues)

    def add_routes(self, wanted: Sequence[Route]) -> None:
        """Write routes, read them back, and insist that the kernel has what was meant."""
        requests = []
        for route in wanted:
            body = routes.encode(route, self._index(route.dev))
            what = f"add route {route.dst} dev {route.dev}"
            needs = "" if route.action is None else routes.SEG6_NEEDS
            requests.append(Request(what, _RTM_NEWROUTE, body, _SET, needs))
        self._socket.request(requests)
        found = {(route.dst, route.dev, route.local): route for route in self.routes()}
        for route in wanted:
            routes.compare(route, found.get((route.dst, route.dev, route.local)))

    def routes(self) -> list[Route]:
        """The IPv6 routes of tables main and local that are for unicast."""
        names = {each.index: each.name for each in self._links()}
        found = (
            routes.decode(body, names)
            for body in self._socket.dump(_RTM_GETROUTE, routes.ALL_ROUTES)
        )
        return [route for route in found if route is not None]

    def _links(self) -> list[Interface]:
        found = [links.decode(body) for body in self._socket.dump(_RTM_GETLINK, links.ALL_LINKS)]
        self._indices = {each.name: each.index for each in found}
        return found

    def _index(self, name: str) -> int:
        if name not in self._indices:
            self._links()
        try:
            return self._indices[name]
        except KeyError:
            where = f" in {self.namespace}" if self.namespace else ""
            raise NetlinkError(f"no interface {name}{where}") from None


def _veth_request(veth: Veth, peer_namespace: int) -> Request:
    what = f"make veth {veth.name} to {veth.peer_name} in {veth.peer_namespace}"
    body = links.veth(veth, peer_namespace)
    return Request(what, _RTM_NEWLINK, body, NLM_F_CREATE | NLM_F_EXCL, "CONFIG_VETH")
