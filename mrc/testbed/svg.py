# SPDX-License-Identifier: Apache-2.0
"""A test bed as SVG: one panel for equal planes, with T1s above T0s above hosts. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from mrc.testbed.picture import alike, listed, plane_name
from mrc.testbed.shape import Shape

_STYLE = """
:root { color-scheme: light dark; --ink: #1b1f24; --paper: #ffffff; --line: #8b949e;
  --unlike: #b35900; --host: #dbeafe; --t0: #dcfce7; --t1: #fde9c8 }
@media (prefers-color-scheme: dark) { :root { --ink: #e6edf3; --paper: #0d1117; --line: #6e7681;
  --unlike: #ffa657; --host: #1f3a5f; --t0: #1d4428; --t1: #4f3a13 } }
svg { background: var(--paper) }
text { fill: var(--ink); font: 12px sans-serif; text-anchor: middle }
text.title { font-weight: bold; text-anchor: start }
text.note { text-anchor: start }
line { stroke: var(--line) }
line.unlike { stroke: var(--unlike); stroke-width: 2.5 }
rect { stroke: var(--line); rx: 4 }
rect.host { fill: var(--host) }
rect.t0 { fill: var(--t0) }
rect.t1 { fill: var(--t1) }
"""

_BOX_WIDTH, _BOX_HEIGHT, _GAP = 52, 24, 12
_ROW = 90  # from one tier to the next
_MARGIN, _TITLE = 20, 44
_MIN_WIDTH = 460
_LINE = 18


def draw(shape: Shape, title: str, notes: Sequence[str]) -> str:
    """A whole SVG document. It highlights links whose properties differ from their tier's."""
    columns = max(shape.hosts, shape.t0, shape.t1)
    width = max(_MIN_WIDTH, 2 * _MARGIN + columns * (_BOX_WIDTH + _GAP) - _GAP)
    top = _MARGIN
    parts: list[str] = []
    for line in (title, *notes):
        kind = "title" if line == title else "note"
        parts.append(_text(_MARGIN, top + 12, line, kind))
        top += _LINE
    for planes in alike(shape):
        parts += _panel(shape, planes, top, width)
        top += _TITLE + 2 * _ROW + _BOX_HEIGHT + _MARGIN
    size = f'width="{width}" height="{top}" viewBox="0 0 {width} {top}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size}>'
    return "\n".join([head, f"<style>{_STYLE}</style>", *parts, "</svg>", ""])


def _panel(shape: Shape, planes: list[int], top: int, width: int) -> list[str]:
    name = plane_name(planes)
    word = "plane" if len(planes) == 1 else "planes"
    parts = [_text(_MARGIN, top + 26, f"{word} {listed(planes)}", "title")]
    rows = [top + _TITLE + row * _ROW for row in range(3)]
    usual = replace(shape, links=()).link_properties()

    def middle(index: int, count: int) -> float:
        return _MARGIN + (width - 2 * _MARGIN) * (index + 0.5) / count

    for link, found in shape.link_properties().items():
        if link.plane != planes[0]:
            continue
        kind = "" if found == usual[link] else "unlike"
        if link.host is not None:
            t0 = shape.t0_of(link.host)
            ends = (middle(link.host, shape.hosts), rows[2], middle(t0, shape.t0), rows[1])
        else:
            ends = (
                middle(link.t0 or 0, shape.t0), rows[1], middle(link.t1 or 0, shape.t1), rows[0],
            )  # fmt: skip
        parts.append(_line(ends, kind))
    for kind, count, row, label in (
        ("t1", shape.t1, rows[0], f"t1:{name}."),
        ("t0", shape.t0, rows[1], f"t0:{name}."),
        ("host", shape.hosts, rows[2], "h"),
    ):
        for index in range(count):
            parts.append(_box(middle(index, count), row, f"{label}{index}", kind))
    return parts


def _line(ends: tuple[float, float, float, float], kind: str) -> str:
    x1, y1, x2, y2 = ends
    name = f' class="{kind}"' if kind else ""
    return f'<line{name} x1="{x1:.1f}" y1="{y1}" x2="{x2:.1f}" y2="{y2 + _BOX_HEIGHT}"/>'


def _box(x: float, y: float, label: str, kind: str) -> str:
    rect = (
        f'<rect class="{kind}" x="{x - _BOX_WIDTH / 2:.1f}" y="{y}" width="{_BOX_WIDTH}" '
        f'height="{_BOX_HEIGHT}"/>'
    )
    return rect + f'<text x="{x:.1f}" y="{y + 16}">{label}</text>'


def _text(x: float, y: float, text: str, kind: str) -> str:
    escaped = text.replace("&", "&amp;").replace("<", "&lt;")
    return f'<text class="{kind}" x="{x}" y="{y}">{escaped}</text>'
