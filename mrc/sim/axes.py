# SPDX-License-Identifier: Apache-2.0
"""A chart: axes that begin at 0, a legend, lines with bands. Independent of experiments. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from textwrap import fill
from typing import TYPE_CHECKING

from mrc.sim.drawing import LIGHT, LINES, draw

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH = 680
_HEIGHT, _ROW = 240, 20
_LETTERS = 96  # letters that fit the width


@dataclass(frozen=True, slots=True)
class Point:
    """A median with its quartiles."""

    x: float
    low: float
    middle: float
    high: float


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a chart."""

    label: str
    points: Sequence[Point]
    dashed: bool = False
    marked: bool = False  # a dot at each point
    thin: bool = False


@dataclass(slots=True)
class Chart:
    """Collects the lines and bands of a chart; `svg` draws it."""

    x_title: str
    y_title: str
    x_end: float
    y_end: float
    x_names: Sequence[str] = ()  # names of equal parts of the x axis, instead of numbers
    bands: list[tuple[float, float, str]] = field(default_factory=list)
    """shaded parts of the x axis: from, to, title"""
    lines: list[Line] = field(default_factory=list)

    def svg(self) -> str:
        rows = -(-len(self.lines) // self._columns)
        return draw(WIDTH, _HEIGHT + rows * _ROW, self.y_title, self._paint)

    @property
    def _columns(self) -> int:
        """Number of columns of the legend."""
        return max(1, _LETTERS // (8 + max((len(line.label) for line in self.lines), default=0)))

    def _paint(self, figure: Figure) -> None:
        figure.set_layout_engine("constrained")
        axes = figure.add_subplot(frameon=False, xlim=(0, self.x_end), ylim=(0, self.y_end))
        axes.set_xlabel(self.x_title)
        axes.set_ylabel(fill(self.y_title, 36))
        axes.grid(axis="y")
        axes.locator_params(nbins=6, steps=[1, 2, 2.5, 5, 10])
        if self.x_names:
            names = [fill(name, _LETTERS // len(self.x_names)) for name in self.x_names]
            axes.set_xticks([i + 0.5 for i in range(len(names))], names)
        for first, last, title in self.bands:
            band = axes.axvspan(first, last, color=LIGHT["ink"], alpha=0.08, linewidth=0)
            band.set_gid(f"title: {title}")
        for number, line in enumerate(self.lines):
            self._draw(axes, line, LINES[number % len(LINES)])
        axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=self._columns)

    def _draw(self, axes: Axes, line: Line, colour: str) -> None:
        x = [point.x for point in line.points]
        low, middle, high = (
            [min(max(getattr(point, name), 0), self.y_end) for point in line.points]
            for name in ("low", "middle", "high")
        )
        if low != high:
            axes.fill_between(x, low, high, color=colour, alpha=0.2, linewidth=0)
        axes.plot(
            x, middle, color=colour, label=line.label, linewidth=1 if line.thin else 1.6,
            marker="o" if line.marked else "", markersize=6,
            linestyle=(0, (5, 3)) if line.dashed else (0, (2, 2)) if line.thin else "-",
            solid_joinstyle="round", clip_on=False, zorder=2.5,
        )  # fmt: skip
