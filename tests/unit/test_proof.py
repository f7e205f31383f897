# SPDX-License-Identifier: Apache-2.0
"""The proof of paths against fabrics of which every EV's limit is known."""

from __future__ import annotations

import asyncio
import errno

import pytest

from mrc.events import ProbeResult
from mrc.proof import MIN_MTU, Proof, candidates, prove

RTT_NS = 1_000_000


class Fabric:
    """Carries probes of up to `limits[index]` bytes; 0 is a dead EV. Notes every probe."""

    def __init__(self, limits: list[int], *, lose_first: int = 0) -> None:
        self.limits = limits
        self.probes: list[tuple[int, int, float]] = []
        self.under_way = 0
        self.most_under_way = 0
        self._lose = dict.fromkeys(range(len(limits)), lose_first)

    async def probe(self, index: int, payload: int, timeout: float) -> ProbeResult:
        self.probes.append((index, payload, timeout))
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        await asyncio.sleep(0)
        self.under_way -= 1
        lost, self._lose[index] = self._lose[index] > 0, self._lose[index] - 1
        if lost or not max(payload, 1) <= self.limits[index]:
            return ProbeResult(index, errno.ETIMEDOUT, 0)
        return ProbeResult(index, 0, RTT_NS)

    def tries(self, index: int) -> list[int]:
        return [payload for i, payload, _ in self.probes if i == index]


async def test_prove__every_ev_carries_the_agreed_size() -> None:
    fabric = Fabric([9000] * 8)
    assert await prove(fabric.probe, 8, 8844) == Proof(8844, ())
    assert len(fabric.probes) == 8


async def test_prove__a_dead_plane_is_reported_after_bounded_tries() -> None:
    fabric = Fabric([9000, 0, 9000, 0])
    assert await prove(fabric.probe, 4, 8844) == Proof(8844, (1, 3))
    assert fabric.tries(1) == [8844, 0, 0, 0]


@pytest.mark.parametrize(
    ("limit", "expected"), [(8844, 8844), (8843, 4096), (1408, 1408), (1500, 1408), (300, 256)]
)
async def test_prove__a_smaller_mtu_on_the_way_lowers_it(limit: int, expected: int) -> None:
    fabric = Fabric([9000, limit])
    assert await prove(fabric.probe, 2, 8844) == Proof(expected, ())


async def test_prove__one_lost_probe_changes_nothing() -> None:
    fabric = Fabric([9000] * 3, lose_first=1)
    assert await prove(fabric.probe, 3, 8844) == Proof(8844, ())
    assert fabric.tries(0) == [8844, 0, 8844]


async def test_prove__nothing_answers() -> None:
    fabric = Fabric([0] * 2)
    assert await prove(fabric.probe, 2, 1024) == Proof(0, (0, 1))


async def test_prove__an_ev_that_carries_only_less_than_the_least_is_dead() -> None:
    fabric = Fabric([9000, 100])
    assert await prove(fabric.probe, 2, 1024) == Proof(1024, (1,))
    assert fabric.tries(1)[-1] == MIN_MTU


async def test_prove__patience_follows_the_round_trip() -> None:
    fabric = Fabric([9000, 0])
    await prove(fabric.probe, 2, 1024)
    waits = [timeout for index, _, timeout in fabric.probes if index == 1]
    assert waits[0] == 0.25
    assert waits[1:] == [0.05, 0.1, 0.2]


async def test_prove__patience_grows_while_nothing_answered() -> None:
    fabric = Fabric([0])
    await prove(fabric.probe, 1, 1024)
    assert [timeout for _, _, timeout in fabric.probes] == [0.25, 0.25, 0.5, 1.0]


async def test_prove__full_size_probes_do_not_flood_the_fabric() -> None:
    fabric = Fabric([9000] * 500)
    await prove(fabric.probe, 500, 8844)
    assert fabric.most_under_way == 32


@pytest.mark.parametrize("agreed", [256, 1000, 1024, 8844, 16384])
def test_candidates__fall_to_the_least(agreed: int) -> None:
    sizes = candidates(agreed)
    assert sizes[0] == agreed
    assert sizes == sorted(set(sizes), reverse=True)
    assert sizes[-1] == MIN_MTU
    assert all(size % 4 == 0 for size in sizes)
