# SPDX-License-Identifier: Apache-2.0
"""What a host's file system adds to the real one: locks that end with their program, and errors."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from virtual.loop import PROGRAM

if TYPE_CHECKING:
    from virtual.world import World

_ROOMY = os.statvfs_result(
    (4096, 4096, 1 << 30, 1 << 30, 1 << 30, 1 << 20, 1 << 20, 1 << 20, 0, 255)
)
_WRITES = ("pwrite", "write", "posix_fallocate", "fdatasync", "replace", "link", "mkdir")


class Disk:
    """The disk of one host."""

    def __init__(self) -> None:
        self.error = 0
        """errno of every write, or 0"""
        self._opened: dict[int, object] = {}  # which program has the descriptor

    def opened(self, fd: int) -> int:
        self._opened[fd] = PROGRAM.get()
        return fd

    def closed(self, fd: int) -> None:
        self._opened.pop(fd, None)

    def end(self, program: object) -> None:
        """The program was killed: its descriptors hold no locks any more. They stay open until
        their objects end, so that no number is used twice.
        """
        for fd in [fd for fd, owner in self._opened.items() if owner is program]:
            with suppress(OSError):
                fcntl.flock(fd, fcntl.LOCK_UN)
            del self._opened[fd]


def replace_calls(world: World) -> None:
    """The system calls of programs of hosts go through their disks."""
    real_open, real_close = os.open, os.close

    def opened(*args: Any, **kwargs: Any) -> int:
        fd = real_open(*args, **kwargs)
        disk = _disk()
        return fd if disk is None else disk.opened(fd)

    def closed(fd: int) -> None:
        disk = _disk()
        if disk is not None:
            disk.closed(fd)
        real_close(fd)

    world.replace(os, "open", opened)
    world.replace(os, "close", closed)
    world.replace(os, "fstatvfs", lambda fd: _ROOMY)
    for name in _WRITES:
        world.replace(os, name, _failing(getattr(os, name)))


def _failing(real: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        disk = _disk()
        if disk is not None and disk.error:
            raise OSError(disk.error, os.strerror(disk.error))
        return real(*args, **kwargs)

    return call


def _disk() -> Disk | None:
    program: Any = PROGRAM.get()
    return None if program is None else program.host.disk


FULL, BROKEN = errno.ENOSPC, errno.EIO
