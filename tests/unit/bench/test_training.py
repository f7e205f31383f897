# SPDX-License-Identifier: Apache-2.0
"""Figures of `bench/training` from the steps of a run, and their picture."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any
from xml.etree import ElementTree

import pytest
import training_figures as figures
import training_svg
from failover_run import repeated

STORY = figures.STORY
PARTS = figures.chapters(STORY.events, STORY.seconds, 4)


def run_of(name: str, *, stalled: bool = False) -> dict[str, Any]:
    """Steps of 0.1 s, longer by the missing planes. Who stalls takes no step in a fault."""
    steps, now = [], 0.0
    while now < STORY.seconds:
        (part,) = [part for part in PARTS if part.begin <= now < part.end]
        took = part.end - now + 0.1 if stalled and part.name else 0.1 * 4 / part.planes
        steps.append((now, min(took, STORY.seconds - now)))
        now += took
    return {
        "contender": name, "seconds": STORY.seconds, "steps": steps,
        "events": [asdict(event) for event in STORY.events],
        "losses": [1 / (1 + number) for number in range(len(steps))],
        "chapters": figures.figures(steps, PARTS),
    }  # fmt: skip


def test_chapters__flaps_and_planes_that_fail_together_are_one() -> None:
    assert [(part.begin, part.end, part.planes) for part in PARTS if part.name] == [
        (4, 8, 3), (11, 15, pytest.approx(3.1)), (18, 21, 2), (24, 27.5, 3), (30, 33, 3),
        (36, 38, 3),
    ]  # fmt: skip
    assert [part.planes for part in PARTS if not part.name] == [4] * 7


def test_spans__the_last_step_has_no_end() -> None:
    spans = figures.spans_of([10.0, 10.5, 11.2, 20.0], [0.5, 0.6, 8.0], 10.0, 5.0)
    assert spans == [
        (0.0, 0.5), (pytest.approx(0.6), 0.6), (pytest.approx(1.2), pytest.approx(3.8)),
    ]  # fmt: skip
    assert figures.spans_of([10.0], [], 10.0, 5.0) == [(0.0, 5.0)]


def test_figures__a_long_step_counts_in_each_chapter_that_it_meets() -> None:
    parts = [figures.Chapter("", 0, 2, 4), figures.Chapter("a", 2, 4, 3),
             figures.Chapter("", 4, 6, 4)]  # fmt: skip
    steps = [(0.0, 1.0), (1.0, 0.9), (1.9, 2.6), (4.5, 1.0)]
    before, fault, after = figures.figures(steps, parts)
    assert (before["steps"], before["median_seconds"], before["longest_seconds"]) == (3, 1.0, 2.6)
    assert (fault["steps"], fault["median_seconds"], fault["longest_seconds"]) == (0, None, 2.6)
    assert (after["steps"], after["longest_seconds"]) == (1, 2.6)


def test_checks__met_by_who_uses_the_planes_that_are_left() -> None:
    found = list(figures.checks(run_of("mrc"), 4))
    assert len(found) == 18 and all(check.met for check in found)


def test_checks__a_stall_is_seen() -> None:
    found = {check.name: check for check in figures.checks(run_of("mrc", stalled=True), 4)}
    longest = found["plane 1 silent: longest step, of the first median"]
    assert longest.value == pytest.approx(41, abs=1.1) and not longest.met


def test_same_losses__as_far_as_each_came() -> None:
    ours, theirs = run_of("mrc"), run_of("TCP", stalled=True)
    assert len(ours["losses"]) > len(theirs["losses"]) and figures.same_losses([ours, theirs])
    theirs["losses"][3] += 1e-12
    assert not figures.same_losses([ours, theirs])


def test_repeated__the_run_with_the_median_of_the_steps_is_shown() -> None:
    runs = iter([{"steps": [0] * count} for count in (9, 5, 7, 3)])
    shown, every = repeated("mrc", 3, lambda: next(runs), figures.steps_of)
    assert len(shown["steps"]) == 7 and len(every) == 3
    shown, every = repeated("TCP", 3, lambda: next(runs), figures.steps_of)
    assert every == [shown] and len(shown["steps"]) == 3


def test_picture__a_row_for_each_contender_and_every_fault_by_name() -> None:
    pytest.importorskip("matplotlib")
    svg = training_svg.steps_svg([run_of("mrc"), run_of("TCP", stalled=True)], 4)
    texts = {"".join(node.itertext()).strip() for node in ElementTree.fromstring(svg).iter()}
    assert {"mrc", "TCP"} <= texts
    assert {part.name for part in PARTS if part.name} <= texts
