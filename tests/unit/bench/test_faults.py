# SPDX-License-Identifier: Apache-2.0
"""Figures of `bench/failover` and `bench/training` from a run, and their display."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import faults
import figures
import pictures
import pytest
import steps
import streams

from mrc.sim import drawing

SVG = "{http://www.w3.org/2000/svg}"
BENCH = Path(__file__).parents[3] / "bench"
PLANE_BPS = 400e6
BIN = 0.001
BYTES = int(PLANE_BPS / 8 * BIN)  # bytes of a plane in a bin
SHORT = 10.0  # speed-up over the scenario


def ideal(events: Any, seconds: float) -> list[int]:
    """Bins of a contender with the full rate of the planes without a fault."""
    parts = faults.phases(events, seconds, 4)
    bins = []
    for i in range(round(seconds / BIN)):
        (planes,) = [p.planes for p in parts if p.start <= (i + 0.5) * BIN < p.end]
        bins.append(round(planes * BYTES))
    return bins


def run_of(name: str, bins: Sequence[float], story: Any = None, **seen: Any) -> dict[str, Any]:
    """A run through the story as in JSON, by default shortened."""
    bed = SimpleNamespace(planes=4, payload_capacity_bps=lambda: 4 * PLANE_BPS)
    contender: Any = SimpleNamespace(name=name, what="as <usual>", measured="bytes", bed=bed)
    story = story or faults.STORY.faster(SHORT)
    counts: Any = list(bins)
    got = streams.Seen(start=100.0, width=BIN, streams=[counts], **seen)
    found: dict[str, Any] = faults.document(contender, story, list(story.events), got, 100.0)
    return found | {"stolen_cpu_seconds": 0.25}


def result_of() -> dict[str, Any]:
    """A whole result: mrc without losses, and a rival that stalls."""
    story = faults.STORY.faster(SHORT)
    bins = ideal(story.events, story.seconds)
    changes = [
        {"at": 101.2 + i / 10, "plane": 1, "path": "t1:1.0", "old": old, "new": new,
         "reason": "LOSS"}
        for i, (old, new) in enumerate([("GOOD", "ASSUMED_BAD"), ("ASSUMED_BAD", "GOOD")])
    ]  # fmt: skip
    ours = run_of(
        "mrc", bins,
        planes={str(plane): [count // 4 for count in bins] for plane in range(1, 5)},
        evs=[{"plane": p, "path": f"t1:{p}.{i}"} for p in range(1, 5) for i in range(2)],
        ev_changes=changes,
        plane_changes=[
            {"at": 100.21, "plane": 1, "suspended": True, "reason": "SILENT"},
            {"at": 100.61, "plane": 1, "suspended": False, "reason": "PROBED"},
        ],
    )  # fmt: skip
    stalled = [0 if 200 <= i < 900 else count // 4 for i, count in enumerate(bins)]
    theirs = run_of("TCP & <co>", stalled)
    checks = faults.checks(ours)
    return {
        "bed": {"planes": 4, "t1": 2, "mtu": 9000, "rate_bits_per_second": 500_000_000,
                "plane_payload_bits_per_second": PLANE_BPS},
        "runs": [ours, theirs],
        "repeats": 1,
        "checks": figures.told([list(checks)]),
        "skipped": {"UCX over TCP": "not here"},
    }  # fmt: skip


# ---- figures ------------------------------------------------------------------------------------


def test_phases__a_slow_plane_counts_for_what_it_has_left() -> None:
    story = faults.STORY
    found = faults.phases(story.events, story.seconds, 4)
    assert [(p.start, p.end, p.planes) for p in found] == [
        (0, 2, 4), (2, 6, 3), (6, 8, 4), (8, 10, 3), (10, 12, 4), (12, 14, 3), (14, 16, 4),
        (16, 18, pytest.approx(3.1)), (18, 20, 4),
    ]  # fmt: skip
    one_by_one = faults.ONE_BY_ONE
    found = faults.phases(one_by_one.events, one_by_one.seconds, 4)
    assert [p.planes for p in found] == [4, 3, 2, 1, 0, 1, 4]


def test_stall__holes_and_what_never_came() -> None:
    series = faults.Series(10.0, 0.001, [1, 0, 0, 1, 1, 0, 0, 0])
    assert series.stall(10.0, 10.005) == pytest.approx((0.003, 10.001))
    assert series.stall(10.0, 10.008) == pytest.approx((0.004, 10.005))
    assert series.stall(10.0, 10.020) == pytest.approx((0.016, 10.005))
    assert series.stall(10.003, 10.005)[0] == 0.0


def checks_of(bins: Sequence[float], story: Any = None) -> dict[str, Any]:
    return {check.name: check for check in faults.checks(run_of("mrc", bins, story))}


def test_checks__all_met_by_who_always_has_the_capacity() -> None:
    story = faults.STORY.faster(SHORT)
    found = checks_of(ideal(story.events, story.seconds))
    assert len(found) == 16
    assert all(check.met for check in found.values())


def test_checks__a_gap_is_seen_and_so_is_who_never_returns() -> None:
    story = faults.STORY.faster(SHORT)
    bins = ideal(story.events, story.seconds)
    late = [0 if 200 <= i < 212 else count for i, count in enumerate(bins)]
    found = checks_of(late)
    # 1.5 ms of silence are 3% of the 50 ms over which goodput is averaged.
    assert found["plane 1 silent: back to 97%, s"].value == pytest.approx(0.011, abs=0.001)
    assert found["plane 1 silent: back to 97%, s"].met
    assert found["plane 1 silent: longest gap in the first 0.1 s"].value == pytest.approx(0.013)
    assert not found["plane 1 silent: longest gap in the first 0.1 s"].met
    gone = [2 * BYTES if 200 <= i < 600 else count for i, count in enumerate(bins)]
    found = checks_of(gone)
    assert found["plane 1 silent: back to 97%, s"].value == pytest.approx(0.4)
    assert found["plane 1 silent: mean from then on"].value == pytest.approx(2 / 3, abs=0.01)
    assert not found["plane 1 silent: back to 97%, s"].met
    assert found["NIC link down: back to 97%, s"].met


def test_checks__what_a_slow_plane_has_left_is_wanted_too() -> None:
    """The check requires the slow plane's remaining rate, and its full rate after it heals."""
    story = faults.STORY
    bins = ideal(story.events, story.seconds)
    slow = [2.9 * BYTES if 16.05 <= i * BIN < 18 else count for i, count in enumerate(bins)]
    lame = [3 * BYTES if i * BIN >= 18 else count for i, count in enumerate(bins)]
    late = [BYTES if 16 <= i * BIN < 16.3 else count for i, count in enumerate(bins)]
    for seen, name, value, is_met in (
        (bins, "plane 1 at 10%: back to 95%, s", 0, True),
        (bins, "plane 1 at 10%: mean from then on", 1, True),
        (bins, "full rate again: capacity used again, s", 0, True),
        (slow, "plane 1 at 10%: mean from then on", 2.9 / 3.1, False),
        (late, "plane 1 at 10%: back to 95%, s", 0.3 - 0.05 * 0.05 * 3.1 / 2.1, False),
        (lame, "full rate again: capacity used again, s", 2, False),
    ):
        check = checks_of(seen, story)[name]
        assert check.value == pytest.approx(value, abs=0.002), name
        assert check.met is is_met


def test_checks__a_dip_while_a_plane_returns() -> None:
    story = faults.STORY.faster(SHORT)
    bins = ideal(story.events, story.seconds)
    dip = [BYTES if 610 <= i < 660 else count for i, count in enumerate(bins)]
    dip = [3 * BYTES if 600 <= i < 610 else count for i, count in enumerate(dip)]
    check = checks_of(dip)["plane 1 healed: worst 50 ms until then"]
    assert check.value == pytest.approx(0.36, abs=0.02)  # 48 ms of a third, 2 ms of all
    assert not check.met


def test_seen_by_mrc__reads_perf() -> None:
    bins = {"start_monotonic_ns": 5_000_000_000, "width_ns": 500_000, "bytes": [1, 2],
            "planes": [{"plane": 1, "bytes": [1, 0]}, {"plane": 2, "bytes": [0, 2]}]}  # fmt: skip
    changes = {
        "start_monotonic_ns": 4_000_000_000,
        "evs": [{"at_ns": 250_000_000, "plane": 1, "path": "t1:1.0", "new": "SKIP"}],
        "planes": [],
    }
    client = {"changes": changes, "retransmitted_bytes": 77}
    seen = streams.seen_by_mrc({"results": [{"client": client, "server": {"bins": bins}}]})
    assert (seen.start, seen.width, seen.streams) == (5.0, 0.0005, [[1, 2]])
    assert seen.planes == {"1": [1, 0], "2": [0, 2]}
    assert (seen.ev_changes[0]["at"], seen.resent_bytes) == (4.25, 77)


# ---- what is shown ------------------------------------------------------------------------------


def test_text__figures_and_checks() -> None:
    shown = "\n".join(faults.lines(result_of()))
    assert "mrc: 98% of the planes' capacity; longest stall 0 ms" in shown  # it uses no lossy plane
    assert "TCP & <co>: " in shown and "longest stall 0.70 s" in shown
    assert re.search(r"plane 1 silent: back to 97%, s +0 +0 - 0 +<= 0.02 +met", shown)


def test_failover__names_checks_that_are_not_judged(tmp_path: Path) -> None:
    """The result of an earlier run, without and with other load. What is met is always judged."""
    result = result_of()
    result["checks"].append({**result["checks"][0], "name": "missed", "met": False})
    for busy, code, said in (
        ("", 0, "NOT MET"), ("this machine is busy: so", 77, "not judged"),
    ):  # fmt: skip
        file = tmp_path / "run.json"
        file.write_text(json.dumps({**result, "busy": busy}))
        command: list[str | Path] = [sys.executable, BENCH / "failover", "--from", file]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert "\nleft out: UCX over TCP: not here\n" in done.stdout
        found = re.findall(r"(NOT MET|not judged|met)$", done.stdout, re.MULTILINE)
        assert found == ["met"] * (len(result["checks"]) - 1) + [said]
        assert done.returncode == code, done.stderr
        expected = f"bench: not judged: missed: {busy}. Run it again on an idle machine\n"
        assert done.stderr == (expected if busy else "")


def test_story_svg__every_mark_is_there_once_in_the_colours_of_the_theme() -> None:
    runs = result_of()["runs"]
    picture = pictures.story_svg(runs, 4, PLANE_BPS)
    assert picture == pictures.story_svg(runs, 4, PLANE_BPS)
    root = ElementTree.fromstring(drawing.standalone(picture))
    assert root.tag == f"{SVG}svg"
    found = [element.text for element in root.iter(f"{SVG}text")]
    names = [event["name"] for event in runs[0]["events"]]
    legend = ["a plane's goodput: none", "full", "EV good", "skipped", "bad",
              "plane suspended"]  # fmt: skip
    planes = [f"plane {plane}" for plane in range(1, 5)]
    summaries = [faults.summary(run) for run in runs]
    for words in (*names, *legend, *planes, *summaries, "mrc: planes and their EVs", "time, s",
                  "mrc", "TCP & <co>"):  # fmt: skip
        assert found.count(words) == 1, words
    assert found.count("Gbit/s") == len(runs)
    capacity = re.findall(r"stroke-dasharray: 4,3[^>]*stroke: var\(--ink\)", picture)
    assert len(capacity) == len(runs)
    shades = re.findall(r"fill: var\(--ink\); opacity: 0.08", picture)
    assert len(shades) == len(names)
    for name in ("bad", "away"):  # one piece each, and the one of the legend
        assert len(re.findall(rf"style=\"fill: var\(--{name}\)", picture)) >= 2
    said = " ".join(map(str, found))
    assert "scenario story, 4 planes of 400 Mbit/s of payload" in said
    assert "hence values above 100%" in said and "in bins of 20 ms" in said
    assert not re.findall(r"#[0-9a-f]{6}\b", picture)
    assert set(re.findall(r"var\(--([\w-]+)\)", picture)) <= set(drawing.LIGHT)


# ---- training ------------------------------------------------------------------------------------

STORY = steps.STORY
PARTS = steps.chapters(STORY.events, STORY.seconds, 4)


def steps_run_of(name: str, *, stalled: bool = False) -> dict[str, Any]:
    """Steps of 0.1 s, longer by the missing planes. Who stalls takes no step in a fault."""
    taken, now = [], 0.0
    while now < STORY.seconds:
        (part,) = [part for part in PARTS if part.start <= now < part.end]
        took = part.end - now + 0.1 if stalled and part.name else 0.1 * 4 / part.planes
        taken.append((now, min(took, STORY.seconds - now)))
        now += took
    return {
        "contender": name, "seconds": STORY.seconds, "steps": taken,
        "events": [asdict(event) for event in STORY.events],
        "losses": [1 / (1 + number) for number in range(len(taken))],
        "chapters": steps.figures(taken, PARTS),
    }  # fmt: skip


def test_chapters__flaps_and_planes_that_fail_together_are_one() -> None:
    assert [(part.start, part.end, part.planes) for part in PARTS if part.name] == [
        (4, 8, 3), (11, 15, pytest.approx(3.1)), (18, 21, 2), (24, 27.5, 3), (30, 33, 3),
        (36, 38, 3),
    ]  # fmt: skip
    assert [part.planes for part in PARTS if not part.name] == [4] * 7


def test_spans__the_last_step_has_no_end() -> None:
    spans = steps.spans_of([10.0, 10.5, 11.2, 20.0], [0.5, 0.6, 8.0], 10.0, 5.0)
    assert spans == [
        (0.0, 0.5), (pytest.approx(0.6), 0.6), (pytest.approx(1.2), pytest.approx(3.8)),
    ]  # fmt: skip
    assert steps.spans_of([10.0], [], 10.0, 5.0) == [(0.0, 5.0)]


def test_steps_figures__a_long_step_counts_in_each_chapter_that_it_meets() -> None:
    parts = [faults.Phase("", 0, 2, 4), faults.Phase("a", 2, 4, 3),
             faults.Phase("", 4, 6, 4)]  # fmt: skip
    taken = [(0.0, 1.0), (1.0, 0.9), (1.9, 2.6), (4.5, 1.0)]
    before, fault, after = steps.figures(taken, parts)
    assert (before["steps"], before["median_seconds"], before["longest_seconds"]) == (3, 1.0, 2.6)
    assert (fault["steps"], fault["median_seconds"], fault["longest_seconds"]) == (0, None, 2.6)
    assert (after["steps"], after["longest_seconds"]) == (1, 2.6)


def test_steps_checks__met_by_who_uses_the_planes_that_are_left() -> None:
    found = list(steps.checks(steps_run_of("mrc"), 4))
    assert len(found) == 18 and all(check.met for check in found)


def test_steps_checks__a_stall_is_seen() -> None:
    found = {check.name: check for check in steps.checks(steps_run_of("mrc", stalled=True), 4)}
    longest = found["plane 1 silent: longest step, of the first median"]
    assert longest.value == pytest.approx(41, abs=1.1) and not longest.met


def test_same_losses__as_far_as_each_came() -> None:
    ours, theirs = steps_run_of("mrc"), steps_run_of("TCP", stalled=True)
    assert len(ours["losses"]) > len(theirs["losses"]) and steps.same_losses([ours, theirs])
    theirs["losses"][3] += 1e-12
    assert not steps.same_losses([ours, theirs])


def test_repeated__the_run_with_the_median_of_the_steps_is_shown() -> None:
    runs = iter([{"steps": [0] * count} for count in (9, 5, 7, 3)])
    shown, every = faults.repeated("mrc", 3, lambda: next(runs), steps.steps_of)
    assert len(shown["steps"]) == 7 and len(every) == 3
    shown, every = faults.repeated("TCP", 3, lambda: next(runs), steps.steps_of)
    assert every == [shown] and len(shown["steps"]) == 3


def test_picture__a_row_for_each_contender_and_every_fault_by_name() -> None:
    pytest.importorskip("matplotlib")
    svg = pictures.steps_svg([steps_run_of("mrc"), steps_run_of("TCP", stalled=True)], 4)
    texts = {"".join(node.itertext()).strip() for node in ElementTree.fromstring(svg).iter()}
    assert {"mrc", "TCP"} <= texts
    assert {part.name for part in PARTS if part.name} <= texts
