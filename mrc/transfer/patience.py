# SPDX-License-Identifier: Apache-2.0
"""Ends a session when its sender makes no progress.

The mailbox detects a peer that is gone. Without this module, a live peer that sends nothing could
keep its session and its memory forever.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import NoReturn

from mrc.running import Limit
from mrc.transfer.session import Session, TransferError
from mrc.units import digits

IDLE_SECONDS = 60.0
_LOOKS = 8  # checks of the progress within the allowed idle time


class IdleError(TransferError):
    """The sender made no progress for too long."""

    def __init__(self, session: Session, seconds: float) -> None:
        super().__init__(
            f"no progress for {digits(seconds)} s (mrc recv --idle): ended the session with"
            f" {session.qp.peer_host}"
        )


@asynccontextmanager
async def patience(session: Session, seconds: float) -> AsyncIterator[None]:
    """Raises IdleError when the body waits for the peer for longer than `seconds`."""
    try:
        async with Limit(seconds):
            yield
    except TimeoutError:
        raise IdleError(session, seconds) from None


async def until_idle(
    session: Session, seconds: float, progress: Callable[[], object], most_bytes: int
) -> NoReturn:
    """Raises IdleError when neither `progress` nor the received payload changes for `seconds`.

    Payload beyond `most_bytes` does not count, because a peer may write the same bytes repeatedly.
    """
    first: int | None = None
    before: object = None
    idle = 0  # looks: not the time, in which this process may have been stopped
    while idle < _LOOKS:
        await asyncio.sleep(seconds / _LOOKS)
        received = (await session.query()).received_bytes
        first = received if first is None else first
        now = (min(received - first, most_bytes), progress())
        if now != before:
            before, idle = now, 0
        else:
            idle += 1
    raise IdleError(session, seconds)
