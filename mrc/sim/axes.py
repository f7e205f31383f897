# SPDX-License-Identifier: Apache-2.0
"""A chart as SVG: axes from 0, a legend, lines with bands. It knows no experiments. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape

WIDTH = 680
_PLOT_HEIGHT, _ROW = 190, 18
_LEFT, _RIGHT, _BOTTOM = 58, 14, 44
_TICKS = 5

_LIGHT = ("#0072b2", "#d55e00", "#00795a", "#b0508a", "#a87400", "#3a7ca8")
_DARK = ("#56b4e9", "#f0883e", "#2fc49a", "#e49ac4", "#e6b422", "#8ecbf0")


def _variables(ink: str, grid: str, colours: Sequence[str]) -> str:
    numbered = "".join(f"--line-{i}:{colour};" for i, colour in enumerate(colours))
    return f".chart{{--ink:{ink};--grid:{grid};{numbered}}}"


STYLE = (
    _variables("#333", "#ddd", _LIGHT)
    + f"@media(prefers-color-scheme:dark){{{_variables('#ccc', '#444', _DARK)}}}"
    + ".chart text{fill:var(--ink);font:11px sans-serif}"
)
"""The style sheet that charts need, once a page."""


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
    marked: bool = False  # a dot at each point, and a bar between its quartiles
    thin: bool = False


@dataclass(slots=True)
class Chart:
    """Collects what is to be drawn; `svg` draws it."""

    x_title: str
    y_title: str
    x_end: float
    y_end: float
    x_names: Sequence[str] = ()  # of equal parts of the axis, in place of numbers
    _bands: list[tuple[float, float, str]] = field(default_factory=list)
    _lines: list[Line] = field(default_factory=list)

    def band(self, first: float, last: float, title: str) -> None:
        """Shades a part of the x axis."""
        self._bands.append((first, last, title))

    def line(self, line: Line) -> None:
        self._lines.append(line)

    def svg(self) -> str:
        rows = self._legend_rows()
        top = 8 + _ROW * (max((row for _, row, _ in rows), default=0) + 1)
        height = top + _PLOT_HEIGHT + _BOTTOM
        body = [*self._legend(rows), *self._shades(top), *self._axes(top)]
        for number, line in enumerate(self._lines):
            body += self._draw(line, f"var(--line-{number % len(_LIGHT)})", top)
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" class="chart" viewBox="0 0 {WIDTH} {height}"'
            f' width="{WIDTH}" height="{height}" role="img">'
            + "".join(f"\n  {element}" for element in body)
            + "\n</svg>\n"
        )

    def _x(self, x: float) -> float:
        return _LEFT + (WIDTH - _LEFT - _RIGHT) * min(x, self.x_end) / self.x_end

    def _y(self, y: float, top: int) -> float:
        return top + _PLOT_HEIGHT * (1 - min(max(y, 0), self.y_end) / self.y_end)

    def _legend_rows(self) -> list[tuple[float, int, str]]:
        """Place and row of each label, from left to right."""
        places, x, row = [], float(_LEFT), 0
        for line in self._lines:
            width = 44 + 6.2 * len(line.label)
            if x + width > WIDTH and x > _LEFT:
                x, row = float(_LEFT), row + 1
            places.append((x, row, line.label))
            x += width
        return places

    def _legend(self, rows: Sequence[tuple[float, int, str]]) -> list[str]:
        elements = []
        for number, ((x, row, label), line) in enumerate(zip(rows, self._lines, strict=True)):
            y = 14 + _ROW * row
            stroke = _stroke(f"var(--line-{number % len(_LIGHT)})", line)
            elements.append(
                f'<line x1="{x:.0f}" x2="{x + 24:.0f}" y1="{y - 4}" y2="{y - 4}"{stroke}/>'
            )
            elements.append(_text(x + 30, y, label, "start"))
        return elements

    def _shades(self, top: int) -> list[str]:
        return [
            f'<rect x="{self._x(first):.1f}" y="{top}" width="{self._x(last) - self._x(first):.1f}"'
            f' height="{_PLOT_HEIGHT}" fill="var(--ink)" fill-opacity="0.08">'
            f"<title>{escape(title)}</title></rect>"
            for first, last, title in self._bands
        ]

    def _axes(self, top: int) -> list[str]:
        elements = []
        for value in ticks(self.y_end):
            y = self._y(value, top)
            elements.append(
                f'<line x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"'
                ' stroke="var(--grid)"/>'
            )
            elements.append(_text(_LEFT - 6, y + 4, f"{value:g}", "end"))
        base = top + _PLOT_HEIGHT
        if self.x_names:
            marks = [(i + 0.5, name) for i, name in enumerate(self.x_names)]
        else:
            marks = [(value, f"{value:g}") for value in ticks(self.x_end)]
        elements += [_text(self._x(x), base + 16, name) for x, name in marks]
        elements.append(_text((_LEFT + WIDTH - _RIGHT) / 2, base + 34, self.x_title))
        middle = top + _PLOT_HEIGHT / 2
        turned = f' transform="rotate(-90 14 {middle:.0f})"'
        elements.append(_text(14, middle, self.y_title, more=turned))
        return elements

    def _draw(self, line: Line, colour: str, top: int) -> list[str]:
        def place(x: float, y: float) -> str:
            return f"{self._x(x):.1f},{self._y(y, top):.1f}"

        elements = []
        if any(point.low != point.high for point in line.points):
            there = [place(point.x, point.low) for point in line.points]
            back = [place(point.x, point.high) for point in reversed(line.points)]
            elements.append(
                f'<polygon fill="{colour}" fill-opacity="0.2" points="{" ".join(there + back)}"/>'
            )
        middle = " ".join(place(point.x, point.middle) for point in line.points)
        elements.append(f'<polyline fill="none"{_stroke(colour, line)} points="{middle}"/>')
        for point in line.points if line.marked else ():
            x, y = place(point.x, point.middle).split(",")
            elements.append(f'<circle cx="{x}" cy="{y}" r="3" fill="{colour}"/>')
        return elements


def _stroke(colour: str, line: Line) -> str:
    dashes = ' stroke-dasharray="5 3"' if line.dashed else ' stroke-dasharray="2 2"' * line.thin
    return f' stroke="{colour}" stroke-width="{1 if line.thin else 1.6}"{dashes}'


def _text(x: float, y: float, text: str, anchor: str = "middle", more: str = "") -> str:
    return f'<text x="{x:.0f}" y="{y:.0f}" text-anchor="{anchor}"{more}>{escape(text)}</text>'


def ticks(end: float) -> list[float]:
    """Round numbers from 0 on, some five of them."""
    raw = end / _TICKS
    power = 10.0 ** (len(f"{raw:.0f}") - 1)
    while power > raw:
        power /= 10
    step = next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= raw * 0.99)
    return [step * i for i in range(int(end / step + 1e-9) + 1)]
