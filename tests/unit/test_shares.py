# SPDX-License-Identifier: Apache-2.0
"""What planes carried beside the others, in numbers and in words."""

from __future__ import annotations

import pytest

from mrc.shares import carried_percent, sentence

MIB = 1 << 20


@pytest.mark.parametrize(
    ("moved", "percents"),
    [
        ({1: 100, 2: 9, 3: 100, 4: 100}, {1: 144, 2: 9, 3: 144, 4: 144}),
        ({1: 300, 2: 30}, {1: 1000, 2: 10}),
        ({1: 5, 2: 5}, {1: 100, 2: 100}),
        ({1: 5, 2: 0}, {1: None, 2: 0}),
        ({1: 0, 2: 0}, {1: None, 2: None}),
        ({3: 7}, {3: 100}),
        ({}, {}),
    ],
)
def test_carried_percent__of_the_mean_of_the_others(
    moved: dict[int, int], percents: dict[int, int | None]
) -> None:
    assert carried_percent(moved) == percents


@pytest.mark.parametrize(
    ("moved_mib", "suspended", "said"),
    [
        ((80, 7, 80, 80), (), "plane 2 carried 9% of the others"),
        ((80, 7, 80, 11), (), "plane 2 carried 12% of the others, plane 4 20%"),
        ((58, 6), (), "plane 2 carried 10% of the others"),
        ((57, 6), (), ""),  # too little in all
        ((80, 40, 80, 80), (), ""),  # half is not less than half
        ((80, 80, 80, 80), (), ""),
        ((80, 7, 80, 80), (2,), ""),  # silent
        ((80, 7, 80, 0), (4,), "plane 2 carried 9% of the others"),
        ((90,), (), ""),
        ((90, 0), (2,), ""),
        ((0, 90), (1, 2), ""),
        ((9, 7, 3, 6, 6, 6, 6, 6, 6, 6, 6), (), ""),  # others have too little to compare with
    ],
)
def test_sentence__of_planes_below_half(
    moved_mib: tuple[int, ...], suspended: tuple[int, ...], said: str
) -> None:
    moved = {plane: mib * MIB for plane, mib in enumerate(moved_mib, 1)}
    assert sentence(moved, suspended) == said
