# SPDX-License-Identifier: Apache-2.0
"""Goodput of rows as SVG: a bar for the median, a line from the smallest to the largest. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from mrc.sim.drawing import LIGHT, LINES, draw

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_WIDTH, _TOP, _STEP = 760, 30, 18


def goodput_svg(title: str, rows: Sequence[Mapping[str, Any]]) -> str:
    """One picture of a bed's rows with goodput. mrc's rows have their own colour."""
    bars = [row for row in rows if "goodput_bits_per_second" in row["metrics"]]

    def paint(figure: Figure) -> None:
        figure.set_layout_engine("constrained")
        axes = figure.add_subplot(frameon=False, ylim=(max(len(bars), 1) - 0.5, -0.5), xticks=[])
        axes.set_title(f"{title}: goodput, Gbit/s", loc="left", fontsize=11)
        axes.set_yticks(range(len(bars)), [row["name"] for row in bars])
        for place, row in enumerate(bars):
            found = row["metrics"]["goodput_bits_per_second"]
            middle, low, high = (found[name] / 1e9 for name in ("median", "min", "max"))
            colour = LINES[0 if row["name"].startswith(("mrc", "file, mrc")) else 1]
            axes.barh(place, middle, height=0.7, color=colour, alpha=0.7)
            axes.hlines(place, low, high, color=LIGHT["ink"], linewidth=1)
            axes.annotate(
                f"{middle:.3g}", (high, place), (6, 0), textcoords="offset points", va="center"
            )

    return draw(_WIDTH, _TOP + len(bars) * _STEP, title, paint)
