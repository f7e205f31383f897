# SPDX-License-Identifier: Apache-2.0
"""Pictures of runs through faults: a row for each run over one time axis, faults shaded. Pure.

mrc is blue and the others are orange, which differ for every kind of colour blindness. Places and
words mark faults, too, not colour alone. Sizes are in pixels.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from failover_scenario import Event

from mrc.sim.drawing import LIGHT, LINES

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH = 960
LEFT, RIGHT = 64, 16
PLOT = WIDTH - LEFT - RIGHT
HEAD, TITLE, GAP = 56, 20, 12
BOLD: dict[str, Any] = {"fontsize": 12, "fontweight": "bold"}
NAME: dict[str, Any] = BOLD | {"fontsize": 13}
NOTE: dict[str, Any] = {"fontsize": 11, "color": LIGHT["note"]}
DASHED: dict[str, Any] = {"color": LIGHT["ink"], "linewidth": 1, "linestyle": (0, (4, 3))}


def tops(count: int, row: int) -> list[int]:
    """Where each of `count` rows of a height begins."""
    return [HEAD + number * (TITLE + row + GAP) + TITLE for number in range(count)]


def colour(run: Mapping[str, Any]) -> str:
    return LINES[0 if run["contender"] == "mrc" else 1]


def panel(
    figure: Figure, left: float, top: float, width: float, height: float, **more: Any
) -> Axes:
    """Axes at a position that is measured from the upper left corner."""
    across, down = (72 * inches for inches in figure.get_size_inches())
    place = (left / across, 1 - (top + height) / down, width / across, height / down)
    axes = figure.add_axes(place, frameon=False, **more)
    axes.tick_params(labelsize=11, labelcolor=LIGHT["note"])
    return axes


def words(figure: Figure, top: float, text: str, style: Mapping[str, Any]) -> None:
    """A line of text at the left, on this height in pixels."""
    figure.text(LEFT / WIDTH, 1 - top / (72 * figure.get_figheight()), text, **style)


def backdrop(figure: Figure, seconds: float, bottom: float, faults: Iterable[Event]) -> Axes:
    """The time axis. A fault is shaded from its begin to its end; `name_at` names it above."""
    top = HEAD - 8
    axes = panel(figure, LEFT, top, PLOT, bottom - top, xlim=(0, seconds), yticks=[])
    axes.locator_params(axis="x", nbins=16, steps=[1, 2, 5, 10])
    axes.set_xlabel("time, s", **NOTE)
    for event in faults:
        axes.axvspan(event.at, event.until, color=LIGHT["ink"], alpha=0.08, linewidth=0)
    return axes


def name_at(axes: Axes, at: float, name: str, side: str = "center") -> None:
    axes.text(at, 1, name, ha=side, va="bottom", transform=axes.get_xaxis_transform(), **BOLD)


def row(figure: Figure, run: Mapping[str, Any], top: int, height: int, summary: str) -> Axes:
    """The axes of a run, below its name and its most important figures."""
    axes = panel(figure, LEFT, top, PLOT, height, xlim=(0, run["seconds"]), xticks=[])
    axes.set_title(run["contender"], loc="left", **NAME)
    axes.set_title(summary, loc="right", **NOTE)
    return axes
