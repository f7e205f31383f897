# SPDX-License-Identifier: Apache-2.0
"""Secrets in memory and in files.

Python copies bytes and strings at will, and leaves them in free memory. A secret is therefore read
into a `Secret`, in no core dump and gone when its last user is, and its users take the memoryview
`bytes`. Files that decide about trust are refused if another user could have written them.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from pathlib import Path
from typing import Any

from mrc.errors import ArgumentError, ConfigError

_BEGIN = bytes.__basicsize__ - 1  # where a bytes object has its bytes; a 0 follows them
_OTHERS, _OTHERS_WRITE = 0o077, 0o022
_GROUP_READS = 0o040
_ROOT = 0
_MOST_SECRET = 1 << 20  # bytes of a file


# ---- Memory --------------------------------------------------------------------------------------


class Secret:
    """`size` bytes, at most 1 MiB, in memory of their own, zeros at first. A process that forks
    gives them on.
    """

    __slots__ = ("bytes",)

    def __init__(self, size: int) -> None:
        if type(size) is not int or not 0 <= size <= _MOST_SECRET:
            raise ArgumentError(f"size: must be a whole number from 0 to {_MOST_SECRET}")
        pages = mmap.mmap(-1, max(size, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        pages.madvise(mmap.MADV_DONTDUMP)
        self.bytes = memoryview(pages)[:size]
        """unmapped with the last view of it"""

    @classmethod
    def copy(cls, data: Any) -> Secret:
        """The bytes of a buffer."""
        try:
            view = memoryview(data).cast("B")
        except TypeError as error:
            raise ArgumentError(f"data: {error}") from None
        made = cls(len(view))
        made.bytes[:] = view
        return made

    @classmethod
    def take(cls, data: bytes) -> Secret:
        """The bytes of an object that nobody else refers to: it is zeros afterwards."""
        if type(data) is not bytes:
            raise ArgumentError("data: must be bytes")
        made = cls.copy(data)
        if len(data) > 1:  # Python has one object for each byte
            ctypes.memset(id(data) + _BEGIN, 0, len(data))
        return made

    @classmethod
    def random(cls, size: int) -> Secret:
        """Random bytes."""
        made = cls(size)
        fill(made.bytes)
        return made

    @classmethod
    def read(cls, path: Path) -> Secret:
        """The content of a file as `read_trusted` returns it, which nobody else may read either."""
        with open(path, "rb", buffering=0) as file:
            _check(path, os.fstat(file.fileno()), secret=True)
            room, count = cls(_MOST_SECRET), 0
            while more := file.readinto(room.bytes[count:]):
                count += more
            return cls.copy(room.bytes[:count])

    def __len__(self) -> int:
        return len(self.bytes)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and self.bytes == other.bytes

    def __hash__(self) -> int:
        return len(self)

    def __reduce__(self) -> Any:
        return Secret.copy, (bytes(self.bytes),)

    def __repr__(self) -> str:
        return f"Secret({len(self)} bytes)"

    def wipe(self) -> None:
        """Makes it zeros, for all its users."""
        self.bytes[:] = bytes(len(self))


def fill(view: memoryview) -> None:
    """Fills a view with random bytes of the kernel."""
    with open("/dev/urandom", "rb", buffering=0) as source:
        assert source.readinto(view) == len(view)


# ---- Files ---------------------------------------------------------------------------------------


def read_trusted(path: Path) -> bytes:
    """The content of a file of this user or root.

    Raises OSError, or ConfigError for a file with other rights, with the remedy.
    """
    with open(path, "rb") as file:
        _check(path, os.fstat(file.fileno()), secret=False)
        return file.read()


def _check(path: Path, info: os.stat_result, *, secret: bool) -> None:
    if info.st_uid not in (_ROOT, os.geteuid()):
        raise ConfigError(
            f"{path}: user {info.st_uid} owns it and can change it: it must be yours or root's"
        )
    others = info.st_mode & 0o777
    groups = {os.getegid(), *os.getgroups()} if os.geteuid() != _ROOT else set()
    if secret and info.st_uid == _ROOT and info.st_gid in groups:
        others &= ~_GROUP_READS  # root lets this user read it so, as Kubernetes does (`fsGroup`)
    if others & (_OTHERS_WRITE | (_OTHERS if secret else 0)):
        what = "write" if others & _OTHERS_WRITE else "read"
        remedy = "chmod 600" if secret else "chmod go-w"
        raise ConfigError(f"{path}: others may {what} it (mode {others:04o}): {remedy} {path}")
