# SPDX-License-Identifier: Apache-2.0
"""What a host's file system adds to the real one: locks that end with their program, errors, and
the loss of what nobody has synced, with the host's power.

POSIX promises no more than this. `fsync` of a file keeps its bytes, mode and time; `fsync` of a
folder keeps its entries, mode and time. Of the later entries of a folder a seed loses some, the
last ones first, and in each folder independently of the others. Of a file that was not synced it
keeps all, or what was synced, or the size with zeros in place of some bytes.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import stat
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import mrc.transfer.files
from virtual.loop import PROGRAM

if TYPE_CHECKING:
    from virtual.world import World


_BLOCK_BYTES = 4096


class _File:
    """A regular file, also after its last name is gone."""

    def __init__(self, path: Path, *, new: bool) -> None:
        self.fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        self.synced = b"" if new else self.read()
        self.mode, self.mtime_ns = self.looks()

    def read(self) -> bytes:
        return os.pread(self.fd, os.fstat(self.fd).st_size, 0)

    def looks(self) -> tuple[int, int]:
        status = os.fstat(self.fd)
        return stat.S_IMODE(status.st_mode), status.st_mtime_ns

    def sync(self, *, looks: bool) -> None:
        self.synced = self.read()
        if looks:
            self.mode, self.mtime_ns = self.looks()

    def lose(self, path: Path, rng: Random) -> bool:
        """What the file with this name is after the loss. Returns whether bytes have changed."""
        before, left = self.read(), self._left(rng)
        path.write_bytes(left)
        path.chmod(self.mode)
        os.utime(path, ns=(self.mtime_ns, self.mtime_ns))
        return left != before

    def _left(self, rng: Random) -> bytes:
        now = self.read()
        if now == self.synced or rng.random() < 0.3:
            return now
        if rng.random() < 0.3:
            return self.synced
        from_block = rng.randrange(-(-len(now) // _BLOCK_BYTES) + 1)
        kept = now[: from_block * _BLOCK_BYTES]
        return kept + self.synced[len(kept) :].ljust(len(now) - len(kept), b"\0")


_Entry = _File | str | None  # a file, the target of a link, or nothing


@dataclass
class _Folder:
    """A folder with changes that were not synced."""

    before: list[tuple[str, _Entry]] = field(default_factory=list)
    """for each change of an entry: its name, and what it was"""
    looks: tuple[int, int] | None = None
    """mode and time when it was synced; None: nobody has changed them since"""


class Unsynced:
    """The changes in one host's folder that its disk has not got yet."""

    def __init__(self, top: Path) -> None:
        self._top = top
        self._files: dict[int, _File] = {}  # by inode
        self._folders: dict[Path, _Folder] = {}
        self.on_change: Callable[[], None] | None = None
        """called when a name stands for something else"""

    def path(self, name: str | bytes | os.PathLike[str], dir_fd: int | None) -> Path | None:
        """The whole path of a name in a call; None: it is not in the host's folder."""
        folder = Path.cwd() if dir_fd is None else _path_of(dir_fd)
        path = folder / os.fsdecode(name)
        return path if self._top in path.parents else None

    # ---- Changes --------------------------------------------------------------------------

    def look(self, path: Path) -> _Entry:
        """What has this name now."""
        try:
            status = path.lstat()
        except FileNotFoundError:
            return None
        if stat.S_ISLNK(status.st_mode):
            return str(path.readlink())
        return self._file(path, status.st_ino) if stat.S_ISREG(status.st_mode) else None

    def _file(self, path: Path, inode: int, *, new: bool = False) -> _File:
        if inode not in self._files:
            self._files[inode] = _File(path, new=new)
        return self._files[inode]

    def changed(self, path: Path, before: _Entry) -> None:
        """The name stands for something else than before."""
        self._folders.setdefault(path.parent, _Folder()).before.append((path.name, before))
        if path.is_dir() and not path.is_symlink():
            self._folders[path] = _Folder(looks=_looks(path))
        if self.on_change is not None:
            self.on_change()

    def opened(self, path: Path, *, new: bool) -> None:
        """A file that may be written to; `new`: it was created."""
        self._file(path, path.lstat().st_ino, new=new)
        if new:
            self.changed(path, None)

    def synced(self, fd: int, *, looks: bool = True) -> None:
        """The disk has this folder, or this file; `looks`: with its mode and time."""
        status = os.fstat(fd)
        if stat.S_ISDIR(status.st_mode):
            folder = self._folders.get(_path_of(fd))
            if folder is not None:
                folder.before.clear()
                folder.looks = _looks(_path_of(fd))
        elif status.st_ino in self._files:
            self._files[status.st_ino].sync(looks=looks)

    def all_synced(self) -> None:
        """The disk has everything."""
        for file in self._files.values():
            os.close(file.fd)
        self._files.clear()
        self._folders.clear()

    # ---- The loss -------------------------------------------------------------------------

    def lose(self, rng: Random) -> set[Path]:
        """Loses what was not synced; returns the files that have other bytes than before."""
        changed = set()
        for path, folder in sorted(self._folders.items()):
            lost = folder.before[rng.randint(0, len(folder.before)) :]
            for name, before in reversed(lost):
                if path.exists() and _restore(path / name, before, rng):
                    changed.add(path / name)
        for path in sorted(self._top.rglob("*")):
            status = path.lstat()
            file = self._files.get(status.st_ino) if stat.S_ISREG(status.st_mode) else None
            if file is not None and file.lose(path, rng):
                changed.add(path)
        for path, folder in sorted(self._folders.items(), reverse=True):
            if path.exists() and folder.looks is not None:
                _lose_looks(path, folder.looks, rng)
        self.all_synced()
        return changed


def _path_of(fd: int) -> Path:
    return Path(os.readlink(f"/proc/self/fd/{fd}"))


def _looks(path: Path) -> tuple[int, int]:
    status = path.stat()
    return stat.S_IMODE(status.st_mode), status.st_mtime_ns


def _restore(path: Path, before: _Entry, rng: Random) -> bool:
    """The name stands again for what it was. Returns whether bytes of a file have changed."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
    if isinstance(before, str):
        path.symlink_to(before)
    return isinstance(before, _File) and before.lose(path, rng)


def _lose_looks(path: Path, synced: tuple[int, int], rng: Random) -> None:
    """Mode and time of a folder: what they are, or what was synced."""
    mode, mtime_ns = synced
    if _looks(path) != synced and rng.random() < 0.5:
        mode, mtime_ns = _looks(path)
    path.chmod(mode)
    os.utime(path, ns=(mtime_ns, mtime_ns))


# ---- The calls -----------------------------------------------------------------------------------


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
