# SPDX-License-Identifier: Apache-2.0
"""Memory of transfers; populates mapped pages before the datapath reads them.

A page fault in a mapped file costs more time than all other work on its bytes. A fault that waits
for the disk would delay every QP of the Context. So a helper thread populates the pages. One call
for many pages is also several times cheaper than one fault per page.
"""

from __future__ import annotations

import asyncio
import ctypes
import mmap
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Self

from mrc.transfer.threads import Line

STEP_BYTES = 4 << 20
_POPULATE_READ = 22  # MADV_POPULATE_READ, since Linux 5.14

_libc = ctypes.CDLL(None)
_libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


def populate_for_reads(address: int, length: int) -> None:
    """Populates a page-aligned range of a mapping. May wait for the disk: call it in a thread.

    Ignores errors: the kernel may lack this advice, or the file may have shrunk.
    """
    _libc.madvise(address, length, _POPULATE_READ)


@contextmanager
def anonymous(length: int) -> Iterator[mmap.mmap]:
    """Memory in huge pages, if the kernel has them. The end of the context unmaps it at once: what
    refers to it may wait long for the collector. Only memory that an interrupted end leaves
    registered, or a stuck thread in use, is unmapped with the last reference.
    """
    memory = mmap.mmap(-1, length, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    try:
        with suppress(OSError):
            memory.madvise(mmap.MADV_HUGEPAGE)
        yield memory
    finally:
        with suppress(BufferError):
            memory.close()


class Ahead:
    """Prepares a mapping in steps, at most `ahead_bytes` ahead of the writes.

    An async context manager; after its end no thread uses the mapping.
    """

    def __init__(self, length: int, prepare: Callable[[int, int], None], ahead_bytes: int) -> None:
        self._length = length
        self._prepare = prepare  # takes offset and length; runs in a thread
        self._ahead_bytes = ahead_bytes
        self._begun = 0
        self._prepared = 0
        self._progress = asyncio.Event()
        self._error: BaseException | None = None
        self._line = Line()

    async def __aenter__(self) -> Self:
        self.reached(0)
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        await self._line.__aexit__(kind, *rest)

    def reached(self, offset: int) -> None:
        """Called when the writes have reached `offset`: prepares further steps."""
        wanted = min(self._length, offset + self._ahead_bytes)
        while self._begun < wanted:
            step = min(STEP_BYTES, self._length - self._begun)
            self._line.put_and_tell(self._on_done, self._prepare, self._begun, step)
            self._begun += step

    async def until(self, offset: int) -> None:
        """Returns when the range before `offset` is prepared; raises the error of `prepare`."""
        while self._prepared < offset:
            if self._error is not None:
                raise self._error
            self._progress.clear()
            await self._progress.wait()

    def _on_done(self, error: BaseException | None) -> None:
        if error is None:
            self._prepared = min(self._prepared + STEP_BYTES, self._length)
        elif self._error is None:
            self._error = error
        self._progress.set()
