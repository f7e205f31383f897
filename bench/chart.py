# SPDX-License-Identifier: Apache-2.0
"""Goodput of rows as SVG: a bar for the median, a line from the smallest to the largest. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

_WIDTH, _LEFT, _RIGHT, _TOP, _STEP = 760, 260, 60, 30, 18
_OURS, _THEIRS = "var(--line-0)", "var(--line-1)"  # of mrc.sim.axes.STYLE


def goodput_svg(title: str, rows: Sequence[Mapping[str, Any]]) -> str:
    """One picture of the rows of a bed that moved bytes; ours in a colour of their own."""
    bars = [row for row in rows if "goodput_bits_per_second" in row["metrics"]]
    most = max((row["metrics"]["goodput_bits_per_second"]["max"] for row in bars), default=1.0)
    body = [_text(0, 16, f"{title}: goodput, Gbit/s", "start")]
    for number, row in enumerate(bars):
        body += _bar(row, _TOP + number * _STEP, (_WIDTH - _LEFT - _RIGHT) / most)
    height = _TOP + len(bars) * _STEP + 10
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="chart" viewBox="0 0 {_WIDTH} {height}"'
        f' width="{_WIDTH}" height="{height}" role="img">'
        + "".join(f"\n  {element}" for element in body)
        + "\n</svg>\n"
    )


def _bar(row: Mapping[str, Any], y: float, scale: float) -> list[str]:
    goodput = row["metrics"]["goodput_bits_per_second"]
    middle, low, high = (goodput[name] * scale for name in ("median", "min", "max"))
    colour = _OURS if row["name"].startswith(("mrc", "file, mrc")) else _THEIRS
    line = y + _STEP / 2 - 1
    return [
        _text(_LEFT - 6, y + 12, row["name"], "end"),
        f'<rect x="{_LEFT}" y="{y + 2:.1f}" width="{middle:.1f}" height="{_STEP - 6}"'
        f' fill="{colour}" fill-opacity="0.7"/>',
        f'<line x1="{_LEFT + low:.1f}" x2="{_LEFT + high:.1f}" y1="{line:.1f}" y2="{line:.1f}"'
        ' stroke="var(--ink)"/>',
        _text(_LEFT + high + 6, y + 12, f"{goodput['median'] / 1e9:.3g}", "start"),
    ]


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.0f}" y="{y:.0f}" text-anchor="{anchor}">{escape(text)}</text>'
