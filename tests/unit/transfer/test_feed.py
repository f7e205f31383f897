# SPDX-License-Identifier: Apache-2.0
"""Chunks that a helper thread fills ahead of the writes."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
from slowness import PATIENCE

from mrc.transfer.limits import CHUNK_BYTES
from mrc.transfer.memory import FILLED_BYTES, Filled
from mrc.transfer.messages import FRAME


async def test_next__waits_for_a_chunk_to_be_written_when_all_are_under_way() -> None:
    context: Any = SimpleNamespace(register=lambda memory, access: nullcontext())
    filled = Filled(lambda payload: len(payload), lambda: 0)
    async with AsyncExitStack() as held, await filled.open(context, held), filled:
        taken = [await filled.next() for _ in range(FILLED_BYTES // CHUNK_BYTES)]
        waiting = asyncio.create_task(filled.next())
        await asyncio.sleep(0)
        assert not waiting.done()
        written = taken[5]
        assert written is not None
        filled.written(written)
        assert await asyncio.wait_for(waiting, PATIENCE) == written


async def test_next__raises_what_fill_raised_after_what_it_had_filled() -> None:
    context: Any = SimpleNamespace(register=lambda memory, access: nullcontext())
    lengths = iter([5])

    def fill(payload: memoryview) -> int:
        try:
            return next(lengths)
        except StopIteration:
            raise OSError("the pipe broke") from None

    filled = Filled(fill, lambda: 0)
    async with AsyncExitStack() as held, await filled.open(context, held), filled:
        first = await asyncio.wait_for(filled.next(), PATIENCE)
        assert first is not None and first.length == FRAME.size + 5
        with pytest.raises(OSError, match="the pipe broke"):
            await asyncio.wait_for(filled.next(), PATIENCE)
