# SPDX-License-Identifier: Apache-2.0
"""The steps of a training as SVG: a row for each contender over one time axis. Pure.

Each step is a line from its begin to its end, on the height of its duration.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import canvas
from failover_figures import Run
from failover_scenario import Event
from training_figures import chapters

from mrc.sim.drawing import draw

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_ROW, _FOOT = 84, 44
_RANGE = (0.05, 12.0)  # seconds
_TICKS = {0.1: "0.1", 1.0: "1", 10.0: "10"}


def steps_svg(runs: Sequence[Run], planes: int) -> str:
    tops = canvas.tops(len(runs), _ROW)
    bottom, seconds = tops[-1] + _ROW, runs[0]["seconds"]
    events = [Event(**event) for event in runs[0]["events"]]

    def paint(figure: Figure) -> None:
        faults = [event for event in events if event.plane == 1]
        axes = canvas.backdrop(figure, seconds, bottom + 4, faults)
        for chapter in chapters(events, seconds, planes):
            canvas.name_at(axes, (chapter.begin + chapter.end) / 2, chapter.name)
        canvas.words(figure, 14, label, canvas.NAME)
        for run, top in zip(runs, tops, strict=True):
            _steps(canvas.row(figure, run, top, _ROW, summary(run)), run)

    label = f"Duration of each training step while planes fail and return, {planes} planes"
    return draw(canvas.WIDTH, bottom + _FOOT, label, paint)


def _steps(axes: Axes, run: Run) -> None:
    axes.set_yscale("log")
    axes.set_ylim(*_RANGE)
    axes.set_yticks(list(_TICKS), list(_TICKS.values()))
    axes.set_yticks([], minor=True)
    axes.grid(axis="y")
    axes.set_ylabel("step, s", **canvas.NOTE)
    usual = run["chapters"][0]["median_seconds"]
    *steps, last = run["steps"]
    if last[1] > usual:  # it has no end yet: a short one tells nothing
        steps.append(last)
    x: list[float] = []
    y: list[float] = []
    for begin, length in steps:
        height = min(max(length, _RANGE[0]), _RANGE[1])
        x += (begin, begin + length)
        y += (height, height)
    axes.plot(x, y, color=canvas.colour(run), linewidth=1.6, drawstyle="steps-post",
              solid_joinstyle="miter")  # fmt: skip
    axes.axhline(usual, **canvas.DASHED)


def summary(run: Run) -> str:
    """`340 steps; median before the faults 112 ms; longest 0.21 s`"""
    *done, last = (length for _, length in run["steps"])
    usual = run["chapters"][0]["median_seconds"]
    return (
        f"{len(done)} steps; median before the faults {usual * 1e3:.0f} ms;"
        f" longest {max(*done, last):.2f} s"
    )
