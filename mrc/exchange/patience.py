# SPDX-License-Identifier: Apache-2.0
"""How long one side of the exchange waits for the other: a stranger little, a long path longer."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

from mrc.exchange.oob import LONGEST_RTT_SECONDS, Channel
from mrc.running import Limit

MESSAGE_TRIPS = 2  # until the next message: TLS needs two
EXCHANGE_TRIPS = 20  # of the whole exchange, with TLS, proofs and the search for the path MTU


@asynccontextmanager
async def patience(
    channel: Channel, seconds: float, trips: int, *, anew: bool = False
) -> AsyncIterator[None]:
    """Limits the body to `seconds` and `trips` round trips to the peer; raises TimeoutError.

    `anew`: each message of the peer begins this time anew.
    """
    async with Limit(seconds) as limit:
        with extended(limit, channel, seconds, trips, anew=anew):
            yield


@contextmanager
def extended(
    limit: Limit, channel: Channel, seconds: float, trips: int, *, anew: bool = False
) -> Iterator[None]:
    """Changes a limit, after each message of the peer, as `patience` does."""

    def extend() -> None:
        trip = min(channel.rtt, LONGEST_RTT_SECONDS)
        limit.seconds = seconds + channel.grace + trips * trip
        if anew:
            limit.begin_anew()

    channel.watchers.append(extend)
    try:
        yield
    finally:
        channel.watchers.remove(extend)
