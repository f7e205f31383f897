# SPDX-License-Identifier: Apache-2.0
"""Proves before data flows which EVs reach the peer, and with which packet size.

Every EV is probed with a packet of full size. If it does not answer, it is probed with a small
packet. If it answers the small packet, the path works and its MTU is smaller: one EV of each plane
then searches for the size, first among common ones, then between the largest that answered and the
next one, with several sizes at once. Otherwise the EV is dead. The path MTU is the largest size
that all living EVs carry.

Addresses that the peer named may belong to third parties. An address therefore gets only small
probes until it has answered one, and all such addresses together get at most `allowance` bytes.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Hashable, Sequence
from dataclasses import dataclass

from mrc.events import ProbeResult
from mrc.limits import MIN_MTU
from mrc.tasks import first_error

Probe = Callable[[int, int, float], Awaitable[ProbeResult]]
"""Probes EV `index` with `payload` bytes (0: small) and waits at most `timeout` seconds."""

# Payloads on links with an MTU of 9000, 1500, 1450 (VXLAN), 1420 (WireGuard), 1400 or 1280, with
# IPv4, IPv6 or SRv6, and RoCE's sizes. A search begins with them.
COMMON_MTUS = (
    8928, 8908, 8844, 4096, 2048, 1428, 1408, 1376, 1348, 1328, 1308, 1208, 1188, 1124, 1024, 512,
    MIN_MTU,
)  # fmt: skip
NEAR_BYTES = 16  # a search ends this close below the true size
FULL_TRIES = 2
SMALL_TRIES = 3
ADDRESS_TRIES = 4
SMALL_BYTES = 80  # size of a small probe with IPv6 and UDP headers
_MAX_UNDER_WAY = 32  # more full-size probes could fill the queues on the way
_FIRST_SECONDS = 0.25
_SHORTEST_SECONDS = 0.05
_LONGEST_SECONDS = 1.0
_ROUND_TRIPS = 8
_SEARCH_SIZES = 7  # probed at once in each step of a search
_SEARCH_ROUND_TRIPS = 2
_SEARCH_SECONDS = 1.0  # no further step after this: the exchange has a time limit


@dataclass(frozen=True, slots=True)
class Proof:
    """What each plane carries, and the indices of the EVs that do not live.

    `dead` EVs lead to addresses that answered over another EV, `unproven` EVs to addresses that
    never answered.
    """

    carried: dict[int, int]
    """By plane, the largest payload that all its living EVs carry; only planes with such EVs."""
    dead: tuple[int, ...]
    unproven: tuple[int, ...] = ()

    @property
    def mtu(self) -> int:
        """The largest payload that all living EVs carry; 0 when none lives."""
        return min(self.carried.values(), default=0)


class _Prover:
    def __init__(self, probe: Probe, allowance: int) -> None:
        self._probe = probe
        self._allowance = allowance
        self._slots = asyncio.Semaphore(_MAX_UNDER_WAY)
        self._longest_rtt_ns = 0
        self._searched: dict[int, int] = {}  # the size that a search found, by plane
        self._searches: defaultdict[int, asyncio.Lock] = defaultdict(asyncio.Lock)

    def _timeout(self, attempt: int) -> float:
        """Timeout in seconds; doubles with each try. After a first answer it follows the RTT."""
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
        """True when the address answers a small probe over one of its EVs."""
        for attempt in range(ADDRESS_TRIES):
            if self._allowance < SMALL_BYTES:
                return False
            self._allowance -= SMALL_BYTES
            # Spreads the attempts over the EVs, so over different ports if there are several.
            index = indices[attempt * len(indices) // ADDRESS_TRIES]
            if await self._answered(index, 0, max(0, attempt - 1)):
                return True
        return False

    async def largest(self, index: int, plane: int, agreed: int) -> int:
        """The largest payload that the EV carries; 0 when the EV is dead."""
        if await self._answers(index, agreed, 1):
            return agreed
        if not await self._answers(index, 0, SMALL_TRIES):
            return 0
        if await self._fits(index, agreed):
            return agreed
        async with self._searches[plane]:  # the others of the plane use what the first one finds
            most = self._searched.get(plane, agreed)
            if plane not in self._searched:
                self._searched[plane] = await self._search(index, agreed)
                return self._searched[plane]
        if most and await self._fits(index, most):
            return most
        return await self._search(index, most or agreed)

    async def _search(self, index: int, above: int) -> int:
        """The largest payload below `above` that the EV carries, within NEAR_BYTES; 0: none.

        With a long round trip it may end with a smaller one.
        """
        now = asyncio.get_running_loop().time
        sizes, low, until = common(above), 0, now() + _SEARCH_SECONDS
        while sizes:
            answers = await asyncio.gather(*(self._fits(index, size) for size in sizes))
            found = [size for size, answered in zip(sizes, answers, strict=True) if answered]
            low = max(found, default=low)
            if not low:
                break
            above = min((size for size in sizes if size > low), default=above)
            sizes = between(low, above) if now() < until else []
        return low

    async def _fits(self, index: int, payload: int) -> bool:
        """As `_answers`, after the EV answered another probe: so the round trip is known."""
        for attempt in range(1, FULL_TRIES + 1):
            async with self._slots:
                trips = _SEARCH_ROUND_TRIPS * self._longest_rtt_ns / 1e9
                seconds = attempt * _SHORTEST_SECONDS + trips
                result = await self._probe(index, payload, min(seconds, _LONGEST_SECONDS))
                if result.error == 0:
                    return True
        return False


def common(above: int) -> list[int]:
    """The payloads to try first, largest first."""
    return [mtu for mtu in COMMON_MTUS if mtu < above]


def between(low: int, above: int) -> list[int]:
    """The payloads to try when `low` fits and `above` does not; none when these are near."""
    if above - low <= NEAR_BYTES:
        return []
    step = -(-(above - low) // (4 * (_SEARCH_SIZES + 1))) * 4
    return list(range(low + step, above, step))


async def prove(
    probe: Probe,
    destinations: Sequence[Hashable],
    agreed: int,
    allowance: int = 0,
    *,
    planes: Sequence[int],
) -> Proof:
    """Probes one EV for each of `destinations`, with payloads up to `agreed` bytes.

    A destination is an address from the peer, or None if our own configuration names the address.
    `planes` has the plane of each EV. `allowance` is in bytes of packets.
    """
    prover = _Prover(probe, allowance)
    named: dict[Hashable, list[int]] = {}
    for index, destination in enumerate(destinations):
        named.setdefault(destination, []).append(index)

    async def largest(destination: Hashable, indices: Sequence[int]) -> list[int | None]:
        if destination is not None and not await prover.address_answers(indices):
            return [None] * len(indices)
        return await asyncio.gather(
            *(prover.largest(index, planes[index], agreed) for index in indices)
        )

    try:
        async with asyncio.TaskGroup() as group:
            tasks = {
                destination: group.create_task(largest(destination, indices))
                for destination, indices in named.items()
            }
    except BaseExceptionGroup as errors:
        raise first_error(errors) from None
    carried: dict[int, int | None] = {}
    for destination, indices in named.items():
        carried.update(zip(indices, tasks[destination].result(), strict=True))
    living: dict[int, int] = {}
    for index, payload in carried.items():
        if payload:
            living[planes[index]] = min(payload, living.get(planes[index], payload))
    dead = tuple(sorted(index for index, payload in carried.items() if payload == 0))
    unproven = tuple(sorted(index for index, payload in carried.items() if payload is None))
    return Proof(living, dead, unproven)
