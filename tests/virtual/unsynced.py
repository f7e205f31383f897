# SPDX-License-Identifier: Apache-2.0
"""What a host loses with its power: the changes of files and folders that nobody has synced.

POSIX promises no more than this. `fsync` of a file keeps its bytes, mode and time; `fsync` of a
folder keeps its entries, mode and time. Of the later entries of a folder a seed loses some, the
last ones first, and in each folder independently of the others. Of a file that was not synced it
keeps all, or what was synced, or the size with zeros in place of some bytes.
"""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

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
