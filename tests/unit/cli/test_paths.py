# SPDX-License-Identifier: Apache-2.0
"""Which paths `mrc paths` calls silent."""

from __future__ import annotations

import asyncio
import errno
import time
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from mrc.cli import paths
from mrc.cli.paths import TRAIN, _probed, measure
from mrc.errors import PeerGoneError
from mrc.events import ProbeResult

EVS = 4


class Answering:
    """A QP whose peer answers each batch of probes on the EVs that a script names."""

    def __init__(self, *batches: Sequence[int]) -> None:
        self.path_mtu = 1024
        self.peer_host = "h1"
        self.peer_has_gone = False
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
        return tuple(
            ProbeResult(each, 0, 1000)
            if each in answers
            else ProbeResult(each, errno.ETIMEDOUT, None)
            for each in asked
        )


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
    qp.peer_has_gone = True
    with pytest.raises(PeerGoneError, match="h1 ended the look"):
        await _probed(qp, 60.0)  # type: ignore[arg-type]
    assert len(qp.asked) == 1


class Leaving:
    """A QP whose peer answers so many probes and then ends the look."""

    def __init__(self, answers: int) -> None:
        self.peer_has_gone = False
        self._left = answers

    async def probe_evs(
        self, evs: Sequence[int], *, payload: int, timeout: float
    ) -> tuple[ProbeResult, ...]:
        self._left -= 1
        self.peer_has_gone = self._left < 0
        error = errno.ETIMEDOUT if self.peer_has_gone else 0
        return tuple(ProbeResult(each, error, None if error else 1000) for each in evs)


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

    peer_has_gone = False

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
        error = errno.ETIMEDOUT if rounds == 1 else 0
        return tuple(ProbeResult(each, error, None if error else 1000) for each in evs)


async def test_measure__what_comes_too_late_after_a_stop_is_not_lost() -> None:
    qp: Any = Stopped()
    found = await measure(qp, list(ALL), 0.2, payload=0, timeout=0.25)
    assert qp.asked > 2 * EVS * TRAIN
    assert {each.lost for each in found.values()} == {0}
