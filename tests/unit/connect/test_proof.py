# SPDX-License-Identifier: Apache-2.0
"""How the proof of paths carries out what the prover wants (test_prover.py has its verdicts)."""

from __future__ import annotations

import asyncio
import errno

import pytest
from slowness import PATIENCE
from unit.test_running import in_virtual_time

from mrc.connect.proof import Proof, proof_of, prove
from mrc.errors import QueueFullError, StateError
from mrc.events import ProbeResult

RTT_NS = 1_000_000


class Fabric:
    """Carries probes of up to `limits[index]` bytes; 0: a dead EV. No room for `full` probes."""

    def __init__(self, limits: list[int], *, full: int = 0) -> None:
        self.limits, self.full = limits, full
        self.probes = 0
        self.under_way = 0
        self.begun = asyncio.Event()

    async def probe(self, index: int, payload: int, timeout: float) -> ProbeResult:
        self.probes += 1
        if self.probes <= self.full:
            raise QueueFullError("all slots are taken")
        self.under_way += 1
        self.begun.set()
        try:
            await asyncio.sleep(RTT_NS / 1e9 if max(payload, 1) <= self.limits[index] else timeout)
        finally:
            self.under_way -= 1
        if max(payload, 1) <= self.limits[index]:
            return ProbeResult(index, 0, RTT_NS)
        return ProbeResult(index, errno.ETIMEDOUT, None)


@in_virtual_time
async def test_prove__every_ev_carries_the_agreed_size() -> None:
    fabric = Fabric([9000] * 8)
    proof = await prove(fabric.probe, [None] * 8, 8844, planes=[1, 2] * 4)
    assert proof == Proof({1: 8844, 2: 8844}, ())
    assert fabric.probes == 8


@in_virtual_time
async def test_prove__a_smaller_mtu_and_no_probe_is_left_behind() -> None:
    fabric = Fabric([9000, 1408, 1408])
    proof = await prove(fabric.probe, [None] * 3, 8844, planes=[1, 2, 2])
    assert proof == Proof({1: 8844, 2: 1408}, ())
    assert fabric.under_way == 0


@in_virtual_time
async def test_prove__does_not_wait_for_late_answers() -> None:
    fabric = Fabric([1408, 0])

    async def probe(index: int, payload: int, timeout: float) -> ProbeResult:
        return await fabric.probe(index, payload, timeout if index == 0 else PATIENCE)

    async with asyncio.timeout(PATIENCE / 2):
        proof = await prove(probe, [None] * 2, 1408, planes=[1, 1])
    assert proof == Proof({1: 1408}, (1,))
    assert fabric.under_way == 0


@in_virtual_time
async def test_prove__no_room_for_probes_is_no_evidence() -> None:
    """The probes of other QPs may fill the engine's table."""
    fabric = Fabric([1408] * 4, full=40)
    assert (await prove(fabric.probe, [None] * 4, 1408, planes=[1] * 4)).mtu == 1408


@pytest.mark.parametrize("destinations", [[None], ["a"], ["a", "b"]])
@in_virtual_time
async def test_prove__raises_the_error_of_a_probe(destinations: list[str | None]) -> None:
    """For example, when the program of an agent's QP ends meanwhile."""

    async def closed(index: int, payload: int, timeout: float) -> ProbeResult:
        raise StateError("the Context was closed")

    with pytest.raises(StateError, match="the Context was closed"):
        await prove(closed, destinations, 8844, 1000, planes=[1] * len(destinations))


@in_virtual_time
async def test_prove__cancelled_in_the_middle() -> None:
    fabric = Fabric([0] * 4)
    proving = asyncio.create_task(prove(fabric.probe, [None] * 4, 1408, planes=[1] * 4))
    await fabric.begun.wait()
    proving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await proving
    assert fabric.under_way == 0


def test_proof_of__the_least_of_the_living_counts() -> None:
    carried = (1408, 1208, 0, None, 8844)
    assert proof_of(carried, [1, 1, 1, 2, 3]) == Proof({1: 1208, 3: 8844}, (2,), (3,))
    assert proof_of(carried, [1, 1, 1, 2, 3]).mtu == 1208
    assert proof_of((0, None), [1, 2]).mtu == 0
