# SPDX-License-Identifier: Apache-2.0
"""Proves before data flows which EVs reach the peer, and with which packet size.

Every EV is probed with a packet of full size. `mrc.exchange.prover` decides what follows from the
answers; this module carries its probes out.

Addresses that the peer named may belong to third parties. An address therefore gets only small
probes until it has answered one, and all such addresses together get at most `allowance` bytes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Sequence

from msgspec import Struct

from mrc.errors import QueueFullError
from mrc.events import ProbeResult
from mrc.exchange.prover import PEER, Ask, Prover
from mrc.tasks import first_error

Probe = Callable[[int, int, float], Awaitable[ProbeResult]]
"""Probes EV `index` with `payload` bytes (0: small) and waits at most `timeout` seconds."""


class Proof(Struct, frozen=True):
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


def proof_of(carried: Sequence[int | None], planes: Sequence[int]) -> Proof:
    """The proof, from what each EV carries (`Prover.carried`) and its plane."""
    living: dict[int, int] = {}
    for plane, payload in zip(planes, carried, strict=True):
        if payload:
            living[plane] = min(payload, living.get(plane, payload))
    dead = tuple(index for index, payload in enumerate(carried) if payload == 0)
    unproven = tuple(index for index, payload in enumerate(carried) if payload is None)
    return Proof(living, dead, unproven)


async def prove(
    probe: Probe,
    destinations: Sequence[Hashable],
    agreed: int,
    allowance: int = 0,
    *,
    planes: Sequence[int],
    rtt: float = 0.0,
    ping: Callable[[], Awaitable[None]] | None = None,
) -> Proof:
    """Probes one EV for each of `destinations`, with payloads up to `agreed` bytes.

    A destination is an address from the peer, or None if our own configuration names the address.
    `planes` has the plane of each EV. `allowance` is in bytes of packets. `rtt` is a round trip to
    the peer in seconds; 0: unknown. `ping` asks the peer over TCP and returns when it has answered.
    Then the proof goes on for as long as the peer answers nothing at all.
    """
    prover = Prover(
        destinations, planes, agreed, allowance=allowance, rtt=rtt, asks_peer=ping is not None
    )
    try:
        async with asyncio.TaskGroup() as group:
            await _Probing(probe, ping, prover, group).run()
    except BaseExceptionGroup as errors:
        raise first_error(errors) from None
    return proof_of(prover.carried, planes)


class _Probing:
    """Sends what a prover wants, and tells it what comes back."""

    def __init__(
        self,
        probe: Probe,
        ping: Callable[[], Awaitable[None]] | None,
        prover: Prover,
        group: asyncio.TaskGroup,
    ) -> None:
        self._probe, self._ping, self._prover, self._group = probe, ping, prover, group
        self._changed = asyncio.Event()
        self._under_way: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Returns when everything is decided; late answers are of no interest then."""
        now = asyncio.get_running_loop().time
        while True:
            self._changed.clear()
            asks = self._prover.advance(now())
            if self._prover.done:
                break
            for ask in asks:
                task = self._group.create_task(self._ask(ask))
                self._under_way.add(task)
                task.add_done_callback(self._under_way.discard)
            try:
                async with asyncio.timeout(max(0.0, self._prover.deadline - now())):
                    await self._changed.wait()
            except TimeoutError:
                pass
        for task in list(self._under_way):
            task.cancel()

    async def _ask(self, ask: Ask) -> None:
        now = asyncio.get_running_loop().time
        if ask.index == PEER:
            assert self._ping is not None
            await self._ping()
            self._prover.on_answer(ask.number, 0.0, now())
            self._changed.set()
            return
        try:
            result = await self._probe(ask.index, ask.payload, ask.timeout)
        except QueueFullError:
            self._prover.on_refusal(ask.number, now())
        else:
            if result.rtt_ns is not None and result.error == 0:
                self._prover.on_answer(ask.number, result.rtt_ns / 1e9, now())
            else:
                self._prover.on_failure(ask.number, result.error)
        self._changed.set()
