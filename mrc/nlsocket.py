# SPDX-License-Identifier: Apache-2.0
"""Batched requests and dumps over one netlink socket (uapi/linux/netlink.h).

Knows the framing of netlink: messages, and the attributes in them. What they say is their makers'.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from mrc.errors import NetlinkError

NLM_F_REPLACE, NLM_F_EXCL, NLM_F_CREATE = 0x100, 0x200, 0x400

_NLM_F_REQUEST, _NLM_F_ACK, _NLM_F_DUMP = 0x1, 0x4, 0x300
_NLM_F_DUMP_INTR = 0x10
_NLMSG_ERROR, _NLMSG_DONE = 2, 3
_NLMSGERR_ATTR_MSG = 1
_SOL_NETLINK, _NETLINK_CAP_ACK, _NETLINK_EXT_ACK = 270, 10, 11

_HEADER = struct.Struct("=IHHII")
_ATTRIBUTE = struct.Struct("=HH")
_KIND = 0x3FFF  # the other bits tell of an attribute's layout

# Requests in one datagram: their acknowledgements must fit the receive buffer.
_BATCH = 64
_REPLY_BYTES = 1 << 18
_DUMP_TRIES = 20

# Tunnels take memory of each core from a stock that the kernel fills up in its own time, and many
# at once may exhaust.
_MEMORY_TRIES = 100
_MEMORY_SECONDS = 0.01


@dataclass(frozen=True, slots=True)
class Request:
    """A change that the kernel carries out or refuses."""

    what: str
    """what an error message says could not be done"""
    type: int
    body: bytes
    flags: int = 0
    needs: str = ""
    """what the kernel must have to understand the request"""


def pack(*attributes: tuple[int, bytes]) -> bytes:
    """Attributes, kind and value, as they follow a message or are the value of another one."""
    return b"".join(
        _ATTRIBUTE.pack(_ATTRIBUTE.size + len(value), kind) + value + bytes(-len(value) % 4)
        for kind, value in attributes
    )


def unpack(data: bytes) -> dict[int, bytes]:
    """The value of each kind of attribute."""
    found = {}
    offset = 0
    while offset + _ATTRIBUTE.size <= len(data):
        length, kind = _ATTRIBUTE.unpack_from(data, offset)
        found[kind & _KIND] = data[offset + _ATTRIBUTE.size : offset + length]
        offset += max((length + 3) & ~3, _ATTRIBUTE.size)
    return found


def number(value: int, size: int = 4) -> bytes:
    """The value of an attribute that is a number of so many bytes."""
    return value.to_bytes(size, sys.byteorder)


def read_number(value: bytes) -> int:
    return int.from_bytes(value, sys.byteorder)


def text(value: str) -> bytes:
    """The value of an attribute that is text."""
    return value.encode() + bytes(1)


def read_text(value: bytes) -> str:
    return value.rstrip(bytes(1)).decode()


class NetlinkSocket:
    """A socket; it belongs to the namespace that the calling thread is in when it is made."""

    def __init__(self, protocol: int = socket.NETLINK_ROUTE) -> None:
        self._socket = _open(protocol)
        self._sequence = 0

    def close(self) -> None:
        self._socket.close()

    def request(self, requests: Sequence[Request]) -> None:
        """Carries out all that can be; raises NetlinkError for the first that cannot."""
        for start in range(0, len(requests), _BATCH):
            batch = requests[start : start + _BATCH]
            for _ in range(_MEMORY_TRIES):
                refused = self._exchange(batch)
                if {error.code for _, error in refused} != {errno.ENOMEM}:
                    break
                batch = [request for request, _ in refused]
                time.sleep(_MEMORY_SECONDS)
            if refused:
                raise refused[0][1]

    def _exchange(self, requests: Sequence[Request]) -> list[tuple[Request, NetlinkError]]:
        """What is refused, and why."""
        waiting: dict[int, Request] = {}
        datagram = b""
        for request in requests:
            flags = _NLM_F_REQUEST | _NLM_F_ACK | request.flags
            datagram += self._message(request.type, request.body, flags)
            waiting[self._sequence] = request
        self._send(datagram)
        refused = []
        while waiting:
            for kind, sequence, _, body in _split(self._receive()):
                if kind == _NLMSG_ERROR and sequence in waiting:
                    request = waiting.pop(sequence)
                    if (error := _refusal(request, body)) is not None:
                        refused.append((request, error))
        return refused

    def get(self, kind: int, body: bytes, what: str) -> bytes:
        """One object, as it is now: the body of the answer."""
        self._send(self._message(kind, body, _NLM_F_REQUEST))
        while True:
            for reply, sequence, _, answer in _split(self._receive()):
                if sequence != self._sequence:
                    continue
                if reply == _NLMSG_ERROR:
                    refused = _refusal(Request(what, kind, body), answer)
                    raise refused or NetlinkError(f"cannot {what}: no answer")
                return answer

    def dump(self, kind: int, body: bytes) -> list[bytes]:
        """All objects of a kind, from a dump that no change interrupted: bodies of the answers."""
        for _ in range(_DUMP_TRIES):
            self._send(self._message(kind, body, _NLM_F_REQUEST | _NLM_F_DUMP))
            found, is_consistent = self._read_dump()
            if is_consistent:
                return found
        raise NetlinkError("the kernel's tables change faster than they can be read")

    def _read_dump(self) -> tuple[list[bytes], bool]:
        found: list[bytes] = []
        is_consistent = True
        while True:
            for reply, sequence, flags, body in _split(self._receive()):
                if sequence != self._sequence:
                    continue
                is_consistent = is_consistent and not flags & _NLM_F_DUMP_INTR
                if reply == _NLMSG_ERROR:
                    what = "read from the kernel"
                    refused = _refusal(Request(what, reply, body), body)
                    raise refused or NetlinkError(f"cannot {what}: no answer")
                if reply == _NLMSG_DONE:
                    return found, is_consistent
                found.append(body)

    def _message(self, kind: int, body: bytes, flags: int) -> bytes:
        self._sequence += 1
        length = _HEADER.size + len(body)
        return _HEADER.pack(length, kind, flags, self._sequence, 0) + body

    def _send(self, datagram: bytes) -> None:
        try:
            self._socket.send(datagram)
        except OSError as exc:
            raise NetlinkError(f"cannot write to netlink: {exc}") from exc

    def _receive(self) -> bytes:
        try:
            return self._socket.recv(_REPLY_BYTES)
        except OSError as exc:
            raise NetlinkError(f"cannot read from netlink: {exc}") from exc


def _open(protocol: int) -> socket.socket:
    try:
        sock = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, protocol)
        sock.setsockopt(_SOL_NETLINK, _NETLINK_CAP_ACK, 1)
        sock.setsockopt(_SOL_NETLINK, _NETLINK_EXT_ACK, 1)
        sock.bind((0, 0))
    except OSError as exc:
        raise NetlinkError(f"cannot open a netlink socket: {exc}") from exc
    return sock


def _split(datagram: bytes) -> Iterator[tuple[int, int, int, bytes]]:
    """Type, sequence number, flags and body of each message."""
    offset = 0
    while offset + _HEADER.size <= len(datagram):
        length, kind, flags, sequence, _ = _HEADER.unpack_from(datagram, offset)
        yield kind, sequence, flags, datagram[offset + _HEADER.size : offset + length]
        offset += (length + 3) & ~3


def _refusal(request: Request, answer: bytes) -> NetlinkError | None:
    """What an acknowledgement says; None when the request was carried out."""
    code = -struct.unpack_from("=i", answer)[0]
    if code == 0:
        return None
    reason = os.strerror(code)
    # Behind the code stands the header of the request, then attributes: the kernel's own words.
    words = unpack(answer[4 + _HEADER.size :]).get(_NLMSGERR_ATTR_MSG)
    if words is not None:
        reason += f" ({read_text(words)})"
    if code in (errno.EOPNOTSUPP, errno.ENOENT, errno.EINVAL) and request.needs:
        reason += f"; this needs {request.needs}"
    if code in (errno.EPERM, errno.EACCES):
        reason += "; this needs root, or a user namespace: unshare -Urnm"
    return NetlinkError(f"cannot {request.what}: {reason}", code)
