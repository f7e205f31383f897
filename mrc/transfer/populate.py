# SPDX-License-Identifier: Apache-2.0
"""Pages made ready before the datapath touches them.

A page fault in a mapped file costs more than all the rest that is done for its bytes, and one that
waits for the disk would hold up every QP of the Context. So helper threads take the faults: a call
for many pages at a time is also several times cheaper than a fault for each.
"""

from __future__ import annotations

import asyncio
import ctypes
from collections.abc import Callable
from types import TracebackType
from typing import Self

from mrc.transfer.digest import in_thread

STEP_BYTES = 4 << 20
_POPULATE_READ = 22  # MADV_POPULATE_READ and _WRITE, which Linux has since 5.14
_POPULATE_WRITE = 23

_libc = ctypes.CDLL(None)
_libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


def populate_for_reads(address: int, length: int) -> None:
    """Makes a page-aligned range of a mapping ready. Waits for the disk, so it is for a thread.

    Only advice: a kernel that does not know it, or a file that has shrunk, is no error here.
    """
    _libc.madvise(address, length, _POPULATE_READ)


def populate_for_writes(address: int, length: int) -> None:
    """The same for pages that are to be written, in a file whose room is allocated."""
    _libc.madvise(address, length, _POPULATE_WRITE)


class Ahead:
    """Prepares a mapping step by step, so far ahead of where the writes are and no further.

    An async context manager; at its end no thread looks at the mapping any more.
    """

    def __init__(self, length: int, prepare: Callable[[int, int], None], ahead_bytes: int) -> None:
        self._length = length
        self._prepare = prepare  # of offset and length; runs in a thread
        self._ahead_bytes = ahead_bytes
        self._prepared = 0
        self._wanted = ahead_bytes
        self._moved = asyncio.Event()
        self._progress = asyncio.Event()

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._run())
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    def reached(self, offset: int) -> None:
        """All before `offset` has been written."""
        self._wanted = offset + self._ahead_bytes
        self._moved.set()

    async def until(self, offset: int) -> None:
        """Returns when all before `offset` is prepared."""
        while self._prepared < offset:
            self._progress.clear()
            await self._progress.wait()

    async def _run(self) -> None:
        while self._prepared < self._length:
            if self._prepared >= self._wanted:
                self._moved.clear()
                await self._moved.wait()
                continue
            step = min(STEP_BYTES, self._length - self._prepared)
            await in_thread(self._prepare, self._prepared, step)
            self._prepared += step
            self._progress.set()
