# SPDX-License-Identifier: Apache-2.0
"""The memory of a test: the source and the target of its writes."""

from __future__ import annotations

import mmap
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from msgspec import Struct

from mrc.aio.context import Context
from mrc.engine.memory import MR
from mrc.enums import Access
from mrc.transfer.memory import anonymous
from mrc.transfer.threads import in_thread

_TILE_BYTES = 1 << 20


class Regions(Struct, frozen=True):
    """The two memory regions of one end of a test."""

    source: MR
    target: MR


@asynccontextmanager
async def regions(ctx: Context, size: int) -> AsyncIterator[Regions]:
    """Two regions of `size` bytes with all pages present, so that the test has no page faults.

    A thread fills them, because that takes long.
    """
    with anonymous(size) as source, anonymous(size) as target:
        await in_thread(_fill, source, os.urandom(_TILE_BYTES))
        await in_thread(_fill, target, bytes(_TILE_BYTES))
        async with (
            ctx.register(source, access=Access.LOCAL_READ) as source_mr,
            ctx.register(target, access=Access.REMOTE_WRITE) as target_mr,
        ):
            yield Regions(source_mr, target_mr)


def _fill(memory: mmap.mmap, tile: bytes) -> None:
    for offset in range(0, len(memory), len(tile)):
        memory[offset : offset + len(tile)] = tile[: len(memory) - offset]
