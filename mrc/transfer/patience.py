# SPDX-License-Identifier: Apache-2.0
"""How long a receiver waits for a sender that makes no progress.

The mailbox finds out about a peer that is gone. A peer that is there and does nothing would keep
its session, its window and its memory for ever.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import NoReturn

from mrc.transfer.session import Session, TransferError

IDLE_SECONDS = 60.0
_LOOKS = 8  # at the progress, in the time that a sender may go without


class IdleError(TransferError):
    """The sender made no progress for too long."""

    def __init__(self, session: Session, seconds: float) -> None:
        super().__init__(
            f"no progress for {seconds:g} s (mrc recv --idle), so the session with"
            f" {session.qp.peer_host} is over"
        )


@asynccontextmanager
async def patience(session: Session, seconds: float) -> AsyncIterator[None]:
    """Raises IdleError when the body waits for the peer for longer than `seconds`."""
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError:
        raise IdleError(session, seconds) from None


async def until_idle(
    session: Session, seconds: float, progress: Callable[[], object], most_bytes: int
) -> NoReturn:
    """Raises IdleError when neither `progress` nor the payload received changes for `seconds`.

    Payload beyond `most_bytes` is no progress: a peer may write the same over and over.
    """
    loop = asyncio.get_running_loop()
    first: int | None = None
    before: object = None
    since = loop.time()
    while True:
        await asyncio.sleep(seconds / _LOOKS)
        received = (await session.query()).received_bytes
        first = received if first is None else first
        now = (min(received - first, most_bytes), progress())
        if now != before:
            before, since = now, loop.time()
        elif loop.time() - since >= seconds:
            raise IdleError(session, seconds)
