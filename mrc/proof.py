# SPDX-License-Identifier: Apache-2.0
"""Proves which EVs reach the peer, and with packets of which size, before data flows.

Every EV is probed with a packet of full size. One that stays silent is probed with a small packet:
if that is answered the path lives and its MTU is smaller than thought, and the common sizes below
are tried; if not, the EV is dead. The path MTU is what all living EVs carry.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from mrc.events import ProbeResult
from mrc.paths import MIN_MTU

Probe = Callable[[int, int, float], Awaitable[ProbeResult]]
"""Probes EV `index` with `payload` bytes (0: small) and waits at most `timeout` seconds."""

# Payloads of usual links: 9000 B with and without SRv6, RoCE's sizes, 1500 B likewise, 1280 B.
COMMON_MTUS = (8908, 8844, 4096, 2048, 1408, 1344, 1188, 1124, 1024, 512, MIN_MTU)
FULL_TRIES = 2
SMALL_TRIES = 3
_MAX_UNDER_WAY = 32  # full-size probes must not fill the queues that they measure
_FIRST_SECONDS = 0.25
_SHORTEST_SECONDS = 0.05
_LONGEST_SECONDS = 1.0
_ROUND_TRIPS = 8


@dataclass(frozen=True, slots=True)
class Proof:
    """`mtu` of all living EVs, 0 when there is none; `dead` holds the indices of the others."""

    mtu: int
    dead: tuple[int, ...]


class _Prover:
    def __init__(self, probe: Probe) -> None:
        self._probe = probe
        self._slots = asyncio.Semaphore(_MAX_UNDER_WAY)
        self._longest_rtt_ns = 0

    def _timeout(self, attempt: int) -> float:
        """Patience doubles until a first answer tells how far the peer is."""
        seconds = _FIRST_SECONDS
        if self._longest_rtt_ns:
            seconds = max(_ROUND_TRIPS * self._longest_rtt_ns / 1e9, _SHORTEST_SECONDS)
        return min(seconds * (1 << attempt), _LONGEST_SECONDS)

    async def _answers(self, index: int, payload: int, tries: int) -> bool:
        for attempt in range(tries):
            async with self._slots:
                result = await self._probe(index, payload, self._timeout(attempt))
            if result.error == 0:
                self._longest_rtt_ns = max(self._longest_rtt_ns, result.rtt_ns)
                return True
        return False

    async def largest(self, index: int, agreed: int) -> int:
        """The largest payload that the EV carries; 0 when it carries none."""
        if await self._answers(index, agreed, 1):
            return agreed
        if not await self._answers(index, 0, SMALL_TRIES):
            return 0
        for payload in candidates(agreed):
            if await self._answers(index, payload, FULL_TRIES):
                return payload
        return 0


def candidates(agreed: int) -> list[int]:
    """The payloads to try, largest first."""
    return [agreed, *(mtu for mtu in COMMON_MTUS if mtu < agreed)]


async def prove(probe: Probe, evs: int, agreed: int) -> Proof:
    """Probes EVs 0 to `evs` - 1 and returns what they carry of `agreed` bytes."""
    prover = _Prover(probe)
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(prover.largest(index, agreed)) for index in range(evs)]
    carried = [task.result() for task in tasks]
    living = [payload for payload in carried if payload]
    dead = tuple(index for index, payload in enumerate(carried) if not payload)
    return Proof(min(living, default=0), dead)
