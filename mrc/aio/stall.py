# SPDX-License-Identifier: Apache-2.0
"""Notices that a link on the way got a smaller MTU while a QP runs.

Then small packets still pass, answers and probes too, so the engine waits for better times: for
ever. This module asks the paths as the exchange did before (mrc.connect.proof): the QP fails only
if some paths answer, and none of them carries packets of the QP's size.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Protocol

from mrc.connect.profiles import EvController
from mrc.connect.proof import prove
from mrc.engine.queue_pair import QueuePair
from mrc.errors import MrcError, PathMtuError
from mrc.events import ProbeResult, QpInfo
from mrc.fabric.paths import PathEv

_LOOK_SECONDS = 1.0
_IDLE_SECONDS = 8.0  # the longest pause between two looks at a QP that has nothing to do
_LONGEST_PAUSE_SECONDS = 60.0  # between two proofs, of a peer that takes nothing for other reasons
_EVS = 4  # asked in each plane


class Watched(Protocol):
    """What this module needs of this host's end of a QP."""

    queue: QueuePair
    evs: tuple[PathEv, ...]
    controller: EvController
    path_mtu: int

    @property
    def planes(self) -> tuple[int, ...]: ...
    @property
    def peer_host(self) -> str: ...
    @property
    def may_wait(self) -> bool: ...
    async def query(self) -> QpInfo: ...
    def fail(self, error: MrcError) -> None: ...


async def watch(end: Watched) -> None:
    """Runs as long as the QP; fails it with a PathMtuError."""
    before: QpInfo | None = None
    pause = _LOOK_SECONDS
    while True:
        await asyncio.sleep(pause)
        if not end.may_wait:
            before, pause = None, _LOOK_SECONDS
            continue
        try:
            now = await end.query()
            if not now.outstanding:
                before, pause = None, min(2 * pause, _IDLE_SECONDS)
                continue
            if before is None or not stuck_bytes(before, now):
                before, pause = now, _LOOK_SECONDS
                continue
            carried = await _carried(end)
            if 0 < carried < stuck_bytes(before, await end.query()):
                end.fail(PathMtuError(_line(end, carried)))
                return
        except MrcError:  # the QP has ended or failed
            return
        pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)


def stuck_bytes(before: QpInfo, now: QpInfo) -> int:
    """The size of packets that wait for an answer, if none of them got one meanwhile; else 0."""
    waiting = before.first_sent_bytes - before.acknowledged_bytes
    size = min(waiting, now.path_mtu)  # the only packet that waits may be smaller than the others
    acknowledged = now.acknowledged_bytes - before.acknowledged_bytes
    return size if now.outstanding > 0 and acknowledged < size else 0


async def _carried(end: Watched) -> int:
    """The largest payload that passes now; 0 if full packets pass, or if nothing answers."""
    asked = [
        index
        for plane in end.planes
        for index in [i for i, ev in enumerate(end.evs) if ev.attr.port == plane][:_EVS]
    ]
    planes = [end.evs[index].attr.port for index in asked]

    def probe(place: int, payload: int, timeout: float) -> Awaitable[ProbeResult]:
        return end.controller.probe(asked[place], payload, timeout)

    proof = await prove(probe, [None] * len(asked), end.path_mtu, planes=planes)
    return 0 if end.path_mtu in proof.carried.values() else max(proof.carried.values(), default=0)


def _line(end: Watched, carried: int) -> str:
    return (
        f"packets of {end.path_mtu} bytes no longer reach {end.peer_host}, only up to {carried}:"
        " a link on the way has a smaller MTU now; connect again to use it"
    )
