# SPDX-License-Identifier: Apache-2.0
"""Batched requests and dumps over one rtnetlink socket, and the interfaces of a namespace.

This module handles netlink's framing. The contents are pyroute2's message objects, or bytes.
pyroute2's own sockets each run an event loop, so they block beside a loop that already runs.
Interfaces are read without pyroute2, which loads more slowly than all of mrc; linux/if_link.h and
linux/if_addr.h define their layouts.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from ipaddress import IPv4Interface, IPv6Interface, ip_address, ip_interface
from typing import Any, Self

from msgspec import Struct

from mrc.errors import NetlinkError
from mrc.linux import netns

NLM_F_REPLACE, NLM_F_EXCL, NLM_F_CREATE, NLM_F_APPEND = 0x100, 0x200, 0x400, 0x800

NETLINK_GENERIC = 16

_NETLINK_ROUTE = 0
_NLM_F_REQUEST, _NLM_F_ACK, _NLM_F_DUMP = 0x1, 0x4, 0x300
_NLM_F_DUMP_INTR = 0x10
_NLMSG_ERROR, _NLMSG_DONE = 2, 3
_NLMSGERR_ATTR_MSG = 1
_TYPE = 0x3FFF  # without the flags of nested attributes
_SOL_NETLINK, _NETLINK_CAP_ACK, _NETLINK_EXT_ACK = 270, 10, 11

# Requests in one datagram. Their acknowledgements must fit the receive buffer.
_BATCH = 64
_REPLY_BYTES = 1 << 18
_HEADER_BYTES = 16
_DUMP_TRIES = 20
_PAUSE_SECONDS = 0.002
_MEMORY_SECONDS = 5.0


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


class Rtnetlink:
    """A socket in the namespace that the calling thread has when it makes the object."""

    def __init__(self, protocol: int = _NETLINK_ROUTE) -> None:
        self._socket = _open(protocol)
        self._sequence = 0

    @classmethod
    def inside(cls, namespace: str | None) -> Self:
        """A socket in a named namespace; None: in the calling thread's namespace."""
        if namespace is None:
            return cls()
        with netns.inside(namespace):
            return cls()

    def close(self) -> None:
        self._socket.close()

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
            for kind, sequence, _, body in _split(self._receive()):
                if kind == _NLMSG_ERROR and sequence in waiting:
                    request = waiting.pop(sequence)
                    refusal = _refusal(request, body)
                    if refusal is not None and refusal.code == errno.ENOMEM and not is_late:
                        repeated.append(request)
                    else:
                        refused = refused or refusal
        if refused is not None:
            raise refused
        return repeated

    def get(self, kind: int, body: bytes, what: str) -> bytes:
        """Reads one object: the bytes behind its message header."""
        self._send(self._framed(kind, body, _NLM_F_REQUEST))
        return next(self._replies(what))[2][_HEADER_BYTES:]

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
            for kind, sequence, flags, data in _split(self._receive()):
                if sequence != self._sequence:
                    continue
                if kind == _NLMSG_ERROR:
                    refused = _refusal(NetlinkRequest(what, kind, None), data)
                    raise refused or NetlinkError(f"cannot {what}: no answer")
                yield kind, flags, data

    def _framed(self, kind: int, body: bytes, flags: int) -> bytes:
        self._sequence += 1
        length = _HEADER_BYTES + len(body)
        return struct.pack("=IHHII", length, kind, flags, self._sequence, 0) + body

    def _encode(self, kind: int, message: Any, flags: int) -> bytes:
        if isinstance(message, bytes):
            return self._framed(kind, message, flags)
        self._sequence += 1
        message["header"] |= {"type": kind, "flags": flags, "sequence_number": self._sequence}
        message.reset()
        message.encode()
        return bytes(message.data)

    def _send(self, datagram: bytes) -> None:
        try:
            self._socket.send(datagram)
        except OSError as exc:
            raise NetlinkError(f"cannot write to rtnetlink: {exc}") from exc

    def _receive(self) -> bytes:
        try:
            return self._socket.recv(_REPLY_BYTES)
        except OSError as exc:
            raise NetlinkError(f"cannot read from rtnetlink: {exc}") from exc


def _open(protocol: int) -> socket.socket:
    try:
        sock = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, protocol)
        sock.setsockopt(_SOL_NETLINK, _NETLINK_CAP_ACK, 1)
        sock.setsockopt(_SOL_NETLINK, _NETLINK_EXT_ACK, 1)
        sock.bind((0, 0))
    except OSError as exc:
        raise NetlinkError(f"cannot open an rtnetlink socket: {exc}") from exc
    return sock


def _split(datagram: bytes) -> Iterator[tuple[int, int, int, bytes]]:
    """Type, sequence number, flags and all bytes of each message."""
    offset = 0
    while offset + 16 <= len(datagram):
        length, kind, flags, sequence = struct.unpack_from("=IHHI", datagram, offset)
        yield kind, sequence, flags, datagram[offset : offset + length]
        offset += (length + 3) & ~3


def attribute(kind: int, payload: bytes) -> bytes:
    """An attribute as bytes."""
    length = 4 + len(payload)
    return struct.pack("=HH", length, kind) + payload + bytes(-length & 3)


def attributes(data: bytes, start: int) -> dict[int, bytes]:
    """The payload of each attribute from offset `start` on, by its type."""
    found = {}
    while start + 4 <= len(data):
        length, kind = struct.unpack_from("=HH", data, start)
        found[kind & _TYPE] = data[start + 4 : start + length]
        start += max((length + 3) & ~3, 4)
    return found


def _refusal(request: NetlinkRequest, answer: bytes) -> NetlinkError | None:
    """The error in an acknowledgement; None if the kernel carried out the request."""
    code = -struct.unpack_from("=i", answer, 16)[0]
    if code in (0, request.done):
        return None
    reason = os.strerror(code)
    # The error code, the request's header, then attributes. One holds the kernel's message.
    if words := attributes(answer, 36).get(_NLMSGERR_ATTR_MSG):
        reason += f" ({words.rstrip(bytes(1)).decode()})"
    if code in (errno.EOPNOTSUPP, errno.ENOENT, errno.EINVAL) and request.needs:
        reason += f"; it requires {request.needs}"
    if code in (errno.EPERM, errno.EACCES):
        reason += "; it requires root, or a user namespace: unshare -Urnm"
    what = request.what if isinstance(request.what, str) else request.what()
    return NetlinkError(f"cannot {what}: {reason}", code)


# ---- Interfaces ----------------------------------------------------------------------------------


_RTM_GETLINK, _RTM_GETADDR = 18, 22
_LINK = struct.Struct("=BxHiII")  # family, type, index, flags, change
_ADDRESS = struct.Struct("=BBBBI")  # family, bits of the prefix, flags, scope, index

_IFLA_IFNAME, _IFLA_MTU, _IFLA_OPERSTATE, _IFLA_CARRIER = 3, 4, 16, 33
_IFA_ADDRESS, _IFA_LOCAL, _IFA_FLAGS = 1, 2, 8

_IFF_UP = 0x1
_OPERSTATE_UNKNOWN, _OPERSTATE_UP = 0, 6
_IFA_F_OPTIMISTIC, _IFA_F_DADFAILED, _IFA_F_TENTATIVE = 0x4, 0x8, 0x40


class Interface(Struct, frozen=True):
    """A network interface: its state at the time of the read."""

    name: str
    index: int
    mtu: int
    up: bool
    """able to carry packets: administratively up, and with carrier if it reports one"""
    addresses: tuple[IPv4Interface | IPv6Interface, ...]
    """its addresses to which a socket can bind"""
    enabled: bool = True
    """administratively up"""

    @classmethod
    def all(cls, namespace: str | None = None) -> list[Interface]:
        """The interfaces of this namespace, or of a named one, by index. Requires no privilege.

        Raises NetlinkError.
        """
        rtnetlink = Rtnetlink.inside(namespace)
        try:
            return cls.read(rtnetlink)
        finally:
            rtnetlink.close()

    @staticmethod
    def read(rtnetlink: Rtnetlink) -> list[Interface]:
        """The interfaces of the socket's namespace, by index."""
        links = rtnetlink.dump(_RTM_GETLINK, bytes(_LINK.size))
        addresses: dict[int, list[IPv4Interface | IPv6Interface]] = {}
        for data in rtnetlink.dump(_RTM_GETADDR, bytes(_ADDRESS.size)):
            if (found := _address(data)) is not None:
                addresses.setdefault(found[0], []).append(found[1])
        return sorted((_interface(data, addresses) for data in links), key=lambda each: each.index)


def is_up(rtnetlink: Rtnetlink, index: int, name: str) -> bool:
    """Whether an interface can carry packets. This request makes the kernel update the state."""
    body = _LINK.pack(0, 0, index, 0, 0)
    data = rtnetlink.get(_RTM_GETLINK, body, f"read the state of {name}")
    return _is_up(_LINK.unpack_from(data)[3], attributes(data, _LINK.size))


def _interface(data: bytes, addresses: dict[int, list[IPv4Interface | IPv6Interface]]) -> Interface:
    _, _, index, flags, _ = _LINK.unpack_from(data)
    found = attributes(data, _LINK.size)
    return Interface(
        name=found[_IFLA_IFNAME].rstrip(b"\0").decode(),
        index=index,
        mtu=struct.unpack("=I", found[_IFLA_MTU])[0],
        up=_is_up(flags, found),
        addresses=tuple(addresses.get(index, ())),
        enabled=bool(flags & _IFF_UP),
    )


def _is_up(flags: int, found: dict[int, bytes]) -> bool:
    # Loopback and tunnels report no carrier, so their state is unknown. After a loss of carrier,
    # older kernels (6.1) update the state up to a second late.
    carrier = found.get(_IFLA_CARRIER, b"\1")[0] != 0
    state = found.get(_IFLA_OPERSTATE, b"\0")[0]
    return bool(flags & _IFF_UP) and carrier and state in {_OPERSTATE_UP, _OPERSTATE_UNKNOWN}


def _address(data: bytes) -> tuple[int, IPv4Interface | IPv6Interface] | None:
    """Index of the interface and the address; None before duplicate address detection is done."""
    _, bits, flags, _, index = _ADDRESS.unpack_from(data)
    found = attributes(data, _ADDRESS.size)
    # On a point-to-point link IFA_ADDRESS is the peer's address and IFA_LOCAL is ours.
    packed = found.get(_IFA_LOCAL) or found.get(_IFA_ADDRESS)
    if _IFA_FLAGS in found:
        (flags,) = struct.unpack("=I", found[_IFA_FLAGS])
    failing = flags & (_IFA_F_TENTATIVE | _IFA_F_DADFAILED) and not flags & _IFA_F_OPTIMISTIC
    if packed is None or failing:
        return None
    return index, ip_interface((ip_address(packed), bits))
