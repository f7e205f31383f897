# SPDX-License-Identifier: Apache-2.0
"""What a host's file system adds to the real one: locks that end with their program, errors, and
the loss of what was not synced.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import mrc.transfer.files
from virtual.loop import PROGRAM
from virtual.unsynced import Unsynced

if TYPE_CHECKING:
    from virtual.world import World

_ROOMY = os.statvfs_result(
    (4096, 4096, 1 << 30, 1 << 30, 1 << 30, 1 << 20, 1 << 20, 1 << 20, 0, 255)
)
_WRITES = ("pwrite", "write", "posix_fallocate", "fdatasync", "fsync", "replace", "link", "mkdir")
_FOR_WRITES = os.O_WRONLY | os.O_RDWR
Names = Callable[[Any, Any], list[tuple[Any, Any]]]
# What stands for something else after a call: names, each with the descriptor of its folder.
_CHANGES: dict[str, Names] = {
    "replace": lambda a, k: [(a[1], k.get("dst_dir_fd")), (a[0], k.get("src_dir_fd"))],
    "link": lambda a, k: [(a[1], k.get("dst_dir_fd"))],
    "symlink": lambda a, k: [(a[1], k.get("dir_fd"))],
    "unlink": lambda a, k: [(a[0], k.get("dir_fd"))],
    "mkdir": lambda a, k: [(a[0], k.get("dir_fd"))],
}


class Disk:
    """The disk of one host, whose files are in `folder`."""

    def __init__(self, folder: Path) -> None:
        self.error = 0
        """errno of every write, or 0"""
        self.unsynced = Unsynced(folder.resolve())
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

    def opened(name: Any, flags: int, *args: Any, dir_fd: int | None = None, **kwargs: Any) -> int:
        disk = _disk()
        path = None if disk is None else disk.unsynced.path(name, dir_fd)
        new = path is not None and not os.path.lexists(path)
        fd = real_open(name, flags, *args, dir_fd=dir_fd, **kwargs)
        if disk is not None and path is not None and flags & _FOR_WRITES:
            disk.unsynced.opened(path, new=new)
        return fd if disk is None else disk.opened(fd)

    def closed(fd: int) -> None:
        disk = _disk()
        if disk is not None:
            disk.closed(fd)
        real_close(fd)

    world.replace(os, "open", opened)
    world.replace(os, "close", closed)
    world.replace(os, "fstatvfs", lambda fd: _ROOMY)
    for name, names in _CHANGES.items():
        world.replace(os, name, _changing(getattr(os, name), names))
    for name in ("fsync", "fdatasync"):
        world.replace(os, name, _synced(getattr(os, name), looks=name == "fsync"))
    world.replace(mrc.transfer.files, "sync_file_system", _all_synced)
    for name in _WRITES:
        world.replace(os, name, _failing(getattr(os, name)))


def _changing(real: Callable[..., Any], names: Names) -> Callable[..., Any]:
    """A call after which names stand for something else."""

    def call(*args: Any, **kwargs: Any) -> Any:
        disk = _disk()
        if disk is None:
            return real(*args, **kwargs)
        unsynced = disk.unsynced
        paths = [unsynced.path(*each) for each in names(args, kwargs)]
        before = [(path, unsynced.look(path)) for path in paths if path is not None]
        result = real(*args, **kwargs)
        for path, entry in before:
            unsynced.changed(path, entry)
        return result

    return call


def _synced(real: Callable[[int], None], *, looks: bool) -> Callable[[int], None]:
    def call(fd: int) -> None:
        real(fd)
        disk = _disk()
        if disk is not None:
            disk.unsynced.synced(fd, looks=looks)

    return call


def _failing(real: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        disk = _disk()
        if disk is not None and disk.error:
            raise OSError(disk.error, os.strerror(disk.error))
        return real(*args, **kwargs)

    return call


def _all_synced(fd: int) -> None:
    disk = _disk()
    if disk is not None:
        disk.unsynced.all_synced()


def _disk() -> Disk | None:
    program: Any = PROGRAM.get()
    return None if program is None else program.host.disk


FULL, BROKEN = errno.ENOSPC, errno.EIO
