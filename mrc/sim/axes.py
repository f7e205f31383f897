# SPDX-License-Identifier: Apache-2.0
"""A chart: axes that begin at 0, a legend, lines with bands. Independent of experiments. Pure.

The height grows with the text, so that no text is cut.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from textwrap import fill
from typing import TYPE_CHECKING

from msgspec import Struct, field

from mrc.sim.drawing import LIGHT, LINES, draw

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH = 680
_HEIGHT, _ROW, _TEXT_ROW = 240, 20, 15
_LETTERS, _BOLD_LETTERS = 92, 76  # letters that fit the width
_LETTER = 7  # pixels that a letter takes, at most on average
_AXES_WIDTH = 600  # pixels of the x axis, about


class Point(Struct, frozen=True):
    """A median with its quartiles."""

    x: float
    low: float
    middle: float
    high: float


class Line(Struct, frozen=True):
    """One line of a chart."""

    label: str
    points: Sequence[Point]
    dashed: bool = False
    marked: bool = False  # a dot at each point
    thin: bool = False


class Chart(Struct):
    """Collects the lines and bands of a chart; `svg` draws it."""

    x_title: str
    y_title: str
    x_end: float
    y_end: float
    x_names: Sequence[str] = ()  # names of equal parts of the x axis, instead of numbers
    title: str = ""
    notes: list[str] = field(default_factory=list)
    """lines below the x axis"""
    bands: list[tuple[float, float, str]] = field(default_factory=list)
    """shaded parts of the x axis: from, to, title"""
    lines: list[Line] = field(default_factory=list)

    def svg(self) -> str:
        labels = [fill(line.label, _LETTERS - 8) for line in self.lines]
        widest = max((len(row) for label in labels for row in label.split("\n")), default=0)
        columns = max(1, _LETTERS // (8 + widest))
        names, notes = self._named_bands()
        below = [fill(text, _LETTERS) for text in (self.x_title, *notes, *self.notes) if text]
        title = fill(self.title, _BOLD_LETTERS)
        height = _HEIGHT + _ROW * -(-len(labels) // columns)
        height += _TEXT_ROW * sum(text.count("\n") for text in labels)
        height += _TEXT_ROW * sum(1 + text.count("\n") for text in (*below[1:], title) if text)

        def paint(figure: Figure) -> None:
            figure.set_layout_engine("constrained")
            if title:
                figure.suptitle(title, x=0.005, ha="left", fontsize=12, fontweight="bold")
            axes = figure.add_subplot(frameon=False, xlim=(0, self.x_end), ylim=(0, self.y_end))
            self._paint(axes, below)
            for (first, last, _), name in zip(self.bands, names, strict=True):
                axes.text((first + last) / 2, 0.02 * self.y_end, name, ha="center", fontsize=10)
            for number, (line, label) in enumerate(zip(self.lines, labels, strict=True)):
                self._draw(axes, line, label, LINES[number % len(LINES)])
            axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=columns)

        return draw(WIDTH, height, ": ".join(filter(None, (self.title, self.y_title))), paint)

    def _named_bands(self) -> tuple[list[str], list[str]]:
        """The name of each band: its title, if all titles fit their bands; otherwise a number that
        a note explains.
        """
        titles = list(dict.fromkeys(title for _, _, title in self.bands))
        room = _AXES_WIDTH / self.x_end / _LETTER
        spans = sorted((first, last) for first, last, _ in self.bands)
        overlap = any(after[0] < before[1] for before, after in pairwise(spans))
        if not overlap and all(len(t) <= (last - first) * room for first, last, t in self.bands):
            return [title for _, _, title in self.bands], []
        if len(titles) == 1:
            return [""] * len(self.bands), [f"grey: {titles[0]}"]
        listed = ", ".join(f"{number} {title}" for number, title in enumerate(titles, 1))
        return [str(titles.index(t) + 1) for _, _, t in self.bands], [f"grey: {listed}"]

    def _paint(self, axes: Axes, below: Sequence[str]) -> None:
        axes.set_xlabel("\n".join(below))
        axes.set_ylabel(fill(self.y_title, 36))
        axes.grid(axis="y")
        axes.locator_params(nbins=6, steps=[1, 2, 2.5, 5, 10])
        if self.x_names:
            names = [fill(name, _LETTERS // len(self.x_names)) for name in self.x_names]
            axes.set_xticks([i + 0.5 for i in range(len(names))], names)
        for first, last, title in self.bands:
            band = axes.axvspan(first, last, color=LIGHT["ink"], alpha=0.08, linewidth=0)
            band.set_gid(f"title: {title}")

    def _draw(self, axes: Axes, line: Line, label: str, colour: str) -> None:
        x = [point.x for point in line.points]
        low, middle, high = (
            [min(max(getattr(point, name), 0), self.y_end) for point in line.points]
            for name in ("low", "middle", "high")
        )
        if low != high:
            axes.fill_between(x, low, high, color=colour, alpha=0.2, linewidth=0)
        axes.plot(
            x, middle, color=colour, label=label, linewidth=1 if line.thin else 1.6,
            marker="o" if line.marked else "", markersize=6,
            linestyle=(0, (5, 3)) if line.dashed else (0, (2, 2)) if line.thin else "-",
            solid_joinstyle="round", clip_on=False, zorder=2.5,
        )  # fmt: skip
