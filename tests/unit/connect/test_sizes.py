# SPDX-License-Identifier: Apache-2.0
"""The search for the largest payload, against paths that answer at once."""

from __future__ import annotations

import pytest

from mrc.connect.proof import NEAR_BYTES, SizeSearch, common_sizes, sizes_between
from mrc.limits import MIN_MTU

NEEDED = 4


def search(limit: int, goal: int, *, refine: bool = True) -> tuple[SizeSearch, int]:
    """A search that is over, and how many probes it needed."""
    made = SizeSearch(goal)
    made.widen()
    probes = 0
    while not made.over:
        for size in made.next_sizes():
            probes += 1
            (made.on_answer if size <= limit else made.on_miss)(size)
        made.settle(NEEDED, refine=refine)
    return made, probes


@pytest.mark.parametrize("limit", [8843, 5000, 2049, 1500, 1408, 1400, 1309, 1308, 1240, 300, 256])
def test_search__finds_the_size(limit: int) -> None:
    found, probes = search(limit, 8844)
    assert limit - NEAR_BYTES < found.low <= limit
    assert found.low % 4 == 0
    assert probes < 80


@pytest.mark.parametrize(
    ("room", "payload"),
    [(1500 - 92, 1408), (1500 - 72, 1428), (1420 - 92, 1328), (1400 - 72, 1328)],
)
def test_search__finds_common_sizes_exactly(room: int, payload: int) -> None:
    found, probes = search(room, 8908)
    assert found.low == payload
    assert probes < 60


def test_search__of_a_path_that_carries_the_goal_asks_once() -> None:
    found, probes = search(9000, 1408)
    assert (found.low, found.failed) == (1408, False)
    assert probes == len(common_sizes(1408)) + 1


def test_search__of_a_path_that_carries_less_than_the_least() -> None:
    found, _ = search(100, 8844)
    assert (found.low, found.above, found.over) == (0, MIN_MTU, True)


def test_search__without_time_ends_with_a_common_size() -> None:
    assert search(1500, 8908, refine=False)[0].low == 1428


def test_settle__fewer_misses_than_needed_decide_nothing() -> None:
    made = SizeSearch(1408)
    for _ in range(NEEDED - 1):
        made.on_miss(1408)
        made.settle(NEEDED, refine=True)
        assert not made.failed and not made.over
    made.on_miss(1408)
    made.settle(NEEDED, refine=True)
    assert made.failed and made.over


def test_on_answer__a_late_answer_overturns_too_large() -> None:
    made = SizeSearch(1408)
    for _ in range(NEEDED):
        made.on_miss(1408)
    made.settle(NEEDED, refine=True)
    made.widen()
    assert 1408 not in made.next_sizes()
    made.on_answer(1408)
    assert (made.low, made.failed, made.over) == (1408, False, True)


def test_next_sizes__only_those_that_decide_are_asked_again() -> None:
    made = SizeSearch(1408)
    made.widen()
    made.next_sizes()
    made.on_answer(1208)
    assert made.next_sizes() == [1308, 1328]


@pytest.mark.parametrize("above", [260, 1000, 1024, 8844, 16384])
def test_common__falls_to_the_least(above: int) -> None:
    sizes = common_sizes(above)
    assert all(size < above for size in sizes)
    assert sizes == sorted(set(sizes), reverse=True)
    assert sizes[-1] == MIN_MTU
    assert all(size % 4 == 0 for size in sizes)


@pytest.mark.parametrize(("low", "above"), [(256, 512), (1408, 2048), (4096, 8844), (1308, 1328)])
def test_between__a_few_sizes_inside(low: int, above: int) -> None:
    sizes = sizes_between(low, above)
    assert 1 <= len(sizes) <= 7
    assert low < sizes[0] and sizes[-1] < above
    assert all(size % 4 == 0 for size in sizes)


def test_between__nothing_is_left_to_find() -> None:
    assert sizes_between(1308, 1308 + NEAR_BYTES) == []
