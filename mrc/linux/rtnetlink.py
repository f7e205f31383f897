# SPDX-License-Identifier: Apache-2.0
"""Dumps over one rtnetlink socket, and the interfaces of a namespace.

Interfaces are read without pyroute2, which loads more slowly than all of mrc; linux/if_link.h and
linux/if_addr.h define their layouts.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from ipaddress import (
    IPv4Address,
    IPv4Interface,
    IPv6Address,
    IPv6Interface,
    ip_address,
    ip_interface,
)
from typing import Self

from msgspec import Struct

from mrc.errors import NetlinkError
from mrc.linux import netns
from mrc.linux.namespace import OWN, NetworkNamespace

_NETLINK_ROUTE = 0
_NLM_F_REQUEST, _NLM_F_DUMP = 0x1, 0x300
_NLM_F_DUMP_INTR = 0x10
_NLMSG_ERROR, _NLMSG_DONE = 2, 3
_NLMSGERR_ATTR_MSG = 1
_TYPE = 0x3FFF  # without the flags of nested attributes
_SOL_NETLINK, _NETLINK_CAP_ACK, _NETLINK_EXT_ACK = 270, 10, 11

_REPLY_BYTES = 1 << 18
_HEADER_BYTES = 16
_DUMP_TRIES = 20


class Rtnetlink:
    """A socket in a namespace, which may be a named one. A context manager."""

    def __init__(
        self, namespace: str | NetworkNamespace = OWN, protocol: int = _NETLINK_ROUTE
    ) -> None:
        """OWN: that of the calling thread."""
        if isinstance(namespace, str):
            with netns.inside(namespace):
                self._socket = _open(OWN, protocol)
        else:
            self._socket = _open(namespace, protocol)
        self._sequence = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        self._socket.close()

    def dump(self, kind: int, body: bytes) -> list[bytes]:
        """Reads all objects of a kind: the bytes behind each message header. Repeats the dump if a
        change interrupted it.
        """
        for _ in range(_DUMP_TRIES):
            self._send(self._framed(kind, body, _NLM_F_REQUEST | _NLM_F_DUMP))
            found, all_flags = [], 0
            for reply, flags, data in self._replies("read from the kernel"):
                all_flags |= flags
                if reply == _NLMSG_DONE:
                    break
                found.append(data[_HEADER_BYTES:])
            if not all_flags & _NLM_F_DUMP_INTR:
                return found
        raise NetlinkError(
            f"cannot read from the kernel: its tables changed during {_DUMP_TRIES} reads, try again"
        )

    def _replies(self, what: str) -> Iterator[tuple[int, int, bytes]]:
        """Type, flags and all bytes of each reply to the last request."""
        while True:
            for kind, sequence, flags, data in self._received():
                if sequence != self._sequence:
                    continue
                if kind == _NLMSG_ERROR:
                    raise self._refusal(data, what) or NetlinkError(f"cannot {what}: no answer")
                yield kind, flags, data

    def _framed(self, kind: int, body: bytes, flags: int) -> bytes:
        self._sequence += 1
        length = _HEADER_BYTES + len(body)
        return struct.pack("=IHHII", length, kind, flags, self._sequence, 0) + body

    def _send(self, datagram: bytes) -> None:
        try:
            self._socket.send(datagram)
        except OSError as exc:
            raise NetlinkError(f"cannot write to rtnetlink: {exc}") from exc

    def _received(self) -> Iterator[tuple[int, int, int, bytes]]:
        """Type, sequence number, flags and all bytes of each message in the next datagram."""
        try:
            datagram = self._socket.recv(_REPLY_BYTES)
        except OSError as exc:
            raise NetlinkError(f"cannot read from rtnetlink: {exc}") from exc
        offset = 0
        while offset + 16 <= len(datagram):
            length, kind, flags, sequence = struct.unpack_from("=IHHI", datagram, offset)
            yield kind, sequence, flags, datagram[offset : offset + length]
            offset += (length + 3) & ~3

    @staticmethod
    def _refusal(
        answer: bytes, what: str | Callable[[], str], needs: str = "", done: int | None = None
    ) -> NetlinkError | None:
        """The error in an acknowledgement; None if the kernel carried out the request, or `done`
        says that this was done before. `what`: the action, or a function that returns it; `needs`:
        the kernel version or option that it requires. Netlink of mrc.testbed uses it, too.
        """
        code = -struct.unpack_from("=i", answer, 16)[0]
        if code in (0, done):
            return None
        reason = os.strerror(code)
        # The error code, the request's header, then attributes. One holds the kernel's message.
        if words := attributes(answer, 36).get(_NLMSGERR_ATTR_MSG):
            reason += f" ({words.rstrip(bytes(1)).decode()})"
        if code in (errno.EOPNOTSUPP, errno.ENOENT, errno.EINVAL) and needs:
            reason += f"; it requires {needs}"
        if code in (errno.EPERM, errno.EACCES):
            reason += "; it requires root, or a user namespace: unshare -Urnm"
        return NetlinkError(f"cannot {what if isinstance(what, str) else what()}: {reason}", code)


def _open(namespace: NetworkNamespace, protocol: int) -> socket.socket:
    try:
        kind = socket.SOCK_RAW | socket.SOCK_CLOEXEC
        sock = namespace.socket(socket.AF_NETLINK, kind, protocol)
        sock.setsockopt(_SOL_NETLINK, _NETLINK_CAP_ACK, 1)
        sock.setsockopt(_SOL_NETLINK, _NETLINK_EXT_ACK, 1)
        sock.bind((0, 0))
    except OSError as exc:
        raise NetlinkError(f"cannot open an rtnetlink socket: {exc}") from exc
    return sock


def attributes(data: bytes, start: int) -> dict[int, bytes]:
    """The payload of each attribute from offset `start` on, by its type."""
    found = {}
    while start + 4 <= len(data):
        length, kind = struct.unpack_from("=HH", data, start)
        found[kind & _TYPE] = data[start + 4 : start + length]
        start += max((length + 3) & ~3, 4)
    return found


# ---- Interfaces ----------------------------------------------------------------------------------


_RTM_GETLINK, _RTM_GETADDR, _RTM_GETROUTE = 18, 22, 26
_LINK = struct.Struct("=BxHiII")  # family, type, index, flags, change
_ADDRESS = struct.Struct("=BBBBI")  # family, bits of the prefix, flags, scope, index
_ROUTE = struct.Struct("=BBB9x")  # family, bits of the destination and of the source

_IFLA_IFNAME, _IFLA_MTU, _IFLA_OPERSTATE, _IFLA_AF_SPEC, _IFLA_CARRIER = 3, 4, 16, 26, 33
_IFLA_INET6_CONF = 2
_DEVCONF_USE_TEMPADDR = 10
_IFA_ADDRESS, _IFA_LOCAL, _IFA_FLAGS = 1, 2, 8
_RTA_DST, _RTA_SRC, _RTA_OIF = 1, 2, 4

_IFF_UP = 0x1
_OPERSTATE_UNKNOWN, _OPERSTATE_UP = 0, 6
_IFA_F_TEMPORARY = 0x1  # of an IPv4 address: IFA_F_SECONDARY
_IFA_F_OPTIMISTIC, _IFA_F_DADFAILED, _IFA_F_DEPRECATED, _IFA_F_TENTATIVE = 0x4, 0x8, 0x20, 0x40

_Flagged = tuple[int, IPv4Interface | IPv6Interface]
"""An address behind its flags."""


class Interface(Struct, frozen=True):
    """A network interface: its state at the time of the read."""

    name: str
    index: int
    mtu: int
    up: bool
    """able to carry packets: administratively up, and with carrier if it reports one"""
    addresses: tuple[IPv4Interface | IPv6Interface, ...]
    """its addresses to which a socket can bind, in the order in which the kernel prefers them as
    sources (RFC 6724, rules 3 and 7)"""
    enabled: bool = True
    """administratively up"""
    deprecated: frozenset[IPv4Address | IPv6Address] = frozenset()
    """those of its addresses that nothing new should use, such as one that moves between hosts"""

    @classmethod
    def all(cls, namespace: str | NetworkNamespace = OWN) -> list[Interface]:
        """The interfaces of this namespace, or of another one, by index. Requires no privilege.

        Raises NetlinkError.
        """
        with Rtnetlink(namespace) as rtnetlink:
            return cls.read(rtnetlink)

    @staticmethod
    def read(rtnetlink: Rtnetlink) -> list[Interface]:
        """The interfaces of the socket's namespace, by index."""
        links = rtnetlink.dump(_RTM_GETLINK, bytes(_LINK.size))
        addresses: dict[int, list[_Flagged]] = {}
        for data in rtnetlink.dump(_RTM_GETADDR, bytes(_ADDRESS.size)):
            if (found := _address(data)) is not None:
                addresses.setdefault(found[0], []).append(found[1])
        every = (Interface.decode(data, addresses) for data in links)
        return sorted(every, key=lambda each: each.index)

    @staticmethod
    def towards(
        peer: IPv4Address | IPv6Address,
        own: IPv4Address | IPv6Address,
        namespace: NetworkNamespace = OWN,
    ) -> int:
        """Index of the interface by which this host sends to `peer` from this address of its own.

        Raises NetlinkError.
        """
        family = socket.AF_INET6 if peer.version == 6 else socket.AF_INET
        body = _ROUTE.pack(family, peer.max_prefixlen, own.max_prefixlen)
        for kind, address in ((_RTA_DST, peer), (_RTA_SRC, own)):
            body += struct.pack("=HH", 4 + len(address.packed), kind) + address.packed
        with Rtnetlink(namespace) as rtnetlink:
            rtnetlink._send(rtnetlink._framed(_RTM_GETROUTE, body, _NLM_F_REQUEST))
            _, _, reply = next(rtnetlink._replies(f"find the route to {peer}"))
        found = attributes(reply, _HEADER_BYTES + _ROUTE.size)
        return int(struct.unpack("=I", found[_RTA_OIF])[0])

    @staticmethod
    def decode(data: bytes, addresses: Mapping[int, Sequence[_Flagged]]) -> Interface:
        """From what a dump has for it, and the addresses of all interfaces by index."""
        _, _, index, flags, _ = _LINK.unpack_from(data)
        found = attributes(data, _LINK.size)
        # Loopback and tunnels report no carrier, so their state is unknown. After a loss of
        # carrier, older kernels (6.1) update the state up to a second late.
        carrier = found.get(_IFLA_CARRIER, b"\1")[0] != 0
        state = found.get(_IFLA_OPERSTATE, b"\0")[0]
        enabled = bool(flags & _IFF_UP)
        own = _preferred(addresses.get(index, ()), found.get(_IFLA_AF_SPEC, b""))
        return Interface(
            name=found[_IFLA_IFNAME].rstrip(b"\0").decode(),
            index=index,
            mtu=struct.unpack("=I", found[_IFLA_MTU])[0],
            up=enabled and carrier and state in {_OPERSTATE_UP, _OPERSTATE_UNKNOWN},
            addresses=tuple(address for _, address in own),
            enabled=enabled,
            deprecated=frozenset(each.ip for its, each in own if its & _IFA_F_DEPRECATED),
        )


def _preferred(addresses: Sequence[_Flagged], families: bytes) -> list[_Flagged]:
    """The addresses of an interface, those first that the kernel prefers as sources. `families`:
    the settings that the link has for each address family.
    """
    ipv6 = attributes(attributes(families, 0).get(socket.AF_INET6, b""), 0)
    settings = ipv6.get(_IFLA_INET6_CONF, b"")[4 * _DEVCONF_USE_TEMPADDR :][:4]
    temporary_first = int.from_bytes(settings, sys.byteorder, signed=True) >= 2
    avoided = _IFA_F_DEPRECATED | _IFA_F_OPTIMISTIC
    return sorted(
        addresses,
        key=lambda each: (
            bool(each[0] & avoided),
            bool(each[0] & _IFA_F_TEMPORARY) != (temporary_first and each[1].version == 6),
        ),
    )


def _address(data: bytes) -> tuple[int, _Flagged] | None:
    """Index of the interface and the address with its flags; None if no socket can bind to it,
    because duplicate address detection is not done or has failed.
    """
    _, bits, flags, _, index = _ADDRESS.unpack_from(data)
    found = attributes(data, _ADDRESS.size)
    # On a point-to-point link IFA_ADDRESS is the peer's address and IFA_LOCAL is ours.
    packed = found.get(_IFA_LOCAL) or found.get(_IFA_ADDRESS)
    if _IFA_FLAGS in found:  # the header has room for 8 of them only
        (flags,) = struct.unpack("=I", found[_IFA_FLAGS])
    pending = flags & _IFA_F_TENTATIVE and not flags & _IFA_F_OPTIMISTIC
    if packed is None or pending or flags & _IFA_F_DADFAILED:
        return None
    return index, (flags, ip_interface((ip_address(packed), bits)))
