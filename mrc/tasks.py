# SPDX-License-Identifier: Apache-2.0
"""Cancels asyncio tasks, finds the error of a group of them, and limits their time."""

from __future__ import annotations

import asyncio
import math
from contextlib import suppress
from typing import Any

from mrc.errors import ArgumentError


async def cancelled(*tasks: asyncio.Task[Any], why: object = None) -> None:
    """Cancels the tasks and returns when all have ended; ignores their exceptions.

    `why` is the argument of their CancelledError, which a peer is told (`mrc.errors.reason_of`).
    """
    for task in tasks:
        task.cancel(why)
    await asyncio.gather(*tasks, return_exceptions=True)


def took_cancellation() -> None:
    """The current task was cancelled, ends what it does and goes on.

    Without this Python before 3.11.3 takes each later time limit in the task for a second
    cancellation: CancelledError leaves `asyncio.timeout` where TimeoutError would.
    """
    task = asyncio.current_task()
    assert task is not None
    task.uncancel()


def first_error(group: BaseExceptionGroup) -> BaseException:
    """The first error of an asyncio.TaskGroup; the others follow from it."""
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def checked_timeout(seconds: float) -> float:
    """A caller's time-out. Raises ArgumentError for NaN, which would stop all timers of the event
    loop.
    """
    with suppress(OverflowError):
        if not math.isnan(seconds):
            return float(seconds)
    raise ArgumentError(f"timeout: {seconds} is no number of seconds")


def within(timeout: float | None) -> asyncio.Timeout:
    """As `asyncio.timeout`, for a caller's time-out."""
    return asyncio.timeout(None if timeout is None else checked_timeout(timeout))
