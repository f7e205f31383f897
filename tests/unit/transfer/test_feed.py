# SPDX-License-Identifier: Apache-2.0
"""Chunks that a helper thread fills ahead of the writes."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, nullcontext
from types import SimpleNamespace
from typing import Any

from slowness import PATIENCE

from mrc.transfer.feed import FILLED_BYTES, Filled
from mrc.transfer.messages import CHUNK_BYTES


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
