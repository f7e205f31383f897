# SPDX-License-Identifier: Apache-2.0
"""Draws pictures with matplotlib, as SVG with real text, and charts. A chart has axes that begin
at 0, a legend, and lines with bands. Independent of experiments.

The same data give the same bytes. The library is an optional extra of the package. Importing it
takes as long as importing all of mrc, so the functions import it when they draw. The height of a
chart grows with the text, so that no text is cut.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Sequence
from html import escape
from importlib.util import find_spec
from io import StringIO
from itertools import pairwise
from textwrap import fill
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# All colours of a theme differ, so a colour in a picture identifies its name. Neighbouring lines
# are distinguishable with every kind of colour blindness.
LIGHT = {
    "ink": "#1f2328", "note": "#57606a", "grid": "#d0d7de", "paper": "#ffffff",
    "line-0": "#0063a8", "line-1": "#c05a00", "line-2": "#00795a", "line-3": "#b0508a",
    "line-4": "#a87400", "line-5": "#3a7ca8",
    "good": "#9fc9e8", "skip": "#b08800", "bad": "#d1242f", "away": "#6e7781",
    "met": "#116329", "unmet": "#bc1c26",
}  # fmt: skip
DARK = {
    "ink": "#e6edf3", "note": "#9aa4ae", "grid": "#3a424b", "paper": "#0d1117",
    "line-0": "#58b4f5", "line-1": "#f0a050", "line-2": "#2fc49a", "line-3": "#e49ac4",
    "line-4": "#e6b422", "line-5": "#8ecbf0",
    "good": "#234f70", "skip": "#e3c04b", "bad": "#ff6a62", "away": "#8b949e",
    "met": "#4cc96a", "unmet": "#ff7b72",
}  # fmt: skip
LINES = [colour for name, colour in LIGHT.items() if name.startswith("line-")]

HINT = "plots and reports require matplotlib and Jinja2: pip install 'mrc-transport[plot]'"
_FONT = "DejaVu Sans"  # part of matplotlib, so the layout is the same on every machine
_FONTS_SHOWN = "system-ui, sans-serif"
_STYLE: Any = {
    "font.family": _FONT, "font.size": 11, "text.color": LIGHT["ink"], "text.parse_math": False,
    "axes.labelcolor": LIGHT["ink"], "axes.axisbelow": True,
    "grid.color": LIGHT["grid"], "grid.linewidth": 1,
    "xtick.color": LIGHT["grid"], "xtick.labelcolor": LIGHT["ink"],
    "ytick.color": LIGHT["grid"], "ytick.labelcolor": LIGHT["ink"], "ytick.major.size": 0,
    "legend.frameon": False, "legend.borderpad": 0, "legend.borderaxespad": 0.3,
    "svg.fonttype": "none", "svg.hashsalt": "mrc",
}  # fmt: skip
_NO_METADATA = dict.fromkeys(("Creator", "Date", "Format", "Type"))


def available() -> bool:
    """Whether the extra is installed."""
    return all(find_spec(name) is not None for name in ("matplotlib", "jinja2"))


def draw(width: int, height: int, label: str, paint: Callable[[Figure], None]) -> str:
    """The figure that `paint` draws, as SVG whose colours are CSS variables. Sizes are pixels.

    `paint` uses the colours of LIGHT. An artist whose gid begins with "title: " gets the rest of
    the gid as a tooltip.
    """
    import matplotlib
    from matplotlib.figure import Figure

    written = StringIO()
    with matplotlib.rc_context(_STYLE), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing")  # only the layout uses this font
        figure = Figure((width / 72, height / 72), dpi=72, facecolor="none")
        paint(figure)
        figure.savefig(written, format="svg", metadata=_NO_METADATA)
    body = written.getvalue().partition("<svg")[2].partition(">")[2]
    size = f'viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
    name = f'role="img" aria-label="{escape(label)}"'
    body = body.replace(f"'{_FONT}'", _FONTS_SHOWN).replace("xlink:href", "href")
    for colour_name, colour in LIGHT.items():
        body = body.replace(colour, f"var(--{colour_name})")
    body = re.sub(r' transform="rotate\(-0 [^"]*"', "", re.sub(r"\n +", "\n", body))
    body = re.sub(r"<g id=([\"'])title: (.*?)\1>", r"<g><title>\2</title>", body)
    body = re.sub(r"<g id=\"[^\"]*\"", "<g", body)  # ids of several pictures of a page would clash
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} {name}>{body}'


def standalone(svg: str) -> str:
    """A picture as a separate file, which follows the theme that the viewer prefers."""
    style = f"{style_sheet('svg')}svg{{background:var(--paper)}}"
    return svg.replace(">", f">\n<style>{style}</style>", 1)


def style_sheet(selector: str = ":root") -> str:
    """CSS that defines the colour variables, in the theme that the viewer prefers."""
    light, dark = (
        f"{selector}{{{''.join(f'--{name}:{colour};' for name, colour in theme.items())}}}"
        for theme in (LIGHT, DARK)
    )
    return f"{light}@media(prefers-color-scheme:dark){{{dark}}}"


# ---- Charts --------------------------------------------------------------------------------------


WIDTH = 680
_HEIGHT, _ROW, _TEXT_ROW = 240, 20, 15
_LETTERS, _BOLD_LETTERS = 92, 76  # letters that fit the width
_LETTER = 7  # pixels that a letter takes, at most on average
_AXES_WIDTH = 600  # pixels of the x axis, about


class ChartPoint(Struct, frozen=True):
    """A median with its quartiles."""

    x: float
    low: float
    middle: float
    high: float


class ChartLine(Struct, frozen=True):
    """One line of a chart."""

    label: str
    points: Sequence[ChartPoint]
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
    lines: list[ChartLine] = field(default_factory=list)

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

    def _draw(self, axes: Axes, line: ChartLine, label: str, colour: str) -> None:
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
