# SPDX-License-Identifier: Apache-2.0
"""The steps of a training as SVG: a row for each contender over one time axis. Pure.

Each step is a line from its begin to its end, on the height of its duration.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from failover_scenario import Event
from failover_svg import WIDTH, panel
from training_figures import Run, chapters

from mrc.sim.drawing import LIGHT, LINES, draw

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_LEFT, _RIGHT = 64, 16
_PLOT = WIDTH - _LEFT - _RIGHT
_HEAD, _TITLE, _ROW, _GAP, _FOOT = 56, 20, 84, 12, 44
_RANGE = (0.05, 12.0)  # seconds
_TICKS = {0.1: "0.1", 1.0: "1", 10.0: "10"}
_BOLD = {"fontsize": 12, "fontweight": "bold"}
_NAME = _BOLD | {"fontsize": 13}
_NOTE = {"fontsize": 11, "color": LIGHT["note"]}


def steps_svg(runs: Sequence[Run], planes: int) -> str:
    tops = [_HEAD + number * (_TITLE + _ROW + _GAP) + _TITLE for number in range(len(runs))]
    bottom = tops[-1] + _ROW

    def paint(figure: Figure) -> None:
        _backdrop(figure, runs[0], planes, bottom)
        figure.text(_LEFT / WIDTH, 1 - 14 / (72 * figure.get_figheight()), label, **_NAME)
        for run, top in zip(runs, tops, strict=True):
            axes = panel(figure, _LEFT, top, _PLOT, _ROW, xlim=(0, run["seconds"]), xticks=[])
            _steps(axes, run)

    label = f"Duration of each training step while planes fail and return, {planes} planes"
    return draw(WIDTH, bottom + _FOOT, label, paint)


def _backdrop(figure: Figure, run: Run, planes: int, bottom: float) -> None:
    """The time axis. A fault is shaded from its begin to its end, with its name above."""
    top = _HEAD - 8
    axes = panel(figure, _LEFT, top, _PLOT, bottom - top + 4, xlim=(0, run["seconds"]), yticks=[])
    axes.locator_params(axis="x", nbins=16, steps=[1, 2, 5, 10])
    axes.set_xlabel("time, s", **_NOTE)
    events = [Event(**event) for event in run["events"]]
    for event in events:
        if event.plane == 1:
            axes.axvspan(event.at, event.until, color=LIGHT["ink"], alpha=0.08, linewidth=0)
    for chapter in chapters(events, run["seconds"], planes):
        middle = (chapter.begin + chapter.end) / 2
        axes.text(middle, 1, chapter.name, ha="center", va="bottom",
                  transform=axes.get_xaxis_transform(), **_BOLD)  # fmt: skip


def _steps(axes: Axes, run: Run) -> None:
    axes.set_yscale("log")
    axes.set_ylim(*_RANGE)
    axes.set_yticks(list(_TICKS), list(_TICKS.values()))
    axes.set_yticks([], minor=True)
    axes.grid(axis="y")
    axes.set_ylabel("step, s", **_NOTE)
    axes.set_title(run["contender"], loc="left", **_NAME)
    axes.set_title(summary(run), loc="right", **_NOTE)
    colour = LINES[0 if run["contender"] == "mrc" else 1]
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
    axes.plot(x, y, color=colour, linewidth=1.6, drawstyle="steps-post", solid_joinstyle="miter")
    axes.axhline(usual, color=LIGHT["ink"], linewidth=1, linestyle=(0, (4, 3)))


def summary(run: Run) -> str:
    """`340 steps; median before the faults 112 ms; longest 0.21 s`"""
    *done, last = (length for _, length in run["steps"])
    usual = run["chapters"][0]["median_seconds"]
    return (
        f"{len(done)} steps; median before the faults {usual * 1e3:.0f} ms;"
        f" longest {max(*done, last):.2f} s"
    )
