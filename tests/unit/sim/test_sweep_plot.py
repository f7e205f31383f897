# SPDX-License-Identifier: Apache-2.0
"""Pictures of sweeps: lines, order, and what is refused."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import pytest

from mrc.errors import ConfigError
from mrc.sim import sweep
from mrc.sim.drawing import Chart
from mrc.sim.results import CheckValue, Stats, SweptJob, SweptRun

STATS = Stats(
    now_ns=1, events=1, packets=7, hops=1, lost=0, corrupt=0, dropped=0, trimmed=0, marked=0,
    unroutable=0, first_lost_ns=None, completed_writes=1, trace="0",
)  # fmt: skip


def job(value: float | None, seed: int = 1, **parameters: Any) -> SweptJob:
    run = SweptRun(transport="mrc", stats=STATS, figures=(CheckValue(check="c", value=value),))
    return SweptJob(
        job=f"{value} {seed} {parameters}", version="1", scenario="s", variant="", seed=seed,
        parameters=parameters, runs=(run,),
    )  # fmt: skip


@pytest.fixture
def charts(monkeypatch: pytest.MonkeyPatch) -> list[Chart]:
    found: list[Chart] = []

    def svg(chart: Chart) -> str:
        found.append(chart)
        return ""

    monkeypatch.setattr(Chart, "svg", svg)
    return found


def draw(jobs: Sequence[SweptJob], x: str, y: str = "c", by: Sequence[str] = ()) -> None:
    sweep.draw_sweep(jobs, x, y, by)


def test_draw__medians_of_seeds_over_numbers(charts: list[Chart]) -> None:
    draw([job(v * x, seed, x=x) for x in (8, 4) for seed, v in enumerate((3, 1, 2))], "x")
    (chart,) = charts
    (line,) = chart.lines
    assert (line.label, chart.x_end, chart.x_names) == ("c", 8, ())
    assert [(p.x, p.low, p.middle, p.high) for p in line.points] == [(4, 4, 8, 12), (8, 8, 16, 24)]
    assert chart.y_end == pytest.approx(1.05 * 24)
    assert "Medians of 3 seeds" in chart.notes[0]


def test_draw__text_in_the_order_of_its_quantities(charts: list[Chart]) -> None:
    draw([job(1.0, size=size) for size in ("1MiB", "64KiB", "4KiB")], "size")
    assert charts[0].x_names == ["4KiB", "64KiB", "1MiB"]
    assert [point.x for point in charts[0].lines[0].points] == [0.5, 1.5, 2.5]


def test_draw__a_line_for_each_value_of_by(charts: list[Chart]) -> None:
    draw([job(x + b, x=x, b=b) for x in (1, 2) for b in (10, 9)], "x", by=["b"])
    assert [line.label for line in charts[0].lines] == ["b=9", "b=10"]
    assert [point.middle for point in charts[0].lines[0].points] == [10, 11]


def test_draw__totals_and_missing_values(charts: list[Chart]) -> None:
    jobs = [job(None, x=1), job(2.0, x=2)]
    draw(jobs, "x")
    assert [point.x for point in charts[0].lines[0].points] == [2]
    assert charts[0].notes == ["Without a value: 1 of 2 runs."]
    draw(jobs, "x", "packets")
    assert [point.middle for point in charts[1].lines[0].points] == [7, 7]


def test_draw__a_point_without_any_value(charts: list[Chart]) -> None:
    draw([job(None, x=1)], "x")
    assert charts[0].lines == [] and charts[0].y_end > 0


@pytest.mark.parametrize(
    ("x", "y", "by", "cause"),
    [
        ("z", "c", (), "--x z: unknown; known are x, b, "),
        ("x", "d", (), r"--y d: unknown; known are .*packets.*, c$"),
        ("x", "c", ["z"], "--by z: unknown"),
        ("x", "c", (), "the runs differ in b, too: add --by b"),
    ],
)
def test_draw__refuses(x: str, y: str, by: Sequence[str], cause: str) -> None:
    with pytest.raises(ConfigError, match=cause):
        draw([job(1.0, x=1, b=b) for b in (1, 2)], x, y, by)


def test_draw__as_svg() -> None:
    svg = sweep.draw_sweep([job(1.0, x=x) for x in (1, 2)], "x", "c", [])
    assert re.match("<svg ", svg) and "s: c" in svg
