# SPDX-License-Identifier: Apache-2.0
"""Further QPs for a way so long that the window of PSNs of one does not fill it.

What links say of their rates is often missing or wrong, so more QPs come on evidence: when those
there are have their windows full of packets for several round trips. Then they are doubled, if what
is left to send is worth it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import NoReturn

from mrc.errors import MrcError
from mrc.events import QpInfo, known
from mrc.transfer.joined import MAX_QPS
from mrc.transfer.session import Session

logger = logging.getLogger("mrc.transfer.widen")

LONG_NS = 5_000_000  # the round trip from which on it may be worth a QP
SAMPLE_SECONDS = 0.05  # and a round trip at least
SAMPLES = 3  # in a row that must show the same
SETTLING = 8  # samples in which new QPs find their rates
WORTH = 16  # full windows: in so many round trips a QP connects, finds its rate and gains something
_FULL = 0.75  # the rest are packets that arrived and wait for an earlier one


def base_rtt_ns(info: QpInfo) -> int:
    """The shortest round trip of any plane; 0 while none is known."""
    return min(known(plane.base_rtt_ns for plane in info.planes), default=0)


def held_up(info: QpInfo, left_bytes: int) -> bool:
    """Whether the windows of PSNs limit these QPs, on a long way, and with much left to send."""
    window_bytes = info.peer_mpr * info.path_mtu
    return (
        base_rtt_ns(info) >= LONG_NS
        and info.inflight_bytes >= _FULL * window_bytes
        and left_bytes >= WORTH * window_bytes
    )


async def widen(session: Session, token: str, left_bytes: Callable[[], int]) -> NoReturn:
    """Adds QPs to the session, which the receiver knows by `token`, as they are called for."""
    most, held, pause = MAX_QPS, 0, SAMPLE_SECONDS
    while True:
        await asyncio.sleep(pause)
        count = len(session.qps)
        if count >= most:
            continue
        info = await session.query()
        pause = max(base_rtt_ns(info) / 1e9, SAMPLE_SECONDS)
        held = held + 1 if held < 0 or held_up(info, left_bytes()) else 0
        if held == SAMPLES:
            async with asyncio.TaskGroup() as group:
                for _ in range(min(count, most - count)):
                    group.create_task(_join(session, token))
            held = -SETTLING
            if len(session.qps) == count:
                most = count


async def _join(session: Session, token: str) -> None:
    try:
        await session.joined.join(token)
    except (MrcError, OSError) as error:
        logger.info("no further QP to %s: %s", session.qp.peer_host, error)
