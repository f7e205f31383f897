# SPDX-License-Identifier: Apache-2.0
"""Waiting for a task of a test, or for it to fail."""

from __future__ import annotations

import asyncio
from typing import NoReturn


async def stopped(work: asyncio.Task[None]) -> None:
    """Returns when the task is done, and raises what it raised; cancelled, it leaves it be."""
    try:
        await asyncio.shield(work)
    except BaseExceptionGroup as group:
        error: BaseException = group
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]  # the others follow from it
        raise error from None


async def failing(work: asyncio.Task[None]) -> NoReturn:
    """Raises what the task raises; when it is done without that, waits for ever."""
    await stopped(work)
    await asyncio.get_running_loop().create_future()
    raise AssertionError("nobody ends this future")
