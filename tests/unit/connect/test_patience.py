# SPDX-License-Identifier: Apache-2.0
"""How long a peer may take for its messages."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from unit.test_running import Jumping

from mrc.connect.oob import LONGEST_RTT_SECONDS, patience

TRIPS = 2


async def ended(rtt: float, grace: float, *, anew: bool) -> float:
    """When the limit of 5 s ends for a peer whose messages come after 4, 8 and 12 seconds."""
    loop = asyncio.get_running_loop()
    watchers: list[Callable[[], None]] = []
    channel: Any = SimpleNamespace(rtt=rtt, grace=grace, watchers=watchers)

    def message() -> None:
        for watcher in watchers:
            watcher()

    for at in (4, 8, 12):
        loop.call_at(at, message)
    with pytest.raises(TimeoutError):
        async with patience(channel, 5.0, TRIPS, anew=anew):
            await loop.create_future()
    assert not watchers
    return loop.time()


@pytest.mark.parametrize(
    ("rtt", "grace", "anew", "at"),
    [
        (0.0, 0.0, False, 5.0),
        (0.5, 0.0, False, 6.0),
        (1.5, 0.0, False, 8.0),
        (1000.0, 0.0, False, 5.0 + TRIPS * LONGEST_RTT_SECONDS),
        (0.5, 90.0, False, 96.0),
        (0.0, 0.0, True, 17.0),
        (0.5, 0.0, True, 18.0),
    ],
)
def test_patience__grows_with_the_round_trip(
    rtt: float, grace: float, anew: bool, at: float
) -> None:
    loop = Jumping()
    try:
        assert loop.run_until_complete(ended(rtt, grace, anew=anew)) == pytest.approx(at)
    finally:
        loop.close()
