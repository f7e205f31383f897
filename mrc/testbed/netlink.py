# SPDX-License-Identifier: Apache-2.0
"""Links, addresses, routes and queues of a namespace: the only importer of pyroute2.

pyroute2 encodes and decodes the messages, except those about routes, for which it lacks the
encap.red mode and the NEXT-C-SID flavour of End, and takes ten times as long: a test bed may have
100,000 routes. Our own message classes add tbf's burst in bytes.

pyroute2's first lines load all of it (NDB, ethtool, nftables), which takes longer than a whole
`mrc testbed` command. So its message classes are loaded below a package that runs its first lines
only when a program uses another of its names.
"""

from __future__ import annotations

import errno
import importlib
import importlib.util
import os
import socket
import struct
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields
from functools import partial
from ipaddress import IPv4Address, IPv4Interface, IPv6Address, IPv6Interface, IPv6Network
from types import ModuleType
from typing import Any, TypeVar

from msgspec import Struct

from mrc.errors import NetlinkError
from mrc.linux import netns
from mrc.linux.namespace import OWN
from mrc.linux.rtnetlink import Interface, Rtnetlink, attributes
from mrc.testbed.routes import Route, Srv6Action
from mrc.units import digits

_PYROUTE2 = "pyroute2"


class _Package(ModuleType):
    """A package that has not run its first lines."""

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        module = f"{self.__name__}.{name}"
        if importlib.util.find_spec(module):
            return importlib.import_module(module)
        self.__class__ = ModuleType  # type: ignore[assignment]
        assert self.__spec__ is not None and self.__spec__.loader is not None
        self.__spec__.loader.exec_module(self)
        return getattr(self, name)


if _PYROUTE2 not in sys.modules and (_spec := importlib.util.find_spec(_PYROUTE2)):
    _package = importlib.util.module_from_spec(_spec)
    _package.__class__ = _Package
    sys.modules[_PYROUTE2] = _package

from pyroute2.netlink import nla  # noqa: E402
from pyroute2.netlink.rtnl.ifaddrmsg import ifaddrmsg  # noqa: E402
from pyroute2.netlink.rtnl.ifinfmsg import ifinfmsg  # noqa: E402
from pyroute2.netlink.rtnl.ndmsg import ndmsg  # noqa: E402
from pyroute2.netlink.rtnl.tcmsg import sched_netem, sched_tbf, tcmsg  # noqa: E402

_RTM_NEWLINK, _RTM_DELLINK, _RTM_GETLINK, _RTM_SETLINK = 16, 17, 18, 19
_RTM_NEWADDR, _RTM_GETADDR = 20, 22
_RTM_NEWROUTE, _RTM_DELROUTE, _RTM_GETROUTE = 24, 25, 26
_RTM_NEWNEIGH = 28
_RTM_NEWQDISC, _RTM_DELQDISC, _RTM_GETQDISC = 36, 37, 38

NLM_F_REPLACE, NLM_F_EXCL, NLM_F_CREATE, NLM_F_APPEND = 0x100, 0x200, 0x400, 0x800
_NLM_F_REQUEST, _NLM_F_ACK = 0x1, 0x4
_NLMSG_ERROR = 2

# Requests in one datagram. Their acknowledgements must fit the receive buffer.
_BATCH = 64
_HEADER_BYTES = 16
_PAUSE_SECONDS = 0.002
_MEMORY_SECONDS = 5.0

_IFF_UP = 0x1
_FAMILIES = {4: socket.AF_INET, 6: socket.AF_INET6}
_IFA_F_NODAD = 0x2
_NUD_PERMANENT = 0x80
_WRITE = NLM_F_CREATE | NLM_F_REPLACE
_APPEND = NLM_F_CREATE | NLM_F_APPEND
_POLL_SECONDS = 0.01

# Of generic netlink, and of its family SEG6.
_NETLINK_GENERIC = 16
_CONTROLLER, _GET_FAMILY = 16, 3
_FAMILY_ID, _FAMILY_NAME = 1, 2
_SET_TUNSRC, _DST = 3, 1
_GENERIC = struct.Struct("=BBH")  # command, version

_Attributes = list[tuple[str, object]]


class NetlinkRequest(Struct, frozen=True):
    """A change that the kernel carries out or refuses."""

    what: str | Callable[[], str]
    """the action, or a function that tells it; the error message is "cannot", this text and the
    reason
    """
    type: int
    message: Any
    flags: int = 0
    needs: str = ""
    """the kernel version or option that the request requires; error messages name it"""
    done: int | None = None
    """the error code which says that this was done before"""


class Netlink(Rtnetlink):
    """Changes over one socket. It stays in the namespace in which it was made.

    Every call raises NetlinkError with the refused action, the reason and, if known, the remedy.
    The contents of requests are pyroute2's message objects, or bytes. pyroute2's own sockets each
    run an event loop, so they block beside a loop that already runs.
    """

    def __init__(self, namespace: str | None = None, *protocol: int) -> None:
        super().__init__(namespace or OWN, *protocol)
        self.namespace = namespace
        self._indices: dict[str, int] = {}

    def request(self, requests: Sequence[NetlinkRequest]) -> None:
        """Carries out all requests, or raises the error of the first that the kernel refuses.

        Repeats requests for which the kernel is out of memory: a route with an encapsulation takes
        memory of every CPU, and the kernel prepares only a little of that at a time.
        """
        for start in range(0, len(requests), _BATCH):
            left, deadline = requests[start : start + _BATCH], None
            while left := self._exchange(left, deadline):
                deadline = deadline or time.monotonic() + _MEMORY_SECONDS
                time.sleep(_PAUSE_SECONDS)

    def _exchange(
        self, requests: Sequence[NetlinkRequest], deadline: float | None
    ) -> Sequence[NetlinkRequest]:
        """Returns the requests for which the kernel has no memory yet, but not after `deadline`."""
        waiting: dict[int, NetlinkRequest] = {}
        datagram = b""
        for request in requests:
            flags = _NLM_F_REQUEST | _NLM_F_ACK | request.flags
            datagram += self._encode(request.type, request.message, flags)
            waiting[self._sequence] = request
        self._send(datagram)
        refused: NetlinkError | None = None
        repeated: list[NetlinkRequest] = []
        is_late = deadline is not None and time.monotonic() > deadline
        while waiting:
            for kind, sequence, _, body in self._received():
                if kind == _NLMSG_ERROR and sequence in waiting:
                    request = waiting.pop(sequence)
                    refusal = self._refusal(body, request.what, request.needs, request.done)
                    if refusal is not None and refusal.code == errno.ENOMEM and not is_late:
                        repeated.append(request)
                    else:
                        refused = refused or refusal
        if refused is not None:
            raise refused
        return repeated

    def _encode(self, kind: int, message: Any, flags: int) -> bytes:
        if isinstance(message, bytes):
            return self._framed(kind, message, flags)
        self._sequence += 1
        message["header"] |= {"type": kind, "flags": flags, "sequence_number": self._sequence}
        message.reset()
        message.encode()
        return bytes(message.data)

    def get(self, kind: int, body: bytes, what: str) -> bytes:
        """Reads one object: the bytes behind its message header."""
        self._send(self._framed(kind, body, _NLM_F_REQUEST))
        return next(self._replies(what))[2][_HEADER_BYTES:]

    @staticmethod
    def wait_until_up(wanted: Iterable[tuple[Netlink, Iterable[str]]], timeout: float) -> None:
        """Wait until all interfaces can carry packets.

        The kernel may update a veth's state up to a second late. A request for that one interface
        makes it update the state at once. Raises NetlinkError naming the first interface that stays
        down.
        """
        deadline = time.monotonic() + timeout
        for link, names in wanted:
            for name in names:
                while not link.is_up(name):
                    if time.monotonic() > deadline:
                        where = f" in {link.namespace}" if link.namespace else ""
                        raise NetlinkError(
                            f"interface {name}{where} stays down after {digits(timeout)} s"
                        )
                    time.sleep(_POLL_SECONDS)

    @staticmethod
    def set_tunnel_source(namespace: str, address: IPv6Address) -> bool:
        """Set the outer source address of all SRv6 encapsulations in a namespace.

        Without it the kernel selects an address for every packet that it encapsulates, which takes
        a tenth of the send. Returns False if the kernel allows this only for the machine's root,
        not for root of a user namespace. Raises NetlinkError.
        """
        what = f"set the source address of SRv6 encapsulations in {namespace}"
        with Netlink(namespace, _NETLINK_GENERIC) as generic:
            try:
                asked = _GENERIC.pack(_GET_FAMILY, 1, 0) + attribute(_FAMILY_NAME, b"SEG6\0")
                told = attributes(generic.get(_CONTROLLER, asked, what), _GENERIC.size)
                (family,) = struct.unpack("=H", told[_FAMILY_ID])
                message = _GENERIC.pack(_SET_TUNSRC, 1, 0) + attribute(_DST, address.packed)
                generic.request([NetlinkRequest(what, family, message)])
            except NetlinkError as exc:
                if exc.code == errno.EPERM:
                    return False
                raise
        return True

    def interfaces(self) -> list[Interface]:
        return Interface.read(self)

    def is_up(self, name: str) -> bool:
        """Whether an interface can carry packets. The request makes the kernel update the state."""
        body = _IFINFOMSG.pack(self._index(name)) + bytes(8)
        return Interface.decode(self.get(_RTM_GETLINK, body, f"read the state of {name}"), {}).up

    def add_veth(
        self, name: str, peer_name: str, peer_namespace: str, mtu: int, mac: str, peer_mac: str,
        gso_max_segs: int | None = None,
    ) -> None:  # fmt: skip
        """Make a pair of joined interfaces, `name` here and `peer_name` in another namespace. Both
        start down. `gso_max_segs`: most packets that the stack hands to `name` as one.
        """
        with _opened(peer_namespace) as far:
            peer = _attributes(peer_name, mtu, peer_mac, ("IFLA_NET_NS_FD", far))
            own = _attributes(name, mtu, mac)
            if gso_max_segs is not None:
                own.append(("IFLA_GSO_MAX_SEGS", gso_max_segs))
            what = f"{name} to {peer_name} in {peer_namespace}"
            self._make("veth", what, [("VETH_INFO_PEER", {"attrs": peer})], own)

    def add_vxlan(
        self, name: str, namespace: str, mtu: int, mac: str, vni: int,
        remote: IPv4Address | IPv6Address, port: int,
    ) -> None:  # fmt: skip
        """Make an interface in another namespace, whose packets this namespace carries to the
        machine `remote` over this UDP port, the same on both machines. It starts down.
        """
        data = [
            ("IFLA_VXLAN_ID", vni),
            ("IFLA_VXLAN_GROUP" if remote.version == 4 else "IFLA_VXLAN_GROUP6", str(remote)),
            ("IFLA_VXLAN_PORT", port),
            ("IFLA_VXLAN_LEARNING", 0),  # all packets go to the one peer
        ]
        with _opened(namespace) as far:
            own = _attributes(name, mtu, mac, ("IFLA_NET_NS_FD", far))
            self._make("vxlan", f"{name} in {namespace}", data, own)

    def set_links(self, names: Iterable[str], *, up: bool) -> None:
        """Set interfaces up or down. Setting one down removes its IPv6 routes and addresses."""
        state, flags = "up" if up else "down", {"flags": _IFF_UP * up, "change": _IFF_UP}
        self.request(
            [
                NetlinkRequest(f"set {name} {state}", _RTM_SETLINK, self._link(name, **flags))
                for name in names
            ]
        )

    def set_mtu(self, name: str, mtu: int) -> None:
        self._set(f"set the MTU of {name} to {mtu}", name, ("IFLA_MTU", mtu))

    def set_gso_max_segs(self, name: str, most: int) -> None:
        """Limits how many packets the stack hands to the interface as one."""
        self._set(f"limit bursts of {name}", name, ("IFLA_GSO_MAX_SEGS", most))

    def move(self, name: str, namespace: str, new_name: str) -> None:
        """Move an interface into another namespace, with a new name. It loses its addresses and
        routes and goes down.
        """
        self.set_links([name], up=False)  # older kernels rename only an interface that is down
        with _opened(namespace) as place:
            moved = ("IFLA_NET_NS_FD", place), ("IFLA_IFNAME", new_name)
            self._set(f"move {name} to {namespace} as {new_name}", name, *moved)
        self._indices = {}

    def remove_link(self, name: str) -> None:
        """Remove an interface, and the other end of a veth."""
        self._change(f"remove {name}", _RTM_DELLINK, self._link(name))

    def add_bridge(self, name: str, ports: Iterable[str]) -> None:
        """Join interfaces by a bridge that is up. It floods multicast."""
        self._make("bridge", name, [("IFLA_BR_MCAST_SNOOPING", 0)], [("IFLA_IFNAME", name)])
        for port in ports:
            self._set(f"join {port} to {name}", port, ("IFLA_MASTER", self._index(name)))
        self.set_links([name], up=True)

    def _make(self, kind: str, what: str, data: _Attributes, own: _Attributes) -> None:
        """A new interface; `data` is special to its kind."""
        info = [("IFLA_INFO_KIND", kind), ("IFLA_INFO_DATA", {"attrs": data})]
        message, flags = ifinfmsg(), NLM_F_CREATE | NLM_F_EXCL
        message["attrs"] = [*own, ("IFLA_LINKINFO", {"attrs": info})]
        self._change(f"make {kind} {what}", _RTM_NEWLINK, message, flags, f"CONFIG_{kind.upper()}")

    def _set(self, what: str, name: str, *attributes: tuple[str, object]) -> None:
        self._change(what, _RTM_SETLINK, self._link(name, attrs=list(attributes)))

    def _link(self, name: str, **members: Any) -> ifinfmsg:
        message = ifinfmsg()
        message |= {"index": self._index(name), **members}
        return message

    def _change(self, what: str, kind: int, message: Any, flags: int = 0, needs: str = "") -> None:
        self.request([NetlinkRequest(what, kind, message, flags, needs)])

    def add_addresses(self, addresses: Iterable[tuple[str, IPv6Interface]]) -> None:
        """Add addresses to interfaces. They are usable at once (no duplicate detection)."""
        flags = "IFA_FLAGS", _IFA_F_NODAD
        self._add_addresses((name, address, address.ip, [flags]) for name, address in addresses)

    def add_ipv4(self, addresses: Iterable[tuple[str, IPv4Interface, IPv4Address | None]]) -> None:
        """Add IPv4 addresses to interfaces, each with the only host behind the interface, or None
        for a network.
        """
        self._add_addresses(
            (name, address, other or address.ip, []) for name, address, other in addresses
        )

    def _add_addresses(self, addresses: Iterable[tuple[str, Any, object, list[Any]]]) -> None:
        """Interface, address, the other end of the link or the address itself, and attributes."""
        requests = []
        for name, address, other, more in addresses:
            message = ifaddrmsg()
            message |= {
                "family": _FAMILIES[address.version],
                "prefixlen": address.network.prefixlen,
                "index": self._index(name),
                "attrs": [("IFA_LOCAL", str(address.ip)), ("IFA_ADDRESS", str(other)), *more],
            }
            what = f"add address {address} to {name}"
            requests.append(NetlinkRequest(what, _RTM_NEWADDR, message, _WRITE))
        self.request(requests)

    def add_gateway(self, name: str, via: IPv4Address) -> None:
        """Add the IPv4 default route, over a next hop on this link."""
        what = f"add IPv4 route default via {via} dev {name}"
        self._change(what, _RTM_NEWROUTE, encode_gateway(via, self._index(name)), _WRITE)

    def add_neighbours(
        self, neighbours: Iterable[tuple[str, IPv6Address | IPv4Address, str]]
    ) -> None:
        """Add permanent neighbours: the MAC addresses of next hops. They save the discovery."""
        requests = []
        for name, address, mac in neighbours:
            message = ndmsg()
            message |= {
                "family": _FAMILIES[address.version],
                "ifindex": self._index(name),
                "state": _NUD_PERMANENT,
                "attrs": [("NDA_DST", str(address)), ("NDA_LLADDR", mac)],
            }
            what = f"add neighbour {address} to {name}"
            requests.append(NetlinkRequest(what, _RTM_NEWNEIGH, message, _WRITE))
        self.request(requests)

    def add_shaper(self, name: str, *, rate_bps: int, burst_bytes: int, limit_bytes: int) -> None:
        """Limit an interface's send rate with a tbf, or change the limit. Its queue holds at most
        limit_bytes.
        """
        rate = rate_bps // 8
        parms = {
            "rate___reserved": _LINKLAYER_ETHERNET,
            "rate": min(rate, _MAX_RATE32),
            "limit": limit_bytes,
        }
        options = [("TCA_TBF_PARMS", parms), ("TCA_TBF_BURST", burst_bytes)]
        if rate >= _MAX_RATE32:
            options.append(("TCA_TBF_RATE64", rate))
        parts = [("TCA_KIND", "tbf"), ("TCA_OPTIONS", {"attrs": options})]
        message = _message(TbfMessage, self._index(name), handle=_TBF, attrs=parts)
        self._add_qdisc(f"shape {name} to {rate_bps} bit/s", message, "CONFIG_NET_SCH_TBF")

    def add_netem(self, name: str, wanted: Netem, *, below_tbf: bool) -> None:
        """Delay or impair the packets that an interface sends. Replaces its earlier netem."""
        message = netem_message(self._index(name), wanted, below_tbf=below_tbf)
        needs = "CONFIG_NET_SCH_NETEM, or --fabric emulated"
        self._add_qdisc(f"delay or impair {name}", message, needs)

    def remove_qdisc(self, name: str) -> None:
        """Remove an interface's queue, if it has one, and drop the packets in it."""
        message = _message(PlainMessage, self._index(name))  # its root qdisc
        try:
            self._change(f"free {name}", _RTM_DELQDISC, message)
        except NetlinkError as exc:
            if exc.code != errno.ENOENT:
                raise

    def has_qdisc(self, kind: str) -> bool:
        """Whether the kernel supports a kind of queue. Adds one to lo and removes it."""
        index = self._index("lo")
        message = _message(PlainMessage, index, handle=_NETEM, attrs=[("TCA_KIND", kind)])
        try:
            self._add_qdisc(f"try {kind}", message, "")
        except NetlinkError as exc:
            # Other errors mean that the kernel supports it, but requires options.
            return exc.code not in (errno.ENOENT, errno.EOPNOTSUPP)
        self.remove_qdisc("lo")
        return True

    def _add_qdisc(self, what: str, message: Any, needs: str) -> None:
        self._change(what, _RTM_NEWQDISC, message, _WRITE, needs)

    def counters(self) -> dict[str, InterfaceCounters]:
        """Counters of the packets that each interface has sent so far."""
        return _counters(
            self.dump(_RTM_GETLINK, bytes(16)),
            self.dump(_RTM_GETQDISC, bytes(20)),
        )

    def add_routes(self, routes: Sequence[Route]) -> None:
        """Add routes and read them back. Raises NetlinkError if the kernel's differ from ours."""
        requests = []
        for route in routes:
            message = encode_route(route, self._index(route.dev))
            # As a function: the text of 100,000 addresses takes a second.
            what = partial("add route {} dev {}".format, route.dst, route.dev)
            needs = "" if route.action is None else SEG6_NEEDS
            # A repeated one that is shared is refused; all others replace their predecessor.
            how = (_APPEND, needs, errno.EEXIST) if route.shared else (_WRITE, needs)
            requests.append(NetlinkRequest(what, _RTM_NEWROUTE, message, *how))
        self.request(requests)
        shared = {route.dst for route in routes if route.shared}
        found = {_identity(route, shared): route for route in self.routes()}
        for route in routes:
            compare_routes(route, found.get(_identity(route, shared)))

    def remove_routes(self, routes: Sequence[Route]) -> None:
        """Remove routes that are not shared. No error if one is gone."""
        self.request(
            [
                NetlinkRequest(
                    f"remove route {route.dst} dev {route.dev}",
                    _RTM_DELROUTE,
                    encode_route(route, self._index(route.dev)),
                    done=errno.ESRCH,
                )
                for route in routes
            ]
        )

    def routes(self) -> list[Route]:
        """The IPv6 unicast routes of tables main and local."""
        names = {each.index: each.name for each in self.interfaces()}
        return [
            route
            for each in self.dump(_RTM_GETROUTE, _ALL_ROUTES)
            for route in decode_routes(each, names)
        ]

    def _index(self, name: str) -> int:
        if name not in self._indices:
            self._indices = {each.name: each.index for each in self.interfaces()}
        try:
            return self._indices[name]
        except KeyError:
            where = f" in {self.namespace}" if self.namespace else ""
            raise NetlinkError(f"no interface {name}{where}") from None


def attribute(kind: int, payload: bytes) -> bytes:
    """An attribute as bytes."""
    length = 4 + len(payload)
    return struct.pack("=HH", length, kind) + payload + bytes(-length & 3)


@contextmanager
def _opened(namespace: str) -> Iterator[int]:
    """A descriptor of it."""
    try:
        found = os.open(netns.FOLDER / namespace, os.O_RDONLY)
    except OSError as exc:
        raise NetlinkError(f"cannot open namespace: {exc}") from exc
    try:
        yield found
    finally:
        os.close(found)


def _attributes(name: str, mtu: int, mac: str, *more: tuple[str, object]) -> _Attributes:
    return [("IFLA_IFNAME", name), ("IFLA_MTU", mtu), ("IFLA_ADDRESS", mac), *more]


def _identity(route: Route, shared: Collection[IPv6Network]) -> Any:
    """What tells a route from others. Routes to a shared destination may differ only in their
    action.
    """
    return route.dst, route.dev, route.local, route.action if route.dst in shared else None


# ---- Queues --------------------------------------------------------------------------------------


ROOT = 0xFFFFFFFF
_TBF, _TBF_CHILD, _NETEM = 0x10000, 0x10001, 0x20000
_LINKLAYER_ETHERNET = 1
_MAX_RATE32 = (1 << 32) - 1  # bytes a second; says that RATE64 has the rate
_TICK_NS = 64  # PSCHED_SHIFT of net/pkt_sched.h
_NETEM_PACKETS = 100_000  # the queue that delay needs: 1 s at 400 Mbit/s in packets of 500 bytes

# Structures of the kernel: in front of their attributes, or in one.
_IFINFOMSG, _TCMSG = struct.Struct("=4xi"), struct.Struct("=4xiII")
_STATS64 = struct.Struct("=8Q")
_TC_STATS = struct.Struct("=QII16xI")  # bytes, packets, drops, backlog
_IFLA_IFNAME, _IFLA_STATS64 = 3, 23
_TCA_KIND, _TCA_STATS = 1, 3

_Message = TypeVar("_Message", bound=dict[str, Any])


class InterfaceCounters(Struct, frozen=True):
    """Counters of an interface since its creation, and the bytes in its queue now."""

    packets: int
    """sent; a tbf counts each packet of a burst, an interface without one counts the burst as 1"""
    bytes: int
    dropped: int
    """dropped by the queue, and by the interface because its peer could not accept them"""
    queue_bytes: int


class Netem(Struct, frozen=True):
    """Impairments of the packets that an interface sends. Shares are in parts per million."""

    delay_ns: int = 0
    jitter_ns: int = 0
    """additional delay, from 0 to this value; it can reorder packets"""
    corrupt: int = 0
    duplicate: int = 0
    reorder: int = 0
    """share delayed by reorder_ns; the other packets are not delayed"""
    reorder_ns: int = 0

    def __post_init__(self) -> None:
        if self.reorder and (self.delay_ns or self.jitter_ns):
            raise ValueError("netem cannot both delay and reorder: use --fabric emulated")


class TbfMessage(tcmsg):  # type: ignore[misc]
    """A tbf with its burst in bytes. It requires no rate table."""

    __slots__ = ()
    nla_map = (("TCA_UNSPEC", "none"), ("TCA_KIND", "asciiz"), ("TCA_OPTIONS", "tbf"))

    class tbf(nla):  # type: ignore[misc]
        __slots__ = ()
        nla_map = (
            ("TCA_TBF_UNSPEC", "none"),
            ("TCA_TBF_PARMS", "parms"),
            ("TCA_TBF_RTAB", "hex"),
            ("TCA_TBF_PTAB", "hex"),
            ("TCA_TBF_RATE64", "uint64"),
            ("TCA_TBF_PRATE64", "uint64"),
            ("TCA_TBF_BURST", "uint32"),
        )

        class parms(nla):  # type: ignore[misc]
            __slots__ = ()
            fields = sched_tbf.options.tbf_parms.fields


class NetemMessage(tcmsg):  # type: ignore[misc]
    """A class of our own, because pyroute2's class caches its attributes on first use and the other
    classes here would then inherit that cache.
    """

    __slots__ = ()
    nla_map = (("TCA_UNSPEC", "none"), ("TCA_KIND", "asciiz"), ("TCA_OPTIONS", "netem"))
    netem = sched_netem.options


class PlainMessage(tcmsg):  # type: ignore[misc]
    """A qdisc's kind without options."""

    __slots__ = ()
    nla_map = (("TCA_UNSPEC", "none"), ("TCA_KIND", "asciiz"))


def netem_message(index: int, wanted: Netem, *, below_tbf: bool) -> NetemMessage:
    further: list[tuple[str, Any]] = []
    if wanted.reorder:  # netem takes the share that is not delayed
        further.append(("TCA_NETEM_REORDER", {"prob_reorder": _chance(10**6 - wanted.reorder)}))
    if wanted.corrupt:
        further.append(("TCA_NETEM_CORRUPT", {"prob_corrupt": _chance(wanted.corrupt)}))
    # netem takes the mean delay and the largest deviation from it.
    half_ns = wanted.jitter_ns // 2
    options = {
        "delay": (wanted.reorder_ns if wanted.reorder else wanted.delay_ns + half_ns) // _TICK_NS,
        "jitter": half_ns // _TICK_NS,
        "limit": _NETEM_PACKETS,
        "gap": 1 if wanted.reorder else 0,
        "duplicate": _chance(wanted.duplicate),
        "attrs": further,
    }
    parts = [("TCA_KIND", "netem"), ("TCA_OPTIONS", options)]
    parent = _TBF_CHILD if below_tbf else ROOT
    return _message(NetemMessage, index, parent=parent, handle=_NETEM, attrs=parts)


def _message(kind: type[_Message], index: int, **members: Any) -> _Message:
    """A message for the root qdisc, unless `members` has another parent."""
    message = kind()
    message.update({"index": index, "parent": ROOT, **members})
    return message


def _counters(links: Iterable[bytes], queues: Iterable[bytes]) -> dict[str, InterfaceCounters]:
    """The counters of each interface with those of its tbf, from dumps of links and qdiscs.

    Without pyroute2, which takes four times as long: a large test bed has thousands of interfaces.
    """
    shapers = {}
    for each in queues:
        index, _, parent = _TCMSG.unpack_from(each)
        found = attributes(each, _TCMSG.size + 4)
        if parent == ROOT and found[_TCA_KIND] == b"tbf\0":
            shapers[index] = _TC_STATS.unpack_from(found[_TCA_STATS])
    result = {}
    for each in links:
        (index,) = _IFINFOMSG.unpack_from(each)
        found = attributes(each, _IFINFOMSG.size + 8)
        _, packets, _, sent_bytes, _, _, _, dropped = _STATS64.unpack_from(found[_IFLA_STATS64])
        queued = 0
        if index in shapers:
            sent_bytes, packets, refused, queued = shapers[index]
            dropped += refused
        name = found[_IFLA_IFNAME].rstrip(b"\0").decode()
        result[name] = InterfaceCounters(packets, sent_bytes, dropped, queued)
    return result


def _chance(ppm: int) -> int:
    return round(ppm * (2**32 - 1) / 10**6)


# ---- Routes --------------------------------------------------------------------------------------


_MAIN_TABLE = 254
_RTN_UNICAST, _RTN_LOCAL = 1, 2
_PROTOCOL_STATIC = 4
_HEADER = struct.Struct("=BBBBBBBBI")  # family, lengths, tos, table, protocol, scope, type, flags
_HOP = struct.Struct("=HBBi")  # length, flags, hops, interface
_RTA_DST, _RTA_OIF, _RTA_GATEWAY, _RTA_PRIORITY, _RTA_PREFSRC = 1, 4, 5, 6, 7
_RTA_MULTIPATH, _RTA_ENCAP_TYPE, _RTA_ENCAP = 9, 21, 22
_NESTED = 1 << 15

_LWTUNNEL_SEG6, _LWTUNNEL_SEG6_LOCAL = 5, 7
_SEG6_IPTUNNEL_SRH, _MODE_ENCAP_RED = 1, 3
_SRH = struct.Struct("=iBBBBBBH")  # mode, then the SRH: next, length, type, left, first, flags, tag
_SRH_TYPE = 4
_LOCAL_ACTION, _LOCAL_TABLE, _LOCAL_FLAVORS = 1, 3, 11
_ACTION_END, _ACTION_END_DT6 = 1, 7
_FLAVOR_OPERATION, _FLAVOR_BLOCK_BITS, _FLAVOR_USID_BITS = 1, 2, 3
_NEXT_CSID = 1 << 4

# The first release with both encap.red and NEXT-C-SID.
SEG6_NEEDS = "Linux 6.1 with CONFIG_IPV6_SEG6_LWTUNNEL"

_ALL_ROUTES = _HEADER.pack(socket.AF_INET6, *[0] * 8)
"""the request for all IPv6 routes"""


def encode_route(route: Route, index: int) -> bytes:
    """The request to add a route; `index` is its interface."""
    table, kind = (Route.LOCAL_TABLE, _RTN_LOCAL) if route.local else (_MAIN_TABLE, _RTN_UNICAST)
    length = route.dst.prefixlen
    body = _HEADER.pack(socket.AF_INET6, length, 0, 0, table, _PROTOCOL_STATIC, 0, kind, 0)
    body += attribute(_RTA_DST, route.dst.network_address.packed)
    body += attribute(_RTA_OIF, _u32(index)) + attribute(_RTA_PRIORITY, _u32(route.metric))
    if route.via is not None:
        body += attribute(_RTA_GATEWAY, route.via.packed)
    if route.src is not None:
        body += attribute(_RTA_PREFSRC, route.src.packed)
    if route.action is not None and route.action.segments:
        last = len(route.action.segments) - 1
        srh = _SRH.pack(_MODE_ENCAP_RED, 0, 2 * last + 2, _SRH_TYPE, last, last, 0, 0)
        srh += b"".join(each.packed for each in reversed(route.action.segments))
        body += attribute(_RTA_ENCAP_TYPE, _u16(_LWTUNNEL_SEG6))
        body += attribute(_RTA_ENCAP | _NESTED, attribute(_SEG6_IPTUNNEL_SRH, srh))
    elif route.action is not None:
        body += attribute(_RTA_ENCAP_TYPE, _u16(_LWTUNNEL_SEG6_LOCAL))
        body += attribute(_RTA_ENCAP | _NESTED, _local(route.action))
    return body


def encode_gateway(via: IPv4Address, index: int) -> bytes:
    """The request to add the IPv4 default route over a next hop."""
    body = _HEADER.pack(socket.AF_INET, 0, 0, 0, _MAIN_TABLE, _PROTOCOL_STATIC, 0, _RTN_UNICAST, 0)
    return body + attribute(_RTA_OIF, _u32(index)) + attribute(_RTA_GATEWAY, via.packed)


def _local(action: Srv6Action) -> bytes:
    if action.behaviour == "End.DT6":
        kind = attribute(_LOCAL_ACTION, _u32(_ACTION_END_DT6))
        return kind + attribute(_LOCAL_TABLE, _u32(Route.LOCAL_TABLE))
    flavors = attribute(_FLAVOR_OPERATION, _u32(_NEXT_CSID))
    flavors += attribute(_FLAVOR_BLOCK_BITS, bytes([action.block_bits]))
    flavors += attribute(_FLAVOR_USID_BITS, bytes([action.usid_bits]))
    kind = attribute(_LOCAL_ACTION, _u32(_ACTION_END))
    return kind + attribute(_LOCAL_FLAVORS | _NESTED, flavors)


def decode_routes(body: bytes, names: Mapping[int, str]) -> Iterator[Route]:
    """The unicast routes of tables main and local in a message, over these interfaces. The kernel
    lists routes that share a destination as one.
    """
    _, length, _, _, table, _, _, kind, _ = _HEADER.unpack_from(body)
    if table not in (_MAIN_TABLE, Route.LOCAL_TABLE) or kind not in (_RTN_UNICAST, _RTN_LOCAL):
        return
    whole = attributes(body, _HEADER.size)
    dst = IPv6Network((whole.get(_RTA_DST, bytes(16)), length))
    metric = _int(whole, _RTA_PRIORITY)
    shared = whole.get(_RTA_MULTIPATH)
    hops = [(_int(whole, _RTA_OIF), whole)] if shared is None else _hops(shared)
    for index, hop in hops:
        if index in names:
            yield Route(
                dst=dst,
                dev=names[index],
                via=_address(hop.get(_RTA_GATEWAY)),
                src=_address(whole.get(_RTA_PREFSRC)),
                action=_action(hop),
                local=kind == _RTN_LOCAL,
                metric=metric,
                shared=shared is not None,
            )


def _hops(data: bytes) -> Iterator[tuple[int, dict[int, bytes]]]:
    """Interface and attributes of each route that shares a destination."""
    start = 0
    while start + _HOP.size <= len(data):
        length, _, _, index = _HOP.unpack_from(data, start)
        yield index, attributes(data[start : start + length], _HOP.size)
        start += max((length + 3) & ~3, _HOP.size)


def _action(hop: Mapping[int, bytes]) -> Srv6Action | None:
    """The action of a route; None for a route without action or with one that mrc does not use."""
    kind, encap = _int(hop, _RTA_ENCAP_TYPE), attributes(hop.get(_RTA_ENCAP, b""), 0)
    if kind == _LWTUNNEL_SEG6 and (srh := encap.get(_SEG6_IPTUNNEL_SRH)):
        mode, _, _, _, _, first, _, _ = _SRH.unpack_from(srh)
        if mode == _MODE_ENCAP_RED:
            starts = range(_SRH.size + 16 * first, 0, -16)
            segments = tuple(IPv6Address(srh[start : start + 16]) for start in starts)
            return Srv6Action("encap.red", segments)
    if kind == _LWTUNNEL_SEG6_LOCAL:
        behaviour = _int(encap, _LOCAL_ACTION)
        if behaviour == _ACTION_END_DT6 and _int(encap, _LOCAL_TABLE) == Route.LOCAL_TABLE:
            return Srv6Action("End.DT6")
        flavors = attributes(encap.get(_LOCAL_FLAVORS, b""), 0)
        if behaviour == _ACTION_END and _int(flavors, _FLAVOR_OPERATION) == _NEXT_CSID:
            lengths = (_int(flavors, each) for each in (_FLAVOR_BLOCK_BITS, _FLAVOR_USID_BITS))
            return Srv6Action("End", (), *lengths)
    return None


def compare_routes(wanted: Route, found: Route | None) -> None:
    if found == wanted:
        return
    if found is None:
        raise NetlinkError(
            f"route {wanted.dst} dev {wanted.dev}: the kernel accepted it, but does not list it"
        )
    for each in (each for each in fields(Route) if each.compare):
        ours, kernels = getattr(wanted, each.name), getattr(found, each.name)
        if ours != kernels:
            raise NetlinkError(
                f"route {wanted.dst} dev {wanted.dev}: the kernel has {each.name} {kernels}, "
                f"not {ours}" + (f"; it requires {SEG6_NEEDS}" if wanted.action else "")
            )


def _u16(value: int) -> bytes:
    return struct.pack("=H", value)


def _u32(value: int) -> bytes:
    return struct.pack("=I", value)


def _int(found: Mapping[int, bytes], kind: int) -> int:
    """The number in an attribute of any width; 0 without the attribute."""
    return int.from_bytes(found.get(kind, b""), sys.byteorder)


def _address(packed: bytes | None) -> IPv6Address | None:
    return None if packed is None else IPv6Address(packed)
