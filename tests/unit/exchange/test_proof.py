# SPDX-License-Identifier: Apache-2.0
"""The proof of paths against fabrics with a known limit for each EV."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Hashable, Sequence

import pytest

from mrc.errors import StateError
from mrc.events import ProbeResult
from mrc.exchange import proof as proofs
from mrc.exchange.proof import MIN_MTU, NEAR_BYTES, SMALL_BYTES, Proof, between, common

RTT_NS = 1_000_000


async def prove(
    probe: proofs.Probe,
    destinations: Sequence[Hashable],
    agreed: int,
    allowance: int = 0,
    planes: Sequence[int] = (),
) -> Proof:
    """All EVs are of plane 1, unless `planes` says otherwise."""
    planes = planes or [1] * len(destinations)
    return await proofs.prove(probe, destinations, agreed, allowance, planes=planes)


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
    assert await prove(fabric.probe, [None] * 8, 8844) == Proof({1: 8844}, ())
    assert len(fabric.probes) == 8


async def test_prove__a_dead_plane_is_reported_after_bounded_tries() -> None:
    fabric = Fabric([9000, 0, 9000, 0])
    assert await prove(fabric.probe, [None] * 4, 8844) == Proof({1: 8844}, (1, 3))
    assert fabric.tries(1) == [8844, 0, 0, 0]


@pytest.mark.parametrize("limit", [8843, 5000, 2049, 1500, 1408, 1400, 1309, 1308, 1240, 300, 256])
async def test_prove__a_smaller_mtu_on_the_way_is_found(limit: int) -> None:
    fabric = Fabric([9000, limit])
    found = (await prove(fabric.probe, [None] * 2, 8844, planes=[1, 2])).carried
    assert found[1] == 8844
    assert limit - NEAR_BYTES < found[2] <= limit
    assert found[2] % 4 == 0


@pytest.mark.parametrize(
    ("room", "payload"),
    [(1500 - 92, 1408), (1500 - 72, 1428), (1420 - 92, 1328), (1400 - 72, 1328)],
)
async def test_prove__common_mtus_are_found_exactly_and_at_once(room: int, payload: int) -> None:
    fabric = Fabric([room])
    assert (await prove(fabric.probe, [None], 8908)).mtu == payload
    assert len(fabric.probes) < 50


async def test_prove__a_search_that_takes_long_ends_with_a_common_size(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(proofs, "_SEARCH_SECONDS", 0.0)
    assert (await prove(Fabric([1500]).probe, [None], 8908)).mtu == 1428


async def test_prove__one_ev_of_a_plane_searches_for_the_others() -> None:
    fabric = Fabric([1400] * 8 + [3000] * 8 + [9000] * 8)
    planes = [1] * 8 + [2] * 8 + [3] * 8
    found = (await prove(fabric.probe, [None] * 24, 8844, planes=planes)).carried
    assert found == {1: pytest.approx(1392, abs=8), 2: pytest.approx(2992, abs=8), 3: 8844}
    for evs in (range(8), range(8, 16)):
        tries = sorted(len(fabric.tries(index)) for index in evs)
        assert tries[-2] <= 5, "full size, small, twice full size, the size that was found"


async def test_prove__an_ev_that_carries_less_than_the_others_of_its_plane() -> None:
    fabric = Fabric([1400, 1200, 1400])
    assert 1184 < (await prove(fabric.probe, [None] * 3, 8844)).mtu <= 1200


async def test_prove__one_lost_probe_changes_nothing() -> None:
    fabric = Fabric([9000] * 3, lose_first=1)
    assert await prove(fabric.probe, [None] * 3, 8844) == Proof({1: 8844}, ())
    assert fabric.tries(0) == [8844, 0, 8844]


async def test_prove__nothing_answers() -> None:
    fabric = Fabric([0] * 2)
    assert await prove(fabric.probe, [None] * 2, 1024) == Proof({}, (0, 1))


async def test_prove__an_ev_that_carries_only_less_than_the_least_is_dead() -> None:
    fabric = Fabric([9000, 100])
    assert await prove(fabric.probe, [None] * 2, 1024) == Proof({1: 1024}, (1,))
    assert min(size for size in fabric.tries(1) if size) == MIN_MTU


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
    assert await prove(fabric.probe, ["a", "a", "b", "b"], 8844, 1000) == Proof({1: 8844}, ())
    assert fabric.tries(0) == [0, 8844]
    assert [fabric.tries(1), fabric.tries(2), fabric.tries(3)] == [[8844], [0, 8844], [8844]]


async def test_prove__an_address_that_never_answers_gets_small_probes_only() -> None:
    fabric = Fabric([9000, 0, 0])
    proof = await prove(fabric.probe, ["a", "b", "b"], 8844, 10_000)
    assert proof == Proof({1: 8844}, (), unproven=(1, 2))
    assert sorted(fabric.tries(1) + fabric.tries(2)) == [0, 0, 0, 0]


async def test_prove__one_dead_ev_does_not_condemn_its_address() -> None:
    fabric = Fabric([0, 9000, 9000])
    assert await prove(fabric.probe, ["a"] * 3, 8844, 10_000) == Proof({1: 8844}, (0,))


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
    assert await prove(fabric.probe, names, 8844, 64 * SMALL_BYTES) == Proof({1: 8844}, ())


@pytest.mark.parametrize("destinations", [[None], ["a"], ["a", "b"]])
async def test_prove__raises_the_error_of_a_probe(destinations: list[str | None]) -> None:
    """For example, when the program of an agent's QP ends meanwhile."""

    async def closed(index: int, payload: int, timeout: float) -> ProbeResult:
        raise StateError("the Context was closed")

    with pytest.raises(StateError, match="the Context was closed"):
        await prove(closed, destinations, 8844, 32 * SMALL_BYTES)


@pytest.mark.parametrize("above", [260, 1000, 1024, 8844, 16384])
def test_common__falls_to_the_least(above: int) -> None:
    sizes = common(above)
    assert all(size < above for size in sizes)
    assert sizes == sorted(set(sizes), reverse=True)
    assert sizes[-1] == MIN_MTU
    assert all(size % 4 == 0 for size in sizes)


@pytest.mark.parametrize(("low", "above"), [(256, 512), (1408, 2048), (4096, 8844), (1308, 1328)])
def test_between__a_few_sizes_inside(low: int, above: int) -> None:
    sizes = between(low, above)
    assert 1 <= len(sizes) <= 7
    assert low < sizes[0] and sizes[-1] < above
    assert all(size % 4 == 0 for size in sizes)


def test_between__nothing_is_left_to_find() -> None:
    assert between(1308, 1308 + NEAR_BYTES) == []
