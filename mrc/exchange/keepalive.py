# SPDX-License-Identifier: Apache-2.0
"""How long the kernel bears the silence of a TCP connection: for ever, or a few seconds.

Once a QP is connected, silence is no error: the connection may run over the plane that failed.
During the exchange it is one, because another connection may take another plane. The kernel of a
peer whose process is stopped still answers.
"""

from __future__ import annotations

import errno
import socket
from contextlib import suppress

from mrc.errors import ConnectError

_IDLE_SECONDS = 60  # stops middleboxes from dropping a silent connection
_CUT_OFF_SECONDS = 4.0  # with 4 round trips
_CUT_OFF = (errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH, errno.ENETDOWN)


class CutOffError(ConnectError):
    """The connection of an exchange was lost on its way; another one may take another way."""


class Keepalive:
    """The keepalives of one connection."""

    def __init__(self, tcp: socket.socket) -> None:
        self._tcp = tcp
        self._interval = tcp.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL)
        self._rtt: float | None = None  # with a limit, the round trip that it allows for
        tcp.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        tcp.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _IDLE_SECONDS)

    def limit(self, rtt: float | None) -> None:
        """Drops the connection after some seconds and round trips of silence; None: never."""
        if rtt == self._rtt:
            return
        self._rtt = rtt
        most_ms = 0 if rtt is None else int(1000 * (_CUT_OFF_SECONDS + 4 * rtt))
        for option, value in (
            (socket.TCP_KEEPINTVL, self._interval if rtt is None else 1),
            (socket.TCP_KEEPIDLE, _IDLE_SECONDS if rtt is None else 1),
            (socket.TCP_USER_TIMEOUT, most_ms),
        ):
            with suppress(OSError, ValueError):  # it is closed; uvloop raises a ValueError then
                self._tcp.setsockopt(socket.IPPROTO_TCP, option, value)

    def explain(self, error: OSError) -> ConnectError | None:
        """The error for this end of the connection, if the silence was limited."""
        if self._rtt is not None and error.errno in _CUT_OFF:
            return CutOffError("the connection of the exchange was cut off on its way")
        return None
