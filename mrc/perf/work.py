# SPDX-License-Identifier: Apache-2.0
"""Waits for a task of a test to end or to fail."""

from __future__ import annotations

import asyncio
from typing import NoReturn

from mrc.tasks import cancelled, first_error

SETTLE_SECONDS = 0.5  # for writes in flight, so that both ends count the same; then they are left


async def stopped(work: asyncio.Task[None]) -> None:
    """Waits for the task and raises its error. Cancelling this wait does not cancel the task."""
    try:
        await asyncio.shield(work)
    except BaseExceptionGroup as group:
        raise first_error(group) from None


async def settled(work: asyncio.Task[None]) -> None:
    """Waits for the end of a task that has been stopped; cancels it after SETTLE_SECONDS."""
    done, _ = await asyncio.wait({work}, timeout=SETTLE_SECONDS)
    if done:
        await stopped(work)
    else:
        await cancelled(work)


async def failing(work: asyncio.Task[None]) -> NoReturn:
    """Raises the task's error; waits for ever if the task ends without one."""
    await stopped(work)
    await asyncio.get_running_loop().create_future()
    raise AssertionError("nobody ends this future")
