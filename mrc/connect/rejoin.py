# SPDX-License-Identifier: Apache-2.0
"""The TCP connection of a QP that runs, opened again after it was lost or its address has gone.

The side that has connected opens it, to where the first one led, and proves itself anew. It names
the QP by a token that the listener has told in its hello, which without TLS is as secret as all
else of the exchange. Until then the QP goes on: it only cannot tell its peer of new ports, nor that
it ends.
"""

from __future__ import annotations

import asyncio
import logging
import random
import secrets
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from mrc.connect.oob import Channel
from mrc.connect.tls import Guard, QuestionError
from mrc.errors import ConnectError, MrcError

if TYPE_CHECKING:
    from mrc.aio.qp import QP

logger = logging.getLogger("mrc.connect")

REJOIN = "rejoin"
"""the first message on the new connection, and its answer"""
_TOKEN_BYTES = 16
_FIRST_PAUSE_SECONDS = 0.1  # between two tries; doubles
_LONGEST_PAUSE_SECONDS = 4.0
_TRY_SECONDS = 5.0


class Rejoins:
    """The QPs of a listener by their tokens."""

    def __init__(self) -> None:
        self._qps: WeakValueDictionary[str, QP] = WeakValueDictionary()

    def add(self, token: str, qp: QP) -> None:
        """From now on the peer of the QP may come again."""
        self._qps[token] = qp

    async def take(self, channel: Channel) -> None:
        """Gives a new connection to its QP; raises ConnectError if none may have it."""
        message = await channel.expect(REJOIN)
        qp = self._qps.get(str(message.get("token")))
        if qp is None or qp.closed or channel.peer_identity != qp.peer_identity:
            raise ConnectError("this host has no such QP")
        await channel.send(REJOIN)
        qp._take_channel(channel)


def new_token() -> str:
    """Names a QP, and nobody can guess it."""
    return secrets.token_hex(_TOKEN_BYTES)


Dial = Callable[[], Awaitable[Channel]]
"""opens a TCP connection to the peer"""


async def rejoined(dial: Dial, guard: Guard | None, token: str, rng: random.Random) -> Channel:
    """A new connection to the QP of this token at the peer; tries until it is cancelled. Raises
    MrcError when the peer has no such QP any more.
    """
    pause = _FIRST_PAUSE_SECONDS
    while True:
        channel: Channel | None = None
        try:
            async with asyncio.timeout(_TRY_SECONDS):
                channel = await dial()
                if guard is not None:
                    await guard.connect(channel)
                await channel.send(REJOIN, token=token)
                await channel.expect(REJOIN)
                return channel
        except (MrcError, OSError, TimeoutError, QuestionError) as error:
            logger.debug("the connection is not open again: %s", error)
            if channel is not None:
                channel.abort()
        except asyncio.CancelledError:
            if channel is not None:
                channel.abort()
            raise
        await asyncio.sleep(rng.uniform(pause / 2, pause))
        pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)


Rejoin = Callable[[], Awaitable[Channel]]
"""`rejoined` of one QP"""
