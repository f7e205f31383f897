# SPDX-License-Identifier: Apache-2.0
"""How long one side of the exchange waits for the other: a stranger little, a long way longer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager

from mrc.exchange.oob import Channel

MESSAGE_TRIPS = 2  # until the next message: TLS needs two
EXCHANGE_TRIPS = 20  # of the whole exchange, with TLS, proofs and the search for the path MTU
_LONGEST_RTT_SECONDS = 2.0  # a peer that feigns a longer one gains nothing more


@asynccontextmanager
async def patience(
    channel: Channel, seconds: float, trips: int, *, anew: bool = False
) -> AsyncIterator[None]:
    """Limits the body to `seconds` and `trips` round trips to the peer; raises TimeoutError.

    `anew`: each message of the peer begins this time anew.
    """
    now = asyncio.get_running_loop().time
    begun = now()
    async with asyncio.timeout(seconds) as limit:
        with extended(limit, channel, trips, lambda: (now() if anew else begun) + seconds):
            yield


@contextmanager
def extended(
    limit: asyncio.Timeout, channel: Channel, trips: int, due: Callable[[], float]
) -> Iterator[None]:
    """Moves a limit, after each message of the peer, to when it is due and `trips` round trips."""

    def extend() -> None:
        if not limit.expired():
            limit.reschedule(due() + trips * min(channel.rtt, _LONGEST_RTT_SECONDS))

    channel.watchers.append(extend)
    try:
        yield
    finally:
        channel.watchers.remove(extend)
