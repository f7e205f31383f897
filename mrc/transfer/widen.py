# SPDX-License-Identifier: Apache-2.0
"""Adds QPs: for each engine of the sender, and on long paths.

On a long path the window of one QP cannot fill the links.

Link rates are often unknown or wrong, so the sender adds QPs on evidence: when the windows of its
QPs are full for several round trips. It then doubles the number of QPs, if enough data is left to
send.
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

LONG_NS = 5_000_000  # shortest base RTT at which further QPs can help
SAMPLE_SECONDS = 0.05  # time between samples; at least one round trip
SAMPLES = 3  # samples in a row with full windows before QPs are added
SETTLING = 8  # ignored samples after that, while new QPs find their rates
ENGINE_BYTES = 64 << 20  # left to send for which another engine gets a QP
WORTH = 16  # windows left to send: a new QP needs about as many round trips to be of use
_FULL = 0.75  # of the window; the rest are packets that arrived and wait for an earlier packet


def base_rtt_ns(info: QpInfo) -> int:
    """The shortest round trip of all planes; 0 while no round trip is known."""
    return min(known(plane.base_rtt_ns for plane in info.planes), default=0)


def held_up(info: QpInfo, left_bytes: int) -> bool:
    """True when the round trip is long, the QPs' windows are full, and much is left to send."""
    window_bytes = info.peer_mpr * info.path_mtu
    return (
        base_rtt_ns(info) >= LONG_NS
        and info.inflight_bytes >= _FULL * window_bytes
        and left_bytes >= WORTH * window_bytes
    )


async def widen(session: Session, token: str, left_bytes: Callable[[], int]) -> NoReturn:
    """Adds QPs to the session with this token: at once one for each further engine if much is left
    to send, later whenever the windows limit its rate.
    """
    if left_bytes() >= ENGINE_BYTES:
        engines = min(session.ctx.config.sockets.engines, MAX_QPS)
        await _add(session, token, engines - len(session.qps))
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
            await _add(session, token, min(count, most - count))
            held = -SETTLING
            if len(session.qps) == count:
                most = count


async def _add(session: Session, token: str, count: int) -> None:
    async with asyncio.TaskGroup() as group:
        for _ in range(count):
            group.create_task(_join(session, token))


async def _join(session: Session, token: str) -> None:
    try:
        await session.joined.join(token)
    except (MrcError, OSError) as error:
        logger.info("cannot connect a further QP to %s: %s", session.qp.peer_host, error)
