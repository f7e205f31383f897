# SPDX-License-Identifier: Apache-2.0
"""Shares of planes compared with the others, in numbers and in words."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from unit.transfer.test_joined import PLANE

from mrc.cli.figures import carried_percent, sentence
from mrc.cli.output import Output
from mrc.transfer.cli.report import ProgressMeter, carried_bytes

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
    ("moved_mib", "said"),
    [
        ((80, 7, 80, 80), "plane 2 carried 9% of the others"),
        ((80, 7, 80, 11), "plane 2 carried 12% of the others, plane 4 20%"),
        ((58, 6), "plane 2 carried 10% of the others"),
        ((58, 6, 0), "plane 2 carried 10% of the others"),  # plane 3 was down
        ((80, 0, 80, 80), ""),
        ((57, 6), ""),  # too little in all
        ((80, 40, 80, 80), ""),  # half is not less than half
        ((80, 80, 80, 80), ""),
        ((90,), ""),
        ((9, 7, 3, 6, 6, 6, 6, 6, 6, 6, 6), ""),  # others have too little to compare with
    ],
)
def test_sentence__of_planes_below_half(moved_mib: tuple[int, ...], said: str) -> None:
    assert sentence({plane: mib * MIB for plane, mib in enumerate(moved_mib, 1)}) == said


def test_sentence__a_lost_plane_is_not_slow() -> None:
    moved = {1: 80 * MIB, 2: 30 * MIB, 3: 7 * MIB}
    assert sentence(moved, lost={2}) == "plane 3 carried 9% of the others"
    assert sentence(moved, lost={2, 3}) == ""


def test_sentence__of_what_each_end_saw() -> None:
    planes = [
        replace(PLANE, plane=plane, sent_bytes=sent * MIB, received_bytes=received * MIB)
        for plane, sent, received in ((1, 90, 8), (2, 9, 80))
    ]
    assert sentence(carried_bytes("sender", planes)) == "plane 2 carried 10% of the others"
    assert sentence(carried_bytes("receiver", planes)) == "plane 1 carried 10% of the others"


@pytest.mark.parametrize(("quiet", "said"), [(False, "mrc send: plane 2\n"), (True, "")])
def test_note__on_stderr_unless_quiet(
    quiet: bool, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    out = Output("mrc send", as_json=True, quiet=quiet)
    meter = ProgressMeter(out, "sender")
    meter.note("")
    meter.note("plane 2")
    assert capsys.readouterr() == ("", said)
