# SPDX-License-Identifier: Apache-2.0
"""The proof of paths against fabrics with a known limit for each EV."""

from __future__ import annotations

import asyncio
import errno

import pytest

from mrc.events import ProbeResult
from mrc.exchange.proof import MIN_MTU, SMALL_BYTES, Proof, candidates, prove

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
            return ProbeResult(index, errno.ETIMEDOUT, None)
        return ProbeResult(index, 0, RTT_NS)

    def tries(self, index: int) -> list[int]:
        return [payload for i, payload, _ in self.probes if i == index]


async def test_prove__every_ev_carries_the_agreed_size() -> None:
    fabric = Fabric([9000] * 8)
    assert await prove(fabric.probe, [None] * 8, 8844) == Proof(8844, ())
    assert len(fabric.probes) == 8


async def test_prove__a_dead_plane_is_reported_after_bounded_tries() -> None:
    fabric = Fabric([9000, 0, 9000, 0])
    assert await prove(fabric.probe, [None] * 4, 8844) == Proof(8844, (1, 3))
    assert fabric.tries(1) == [8844, 0, 0, 0]


@pytest.mark.parametrize(
    ("limit", "expected"), [(8844, 8844), (8843, 4096), (1408, 1408), (1500, 1408), (300, 256)]
)
async def test_prove__a_smaller_mtu_on_the_way_lowers_it(limit: int, expected: int) -> None:
    fabric = Fabric([9000, limit])
    assert await prove(fabric.probe, [None] * 2, 8844) == Proof(expected, ())


async def test_prove__one_lost_probe_changes_nothing() -> None:
    fabric = Fabric([9000] * 3, lose_first=1)
    assert await prove(fabric.probe, [None] * 3, 8844) == Proof(8844, ())
    assert fabric.tries(0) == [8844, 0, 8844]


async def test_prove__nothing_answers() -> None:
    fabric = Fabric([0] * 2)
    assert await prove(fabric.probe, [None] * 2, 1024) == Proof(0, (0, 1))


async def test_prove__an_ev_that_carries_only_less_than_the_least_is_dead() -> None:
    fabric = Fabric([9000, 100])
    assert await prove(fabric.probe, [None] * 2, 1024) == Proof(1024, (1,))
    assert fabric.tries(1)[-1] == MIN_MTU


async def test_prove__patience_follows_the_round_trip() -> None:
    fabric = Fabric([9000, 0])
    await prove(fabric.probe, [None] * 2, 1024)
    waits = [timeout for index, _, timeout in fabric.probes if index == 1]
    assert waits[0] == 0.25
    assert waits[1:] == [0.05, 0.1, 0.2]


async def test_prove__patience_grows_while_nothing_answered() -> None:
    fabric = Fabric([0])
    await prove(fabric.probe, [None] * 1, 1024)
    assert [timeout for _, _, timeout in fabric.probes] == [0.25, 0.25, 0.5, 1.0]


async def test_prove__full_size_probes_do_not_flood_the_fabric() -> None:
    fabric = Fabric([9000] * 500)
    await prove(fabric.probe, [None] * 500, 8844)
    assert fabric.most_under_way == 32


# ---- Addresses sent by the peer -------------------------------------------------------------


async def test_prove__an_address_answers_a_small_probe_before_it_gets_large_ones() -> None:
    fabric = Fabric([9000] * 4)
    assert await prove(fabric.probe, ["a", "a", "b", "b"], 8844, 1000) == Proof(8844, ())
    assert fabric.tries(0) == [0, 8844]
    assert [fabric.tries(1), fabric.tries(2), fabric.tries(3)] == [[8844], [0, 8844], [8844]]


async def test_prove__an_address_that_never_answers_gets_small_probes_only() -> None:
    fabric = Fabric([9000, 0, 0])
    proof = await prove(fabric.probe, ["a", "b", "b"], 8844, 10_000)
    assert proof == Proof(8844, (), unproven=(1, 2))
    assert sorted(fabric.tries(1) + fabric.tries(2)) == [0, 0, 0, 0]


async def test_prove__one_dead_ev_does_not_condemn_its_address() -> None:
    fabric = Fabric([0, 9000, 9000])
    assert await prove(fabric.probe, ["a"] * 3, 8844, 10_000) == Proof(8844, (0,))


@pytest.mark.parametrize("allowance", [0, SMALL_BYTES - 1, SMALL_BYTES, 5 * SMALL_BYTES + 7])
async def test_prove__addresses_that_never_answer_get_no_more_than_the_allowance(
    allowance: int,
) -> None:
    fabric = Fabric([0] * 32)
    proof = await prove(fabric.probe, [str(n) for n in range(32)], 8844, allowance)
    assert proof.mtu == 0 and len(proof.unproven) == 32
    assert len(fabric.probes) == allowance // SMALL_BYTES


async def test_prove__a_lost_small_probe_is_repeated_while_the_allowance_lasts() -> None:
    fabric = Fabric([9000] * 32, lose_first=1)
    names = [str(n) for n in range(32)]
    assert (await prove(fabric.probe, names, 8844, 32 * SMALL_BYTES)).mtu == 0
    fabric = Fabric([9000] * 32, lose_first=1)
    assert await prove(fabric.probe, names, 8844, 64 * SMALL_BYTES) == Proof(8844, ())


@pytest.mark.parametrize("agreed", [256, 1000, 1024, 8844, 16384])
def test_candidates__fall_to_the_least(agreed: int) -> None:
    sizes = candidates(agreed)
    assert sizes[0] == agreed
    assert sizes == sorted(set(sizes), reverse=True)
    assert sizes[-1] == MIN_MTU
    assert all(size % 4 == 0 for size in sizes)
