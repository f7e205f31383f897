# SPDX-License-Identifier: Apache-2.0
"""The ports of rdma_cm on one host: which id has which. They are not those of TCP. Pure."""

from __future__ import annotations

import errno
import random

from msgspec import Struct

from mrc.fabric.hostconfig import IpAddress

_EPHEMERAL = range(32768, 61000)
_PRIVILEGED = 1024  # smaller ones are root's
_MOST = 1 << 16  # ids with a port


class CmError(Exception):
    """A call of a program fails with this errno."""

    def __init__(self, number: int) -> None:
        super().__init__(errno.errorcode[number])
        self.number = number


class Bound(Struct, eq=False):
    """An id with a port."""

    gid: IpAddress | None
    """None: all addresses"""
    port: int
    shares: bool = False
    """others may have the port too, while nobody listens"""
    backlog: int = 0
    """connections that may wait for the program; 0: it does not listen"""

    def meets(self, gid: IpAddress | None) -> bool:
        """Whether a peer could mean both."""
        return self.gid is None or gid is None or self.gid == gid


class CmPorts:
    """Who has a port, and who listens there."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._bound: dict[int, list[Bound]] = {}
        self._count = 0

    def bind(
        self, gid: IpAddress | None, port: int, *, shares: bool = False, root: bool = False
    ) -> Bound:
        """Takes a port, or any free one for 0; raises CmError."""
        if self._count >= _MOST:
            raise CmError(errno.ENOMEM)
        if 0 < port < _PRIVILEGED and not root:
            raise CmError(errno.EACCES)
        made = Bound(gid, port or self._free(), shares)
        others = self._others(made)
        if any(not (shares and each.shares) or each.backlog for each in others):
            raise CmError(errno.EADDRINUSE)
        self._bound.setdefault(made.port, []).append(made)
        self._count += 1
        return made

    def _others(self, bound: Bound) -> list[Bound]:
        at_port = self._bound.get(bound.port, [])
        return [each for each in at_port if each is not bound and each.meets(bound.gid)]

    def _free(self) -> int:
        first = self._rng.choice(_EPHEMERAL)
        ports: list[int] = [*range(first, _EPHEMERAL.stop), *range(_EPHEMERAL.start, first)]
        for port in ports:
            if port not in self._bound:
                return port
        raise CmError(errno.EADDRNOTAVAIL)

    def listen(self, bound: Bound, backlog: int) -> None:
        """From now on peers reach it; raises CmError if another id has the port too."""
        if any(True for _ in self._others(bound)):
            raise CmError(errno.EADDRINUSE)
        bound.backlog = backlog

    def listener(self, gid: IpAddress, port: int) -> Bound | None:
        """Who listens there."""
        return next((b for b in self._bound.get(port, []) if b.backlog and b.meets(gid)), None)

    def free(self, bound: Bound) -> None:
        """The id has ended."""
        at_port = self._bound[bound.port]
        at_port.remove(bound)
        self._count -= 1
        if not at_port:
            del self._bound[bound.port]
