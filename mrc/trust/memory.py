# SPDX-License-Identifier: Apache-2.0
"""Memory for secrets: in no core dump, and gone when its last user is.

Python copies bytes and strings at will, and leaves them in free memory. A secret is therefore read
into a `Secret`, and its users take the memoryview `bytes`.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
from pathlib import Path
from typing import Any

_ONLY_HEADERS = "0x10"  # bits of core(5)
_BEGIN = bytes.__basicsize__ - 1  # where a bytes object has its bytes; a 0 follows them


class Secret:
    """`size` bytes in memory of their own, zeros at first. A process that forks gives them on."""

    __slots__ = ("bytes",)

    def __init__(self, size: int) -> None:
        pages = mmap.mmap(-1, max(size, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        pages.madvise(mmap.MADV_DONTDUMP)
        self.bytes = memoryview(pages)[:size]
        """unmapped with the last view of it"""

    @classmethod
    def copy(cls, data: Any) -> Secret:
        """The bytes of a buffer."""
        made = cls(len(data))
        made.bytes[:] = data
        return made

    @classmethod
    def take(cls, data: bytes) -> Secret:
        """The bytes of an object that nobody else refers to: it is zeros afterwards."""
        made = cls.copy(data)
        if data:
            ctypes.memset(id(data) + _BEGIN, 0, len(data))
        return made

    @classmethod
    def random(cls, size: int) -> Secret:
        """Random bytes."""
        made = cls(size)
        fill(made.bytes)
        return made

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


def leave_out_of_cores() -> None:
    """Core dumps of this process, and of its children, hold no memory from now on.

    Debuggers and /proc work as before, which PR_SET_DUMPABLE would change.
    """
    with contextlib.suppress(OSError):  # a kernel without core dumps
        Path("/proc/self/coredump_filter").write_text(_ONLY_HEADERS)


def fill(view: memoryview) -> None:
    """Fills a view with random bytes of the kernel."""
    with open("/dev/urandom", "rb", buffering=0) as source:
        assert source.readinto(view) == len(view)
