# SPDX-License-Identifier: Apache-2.0
"""Proves which EVs reach the peer, and with packets of which size, before data flows.

Every EV is probed with a packet of full size. One that stays silent is probed with a small packet:
if that is answered the path lives and its MTU is smaller than thought, and the common sizes below
are tried; if not, the EV is dead. The path MTU is what all living EVs carry.

Addresses that the peer named may be those of others. So an address gets small probes only until it
has answered one, and all such addresses together no more bytes than the `allowance`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Sequence
from dataclasses import dataclass

from mrc.events import ProbeResult
from mrc.limits import MIN_MTU

Probe = Callable[[int, int, float], Awaitable[ProbeResult]]
"""Probes EV `index` with `payload` bytes (0: small) and waits at most `timeout` seconds."""

# Payloads of usual links: 9000 B with and without SRv6, RoCE's sizes, 1500 B likewise, 1280 B.
COMMON_MTUS = (8908, 8844, 4096, 2048, 1408, 1344, 1188, 1124, 1024, 512, MIN_MTU)
FULL_TRIES = 2
SMALL_TRIES = 3
ADDRESS_TRIES = 4
SMALL_BYTES = 80  # of a small probe, with IPv6 and UDP headers
_MAX_UNDER_WAY = 32  # full-size probes must not fill the queues that they measure
_FIRST_SECONDS = 0.25
_SHORTEST_SECONDS = 0.05
_LONGEST_SECONDS = 1.0
_ROUND_TRIPS = 8


@dataclass(frozen=True, slots=True)
class Proof:
    """`mtu` of all living EVs, 0 when there is none; the indices of the others.

    `dead` lead to addresses that answered over another EV, `unproven` to those that never did.
    """

    mtu: int
    dead: tuple[int, ...]
    unproven: tuple[int, ...] = ()


class _Prover:
    def __init__(self, probe: Probe, allowance: int) -> None:
        self._probe = probe
        self._allowance = allowance
        self._slots = asyncio.Semaphore(_MAX_UNDER_WAY)
        self._longest_rtt_ns = 0

    def _timeout(self, attempt: int) -> float:
        """Patience doubles until a first answer tells how far the peer is."""
        seconds = _FIRST_SECONDS
        if self._longest_rtt_ns:
            seconds = max(_ROUND_TRIPS * self._longest_rtt_ns / 1e9, _SHORTEST_SECONDS)
        return min(seconds * (1 << attempt), _LONGEST_SECONDS)

    async def _answered(self, index: int, payload: int, attempt: int) -> bool:
        result = await self._probe(index, payload, self._timeout(attempt))
        if result.rtt_ns is not None:
            self._longest_rtt_ns = max(self._longest_rtt_ns, result.rtt_ns)
        return result.error == 0

    async def _answers(self, index: int, payload: int, tries: int) -> bool:
        for attempt in range(tries):
            async with self._slots:
                if await self._answered(index, payload, attempt):
                    return True
        return False

    async def address_answers(self, indices: Sequence[int]) -> bool:
        """Whether one of the EVs to an address brings a small probe there and its answer back."""
        for attempt in range(ADDRESS_TRIES):
            if self._allowance < SMALL_BYTES:
                return False
            self._allowance -= SMALL_BYTES
            # Of different ports, if it may.
            index = indices[attempt * len(indices) // ADDRESS_TRIES]
            if await self._answered(index, 0, max(0, attempt - 1)):
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


async def prove(
    probe: Probe, destinations: Sequence[Hashable], agreed: int, allowance: int = 0
) -> Proof:
    """Probes one EV for each of `destinations` and returns what they carry of `agreed` bytes.

    A destination is the address that the peer named, or None for one that our own configuration
    names. `allowance` is in bytes of packets.
    """
    prover = _Prover(probe, allowance)
    named: dict[Hashable, list[int]] = {}
    for index, destination in enumerate(destinations):
        named.setdefault(destination, []).append(index)

    async def largest(destination: Hashable, indices: Sequence[int]) -> list[int | None]:
        if destination is not None and not await prover.address_answers(indices):
            return [None] * len(indices)
        return await asyncio.gather(*(prover.largest(index, agreed) for index in indices))

    async with asyncio.TaskGroup() as group:
        tasks = {
            destination: group.create_task(largest(destination, indices))
            for destination, indices in named.items()
        }
    carried: dict[int, int | None] = {}
    for destination, indices in named.items():
        carried.update(zip(indices, tasks[destination].result(), strict=True))
    living = [payload for payload in carried.values() if payload]
    dead = tuple(sorted(index for index, payload in carried.items() if payload == 0))
    unproven = tuple(sorted(index for index, payload in carried.items() if payload is None))
    return Proof(min(living, default=0), dead, unproven)
