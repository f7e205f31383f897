# SPDX-License-Identifier: Apache-2.0
"""Unix sockets of SOCK_SEQPACKET between the programs of one host.

What was sent arrives at once, also when its sender has ended since. A writer whose peer does not
read blocks.
"""

from __future__ import annotations

import errno
import itertools
import os
import struct
from collections import deque
from typing import TYPE_CHECKING, Any, Self, cast

from virtual.loop import PROGRAM

if TYPE_CHECKING:
    from virtual.host import Program

_FIRST_FD = 1 << 22  # beyond those of kernel.c
_MOST_ROOM = 212_992  # net.core.wmem_max and wmem_default
_OVERHEAD = 768  # that the kernel counts for each packet
_SO_SNDBUF = 7
_BACKLOG = 64


class Sockets:
    """All such sockets of the simulated hosts."""

    def __init__(self) -> None:
        self._numbers = itertools.count(_FIRST_FD)
        self._listening: dict[tuple[str, str], Socket] = {}
        self.open: dict[int, Socket] = {}

    def made(self, program: Program) -> Socket:
        """A new socket."""
        found = Socket(self, next(self._numbers), program)
        self.open[found.number] = found
        return found

    def listen(self, name: str) -> Socket:
        """As `mrc.agent.socket.listen`."""
        own = _running()
        if (own.host.name, name) in self._listening:
            raise OSError(errno.EADDRINUSE, "Address already in use")
        made = self._listening[own.host.name, name] = self.made(own)
        return made

    async def connect(self, name: str) -> Socket:
        """As `attached.connected`; raises the OSErrors of a real one."""
        own = _running()
        listening = self._listening.get((own.host.name, name))
        if listening is None:
            raise ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused")
        if len(listening.waiting) >= _BACKLOG:
            raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")
        ours, theirs = self.made(own), self.made(listening.program)
        ours.peer, theirs.peer = theirs, ours
        listening.waiting.append(theirs)
        return ours

    def closed(self, number: int) -> None:
        """A socket is no more."""
        found = self.open.pop(number, None)
        for key in [key for key, each in self._listening.items() if each is found]:
            del self._listening[key]

    def killed(self, program: Program) -> None:
        """A program was killed: its sockets are closed."""
        for each in [each for each in self.open.values() if each.program is program]:
            each.close()

    # ---- For the event loop ---------------------------------------------------------------

    def is_ready(self, fd: int) -> bool:
        """Whether it is readable."""
        found = self.open.get(fd)
        return found is not None and found.is_ready

    def is_writable(self, fd: int) -> bool:
        """Whether a quarter of its room is in use at most, as Linux has it."""
        found = self.open.get(fd)
        return found is not None and (found.has_lost_peer or 4 * found.under_way <= found.room)


class Socket:
    """One end of a connection, or a listening socket."""

    def __init__(self, sockets: Sockets, number: int, program: Program) -> None:
        self._sockets, self.number, self.program = sockets, number, program
        self.peer: Socket | None = None
        self.waiting: deque[Socket] = deque()
        """connections that were not yet accepted"""
        self._received: deque[bytes] = deque()
        self.under_way = 0
        """bytes sent that the peer has not read"""
        self.room = _MOST_ROOM
        self._error = 0
        self._closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    @property
    def has_lost_peer(self) -> bool:
        """Whether the other end was closed."""
        return self.peer is not None and self.peer._closed

    @property
    def is_ready(self) -> bool:
        """Whether a read does not wait."""
        return bool(self.waiting or self._received or self._error or self.has_lost_peer)

    def fileno(self) -> int:
        return -1 if self._closed else self.number

    def setblocking(self, flag: bool) -> None:
        assert not flag

    def setsockopt(self, level: int, option: int, value: Any) -> None:
        if option == _SO_SNDBUF:
            self.room = 2 * min(value, _MOST_ROOM)

    def getsockopt(self, level: int, option: int, size: int) -> bytes:
        """SO_PEERCRED."""
        assert self.peer is not None
        return struct.pack("=iII", self.peer.program.number, os.geteuid(), os.getegid())

    def accept(self) -> tuple[Socket, str]:
        if not self.waiting:
            raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")
        return self.waiting.popleft(), ""

    def send(self, data: bytes | bytearray) -> int:
        if self._closed:
            raise OSError(errno.EBADF, "Bad file descriptor")
        if self.peer is None or self.peer._closed:
            raise BrokenPipeError(errno.EPIPE, "Broken pipe")
        if len(data) > self.room:
            raise OSError(errno.EMSGSIZE, "Message too long")
        if self.under_way >= self.room:
            raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")
        self.under_way += len(data) + _OVERHEAD
        self.peer._received.append(bytes(data))  # as a kernel: the sender may wipe its own
        return len(data)

    def recv(self, n: int) -> bytes:
        if self._closed:
            raise OSError(errno.EBADF, "Bad file descriptor")
        if self._error:
            error, self._error = self._error, 0
            raise OSError(error, os.strerror(error))
        if self._received:
            data = self._received.popleft()
            assert self.peer is not None
            self.peer.under_way -= len(data) + _OVERHEAD
            return data[:n]
        if self.has_lost_peer:
            return b""
        raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._sockets.closed(self.number)
        if self._received and self.peer is not None:
            self.peer._error = errno.ECONNRESET
        for each in self.waiting:
            each.close()


def _running() -> Program:
    program: Any = PROGRAM.get()
    assert program is not None, "only a program of a host opens sockets"
    return cast("Program", program)
