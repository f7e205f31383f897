# SPDX-License-Identifier: Apache-2.0
"""Goodput over time as SVG: a line for each traffic group, a grey band for each fault. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from mrc.sim.run import Result
from mrc.sim.traffic import line_rate_bps

WIDTH, HEIGHT = 640, 240
_LEFT, _RIGHT, _TOP, _BOTTOM = 48, 12, 28, 32
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
_MAX_POINTS = 240
_TOP_SHARE = 1.05


def goodput_svg(result: Result) -> str:
    """The goodput of every group, as a share of its line rate."""
    end_ns = max(result.stats.now_ns, 1)
    groups = list(dict.fromkeys(flow.traffic.group for flow in result.flows))
    body = [*_bands(result, end_ns), *_axes(end_ns)]
    for number, group in enumerate(groups):
        colour = _COLOURS[number % len(_COLOURS)]
        points = " ".join(
            f"{_x(now_ns, end_ns):.1f},{_y(share):.1f}"
            for now_ns, share in shares(result, group, end_ns)
        )
        body.append(f'<polyline fill="none" stroke="{colour}" points="{points}"/>')
        body.append(_text(_LEFT + 150 * number, 16, group, colour, anchor="start"))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}"'
        f' height="{HEIGHT}" font-family="sans-serif" font-size="11">'
        + "".join(f"\n  {element}" for element in body)
        + "\n</svg>\n"
    )


def shares(result: Result, group: str, end_ns: int) -> Sequence[tuple[float, float]]:
    """(time, goodput as a share of line rate) of a group, in steps no finer than its samples."""
    numbers = result.of_group(group)
    line_bps = line_rate_bps(result.scenario, [result.flows[i] for i in numbers])
    step_ns = max(end_ns / _MAX_POINTS, result.scenario.sample_ns, 1)
    points = []
    for i in range(int(end_ns / step_ns)):
        start_ns, stop_ns = int(i * step_ns), int((i + 1) * step_ns)
        arrived = sum(result.curves[k].at(stop_ns) - result.curves[k].at(start_ns) for k in numbers)
        points.append((stop_ns, arrived * 8e9 / (stop_ns - start_ns) / line_bps))
    return points


def _x(now_ns: float, end_ns: int) -> float:
    return _LEFT + (WIDTH - _LEFT - _RIGHT) * now_ns / end_ns


def _y(share: float) -> float:
    return HEIGHT - _BOTTOM - (HEIGHT - _TOP - _BOTTOM) * min(share, _TOP_SHARE) / _TOP_SHARE


def _text(x: float, y: float, text: str, colour: str = "#333", anchor: str = "middle") -> str:
    place = f'x="{x:.0f}" y="{y:.0f}" fill="{colour}" text-anchor="{anchor}"'
    return f"<text {place}>{escape(text)}</text>"


def _bands(result: Result, end_ns: int) -> list[str]:
    bands = []
    for fault in result.scenario.faults:
        first, last = _x(fault.at_ns, end_ns), _x(min(fault.until_ns, end_ns), end_ns)
        if first >= last:
            continue
        title = escape(f"{fault.target}: {fault.kind}")
        bands.append(
            f'<rect x="{first:.1f}" y="{_TOP}" width="{last - first:.1f}"'
            f' height="{HEIGHT - _TOP - _BOTTOM}" fill="#000" fill-opacity="0.06">'
            f"<title>{title}</title></rect>"
        )
    return bands


def _axes(end_ns: int) -> list[str]:
    elements = []
    for quarter in range(5):
        share = quarter / 4
        y, x = _y(share), _x(share * end_ns, end_ns)
        elements.append(
            f'<line x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd"/>'
        )
        elements.append(_text(_LEFT - 6, y + 4, f"{share:.0%}", anchor="end"))
        elements.append(_text(x, HEIGHT - 14, f"{share * end_ns / 1e6:.3g}"))
    elements.append(_text((_LEFT + WIDTH) / 2, HEIGHT - 2, "ms; goodput of line rate"))
    return elements
