# SPDX-License-Identifier: Apache-2.0
"""Which paths `mrc paths` calls silent."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from mrc.cli import paths
from mrc.cli.paths import _probed
from mrc.events import ProbeResult

EVS = 4


class Answering:
    """A QP whose peer answers each batch of probes on the EVs that a script names."""

    def __init__(self, *batches: Sequence[int]) -> None:
        self.path_mtu = 1024
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
