# SPDX-License-Identifier: Apache-2.0
"""Which paths `mrc paths` calls silent, and the links at fault."""

from __future__ import annotations

import asyncio
import errno
import time
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from mrc.cli import paths
from mrc.cli.paths import (
    TRAIN,
    Quality,
    Train,
    _probed,
    extra_delays,
    failed,
    measure,
    quality,
)
from mrc.enums import PairState
from mrc.errors import PeerGoneError
from mrc.events import Ended, PairInfo, ProbeResult

EVS = 4


def probed(ev: int, answered: bool) -> ProbeResult:
    return ProbeResult(ev, 0, 1000) if answered else ProbeResult(ev, errno.ETIMEDOUT, None)


class Answering:
    """A QP whose peer answers each batch of probes on the EVs that a script names."""

    def __init__(self, *batches: Sequence[int]) -> None:
        self.path_mtu = 1024
        self.peer = SimpleNamespace(host="h1")
        self.ended: Ended | None = None
        self.asked: list[list[int]] = []
        self._batches = iter(batches)

    async def evs(self) -> list[Any]:
        return [SimpleNamespace(rtt_ns=1000) for _ in range(EVS)]

    async def probe_evs(
        self, evs: Sequence[int] | None = None, *, payload: int, timeout: float
    ) -> tuple[ProbeResult, ...]:
        assert (payload, timeout) == (1024, paths.LEAST_PROBE_SECONDS)
        asked = list(range(EVS) if evs is None else evs)
        self.asked.append(asked)
        answers = next(self._batches)
        return tuple(probed(each, each in answers) for each in asked)


ALL = range(EVS)


@pytest.mark.parametrize(
    ("batches", "dead", "asked"),
    [
        ((ALL,), [], [[0, 1, 2, 3]]),
        (((0, 2), (0, 1, 3)), [], [[0, 1, 2, 3], [1, 3, 0, 2]]),  # a path may lose a packet
        (((0, 2), (0,)), [1, 3], [[0, 1, 2, 3], [1, 3, 0, 2]]),
        (((0, 2), (), (), (0,)), [1, 3], [[0, 1, 2, 3], *[[1, 3, 0, 2]] * 3]),
        (((0, 2), (0, 1), (0,)), [3], [[0, 1, 2, 3], [1, 3, 0, 2], [3, 0, 1, 2]]),
        (((), (), (), ALL), [], [[0, 1, 2, 3]] * 4),
        (((), (), (2,), (2,)), [0, 1, 3], [*[[0, 1, 2, 3]] * 3, [0, 1, 3, 2]]),
    ],
    ids=["none", "loss", "two", "stops-later", "fewer", "stands-still", "all-but-one"],
)
async def test_probed__silence_counts_while_the_peer_answers(
    batches: tuple[Sequence[int], ...], dead: list[int], asked: list[list[int]]
) -> None:
    """A host that stands still for a second answers on no path: that says nothing about a path."""
    qp = Answering(*batches)
    found = await _probed(qp, 60.0)  # type: ignore[arg-type]
    assert [each.index for each in found if not each.answered] == dead
    assert [each.index for each in found] == list(ALL)
    assert qp.asked == asked


async def test_probed__a_peer_that_never_answers() -> None:
    qp = Answering((), (), ())
    found = await _probed(qp, 1e-9)  # type: ignore[arg-type]
    assert not any(each.answered for each in found)
    assert len(qp.asked) == 2


async def test_probed__a_peer_that_ended_the_look_says_nothing() -> None:
    qp = Answering(())
    qp.ended = Ended(True, None)
    with pytest.raises(PeerGoneError, match="h1 ended the look"):
        await _probed(qp, 60.0)  # type: ignore[arg-type]
    assert len(qp.asked) == 1


def pair(nic: str, peer: str, address: str, state: PairState, **more: Any) -> PairInfo:
    given = {"peer_address": "10.0.0.9", "plane": None, "why": "", "weight_percent": 100}
    counts = {"paths": 0, "answering_paths": 0}
    return PairInfo(nic=nic, peer_nic=peer, address=address, state=state, **given | counts | more)


def test_pairs_block__useless_crossings_of_addresses_are_left_out() -> None:
    used = pair("e0", "e0", "fd00::1", PairState.USED, plane=2, weight_percent=50, paths=8,
                answering_paths=7)  # fmt: skip
    pairs = [
        pair("e0", "e0", "10.0.0.1", PairState.UNFIT, why="no common IP version"),
        pair("e0", "e0", "10.0.0.1", PairState.WAITS, why="not needed"),
        used,
        pair("e1", "e0", "10.0.1.1", PairState.UNFIT, why="no common IP version"),
    ]
    assert paths._pairs_block(pairs).rows == [
        ["e0 (fd00::1)", "e0 (10.0.0.9)", "2", "USED (weight 50)", "7 of 8", ""],
        ["e0 (10.0.0.1)", "e0 (10.0.0.9)", "-", "WAITS", "-", "not needed"],
        ["e1 (10.0.1.1)", "e0 (10.0.0.9)", "-", "UNFIT", "-", "no common IP version"],
    ]


class Leaving:
    """A QP whose peer answers so many probes and then ends the look."""

    def __init__(self, answers: int) -> None:
        self.ended: Ended | None = None
        self._left = answers

    async def probe_evs(
        self, evs: Sequence[int], *, payload: int, timeout: float
    ) -> tuple[ProbeResult, ...]:
        self._left -= 1
        self.ended = Ended(True, None) if self._left < 0 else None
        return tuple(probed(each, self._left >= 0) for each in evs)


@pytest.mark.parametrize(
    ("answers", "sent", "lost"), [(2 * EVS * TRAIN, 2 * TRAIN, 0), (0, TRAIN, 3)]
)
async def test_measure__what_is_sent_after_the_look_is_not_lost(
    answers: int, sent: int, lost: int
) -> None:
    qp: Any = Leaving(answers)
    found = await measure(qp, list(ALL), 60.0, payload=0, timeout=0.25)
    assert {(each.sent, each.lost) for each in found.values()} == {(sent, lost)}


class Stopped:
    """A QP without answers to the second round of probes, in which this process is stopped."""

    ended = None

    def __init__(self) -> None:
        self.asked = 0

    async def probe_evs(
        self, evs: Sequence[int], *, payload: int, timeout: float
    ) -> tuple[ProbeResult, ...]:
        self.asked += 1
        rounds = (self.asked - 1) // (EVS * TRAIN)
        if self.asked == 2 * EVS * TRAIN:
            time.sleep(0.5)  # noqa: ASYNC251 the stop
        await asyncio.sleep(0)
        return tuple(probed(each, rounds != 1) for each in evs)


async def test_measure__what_comes_too_late_after_a_stop_is_not_lost() -> None:
    qp: Any = Stopped()
    found = await measure(qp, list(ALL), 0.2, payload=0, timeout=0.25)
    assert qp.asked > 2 * EVS * TRAIN
    assert {each.lost for each in found.values()} == {0}


# ---- Quality and location of faults --------------------------------------------------------------


def shown(
    sent: int, lost: int, shortest_ns: int | None, jitter_ns: int | None, reordered: int
) -> Quality:
    return Quality(
        sent=sent, lost=lost, loss=lost / sent, shortest_ns=shortest_ns, extra_delay_ns=None,
        jitter_ns=jitter_ns, reordered=reordered,
    )  # fmt: skip


def test_quality__of_answers_in_order() -> None:
    trains = [Train((1000, 1200, 1100), (0, 1, 2)), Train((1500, 1500, 1500), (0, 1, 2))]
    assert quality(trains) == shown(
        sent=6, lost=0, shortest_ns=1000, jitter_ns=round((200 + 100 + 400) / 5), reordered=0
    )


def test_quality__of_losses_and_overtaken_answers() -> None:
    trains = [Train((1000, None, 900), (2, 0)), Train((None, None, None), ())]
    assert quality(trains) == shown(sent=6, lost=4, shortest_ns=900, jitter_ns=100, reordered=1)


def test_quality__without_answers() -> None:
    assert quality([Train((None,), ())]) == shown(1, 1, None, None, 0)
    assert quality([Train((7,), (0,))]).jitter_ns is None


def test_extra_delays__beside_the_best_of_the_plane() -> None:
    found = {index: shown(1, 0, ns, None, 0) for index, ns in enumerate((900, 700, 5000, None))}
    planes = {0: 1, 1: 1, 2: 2, 3: 2}
    assert extra_delays(found, planes) == {0: 200, 1: 0, 2: 0, 3: None}


def test_failed__beside_the_best_of_the_plane() -> None:
    """Plane 1: a path loses, and the answers of all. Plane 2: all lose. Plane 3: none."""
    lost = {0: 50, 1: 25, 2: 27, 3: 100, 4: 100, 5: 1, 6: 0}
    planes = {0: 1, 1: 1, 2: 1, 3: 2, 4: 2, 5: 3, 6: 3}
    found = {index: shown(100, each, None, None, 0) for index, each in lost.items()}
    assert failed(found, planes) == {0, 3, 4}
    assert failed({}, {}) == set()


def test_failed__more_than_chance_explains() -> None:
    few = {index: shown(24, lost, None, None, 0) for index, lost in enumerate((10, 16))}
    assert failed(few, {0: 1, 1: 1}) == {0, 1}  # both lose about half
    many = {index: shown(240, lost, None, None, 0) for index, lost in enumerate((100, 160))}
    assert failed(many, {0: 1, 1: 1}) == {1}
