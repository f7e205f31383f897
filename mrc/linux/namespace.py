# SPDX-License-Identifier: Apache-2.0
"""A network namespace whose sockets another process opens, so that a Context can be in it.

A socket belongs to the namespace in which it was made; bind, connect and setsockopt act there,
whoever calls them. So a process in the namespace makes the sockets, and this one gets their
descriptors: it needs no privilege for that, and no thread of it has to enter the namespace, which
an ordinary user's process with several threads cannot.

As a program, this file is that process, and standard input is its channel, a SOCK_SEQPACKET of Unix
(so it imports nothing of mrc). A request is three int32, the arguments of socket(2), and in
SCM_RIGHTS the socket for its answer: several threads may thus ask at once. A name behind the
integers is a request to resolve it. The answer is an int32, which is 0 or an errno, and behind it
the descriptor, or the addresses as text with spaces between. csrc/io/udp.c asks, too.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
import sys
import threading
from contextlib import suppress
from typing import NamedTuple

_REQUEST = struct.Struct("=iii")
_ANSWER = struct.Struct("=i")
_MOST_BYTES = 1 << 16
_ANSWER_SECONDS = 10.0  # to make a socket
_RESOLVE_SECONDS = 60.0  # name servers may be silent


class NetworkNamespace(NamedTuple):
    """Where the sockets of a Context are: in the network namespace of the process at the other end
    of `channel`; None: in that of this process.
    """

    channel: socket.socket | None = None
    """A Unix socket to a process in the namespace."""

    @staticmethod
    def program() -> list[str]:
        """Arguments of the process; its standard input is the other end of the channel."""
        return [sys.executable, "-I", "-S", __file__]

    @property
    def fd(self) -> int:
        """`namespace_fd` of `struct mrc_ctx_config`."""
        return 0 if self.channel is None else self.channel.fileno()

    def socket(self, family: int, kind: int, protocol: int = 0) -> socket.socket:
        """A socket in the namespace, which is not inherited. Raises OSError; TimeoutError if the
        process does not answer.
        """
        if self.channel is None:
            return socket.socket(family, kind, protocol)
        _, descriptors = self._ask(_REQUEST.pack(family, kind, protocol), _ANSWER_SECONDS)
        if not descriptors:
            raise OSError(errno.EPROTO, os.strerror(errno.EPROTO))
        return socket.socket(fileno=descriptors[0])

    def addresses(self, name: str, flags: int = 0) -> list[str]:
        """The addresses that a name has there, each with its zone if it has one. Waits for name
        servers. `flags`: of getaddrinfo(3). Raises socket.gaierror or UnicodeError.
        """
        if self.channel is None:
            found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM, flags=flags)
            return [numeric(address) for *_, address in found]
        request = _REQUEST.pack(0, socket.SOCK_STREAM, flags) + name.encode("idna")
        try:
            return self._ask(request, _RESOLVE_SECONDS)[0].decode().split()
        except OSError as error:
            raise socket.gaierror(error.errno, error.strerror) from error

    def _ask(self, request: bytes, seconds: float) -> tuple[bytes, list[int]]:
        """What stands behind the errno of the answer, and its descriptors. Raises OSError."""
        assert self.channel is not None
        own, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with own:
            with theirs:
                socket.send_fds(self.channel, [request], [theirs.fileno()])
            own.settimeout(seconds)
            # Not socket.recv_fds: it drops the flag before Python 3.12.
            data, ancillary, *_ = own.recvmsg(
                _MOST_BYTES, socket.CMSG_LEN(_ANSWER.size), socket.MSG_CMSG_CLOEXEC
            )
        descriptors = [_ANSWER.unpack(rights)[0] for *_, rights in ancillary]
        if len(data) < _ANSWER.size:
            raise ConnectionResetError(errno.ECONNRESET, "the process of the namespace has ended")
        (code,) = _ANSWER.unpack_from(data)
        if code:
            raise OSError(code, data[_ANSWER.size :].decode() or os.strerror(code))
        return data[_ANSWER.size :], descriptors


OWN = NetworkNamespace()
"""that of this process"""


def numeric(found: tuple[str | int | bytes, ...]) -> str:
    """The address of a result of getaddrinfo, with its zone if it has one."""
    zone = found[3] if len(found) > 3 else 0
    return f"{found[0]!s}%{zone!s}" if zone else str(found[0])


# ---- The process ---------------------------------------------------------------------------------


def _serve(channel: socket.socket) -> None:
    """Answers until all other ends of the channel are closed."""
    while True:
        data, descriptors, *_ = socket.recv_fds(channel, _MOST_BYTES, 1)
        if not data:
            return
        reply = socket.socket(fileno=descriptors[0])
        family, kind, flags = _REQUEST.unpack_from(data)
        if name := data[_REQUEST.size :].decode():
            threading.Thread(target=_resolve, args=(reply, name, flags), daemon=True).start()
        else:
            _open(reply, family, kind, flags)


def _open(reply: socket.socket, family: int, kind: int, protocol: int) -> None:
    with reply, suppress(ConnectionError):  # the other side has ended
        try:
            made = socket.socket(family, kind, protocol)
        except OSError as error:
            reply.send(_ANSWER.pack(error.errno or errno.EPROTO))
            return
        with made:
            socket.send_fds(reply, [_ANSWER.pack(0)], [made.fileno()])


def _resolve(reply: socket.socket, name: str, flags: int) -> None:
    with reply, suppress(ConnectionError):
        try:
            found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM, flags=flags)
        except OSError as error:
            reply.send(_ANSWER.pack(error.errno or errno.EPROTO) + str(error.strerror).encode())
            return
        reply.send(_ANSWER.pack(0) + " ".join(numeric(address) for *_, address in found).encode())


if __name__ == "__main__":
    _serve(socket.socket(fileno=0))
