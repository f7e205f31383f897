# SPDX-License-Identifier: Apache-2.0
"""Runs through a scenario as SVG: goodput of each contender over one time axis, and planes and EVs
of mrc as a heat map. Pure.

Colours are CSS variables: a page sets them for light and dark, `standalone` for one of the two.
Ours is blue and theirs orange, which stay apart for every kind of colour blindness; what is wrong
is told by place and words too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from itertools import accumulate, groupby, pairwise
from typing import Any

from failover_scenario import Event, phases

Run = Mapping[str, Any]

WIDTH = 960
_LEFT, _RIGHT = 64, 16
_PLOT = WIDTH - _LEFT - _RIGHT
_HEAD, _TITLE, _ROW, _GAP = 34, 20, 74, 12
_PLANE, _EV = 16, 7
_LEVELS = 8  # of the heat map
_PEAK = 1.12  # of all planes, where a row ends

LIGHT = {
    "ink": "#1f2328", "note": "#57606a", "grid": "#d0d7de", "paper": "#ffffff",
    "ours": "#0063a8", "theirs": "#c05a00", "bad": "#d1242f", "skip": "#b08800", "good": "#9fc9e8",
    "away": "#6e7781",
    "met": "#116329", "unmet": "#bc1c26",
}  # fmt: skip
DARK = {
    "ink": "#e6edf3", "note": "#9aa4ae", "grid": "#3a424b", "paper": "#0d1117",
    "ours": "#58b4f5", "theirs": "#f0a050", "bad": "#ff6a62", "skip": "#e3c04b", "good": "#234f70",
    "away": "#8b949e",
    "met": "#4cc96a", "unmet": "#ff7b72",
}  # fmt: skip

STYLE = (
    ".story text{fill:var(--ink);font:12px system-ui,sans-serif}"
    ".story .note{fill:var(--note);font-size:11px}"
    ".story .name{font-weight:600;font-size:13px}"
    ".story .event{font-weight:600}"
    ".story .axis{stroke:var(--grid);stroke-width:1;fill:none}"
    ".story .capacity{stroke:var(--ink);stroke-width:1;stroke-dasharray:4 3;fill:none}"
    ".story .line{stroke-width:1.2;stroke-linejoin:round;fill-opacity:.22}"
    ".story .edge{stroke:var(--note);stroke-width:1;stroke-dasharray:1 3}"
)


def variables(theme: Mapping[str, str]) -> str:
    """The declarations of a theme's colours."""
    return "".join(f"--{name}:{colour};" for name, colour in theme.items())


def standalone(svg: str, theme: Mapping[str, str]) -> str:
    """The same as a file of its own, on paper of its theme."""
    style = f"<style>svg{{{variables(theme)}background:var(--paper)}}{STYLE}</style>"
    return svg.replace(">", f' font-family="sans-serif">{style}', 1)


# ---- pieces -------------------------------------------------------------------------------------


def text(x: float, y: float, words: str, anchor: str = "start", kind: str = "") -> str:
    css = f' class="{kind}"' if kind else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{css}>{escape(words)}</text>'


def rectangle(x: float, y: float, width: float, height: float, fill: str, extra: str = "") -> str:
    return (
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}"'
        f' fill="{fill}"{extra}/>'
    )


def upright(x: float, y: float, words: str) -> str:
    place = f'transform="translate({x:g},{y:g}) rotate(-90)"'
    return f'<text class="note" text-anchor="middle" {place}>{escape(words)}</text>'


class Axis:
    """Seconds of a time axis as places on the page."""

    def __init__(self, start: float, end: float, left: float, width: float) -> None:
        self.start, self.end, self.left, self.width = start, end, left, width

    def x(self, seconds: float) -> float:
        inside = min(max(seconds, self.start), self.end)
        return self.left + self.width * (inside - self.start) / (self.end - self.start)


def events_of(run: Run) -> list[Event]:
    return [Event(**event) for event in run["events"]]


def rates(run: Run, axis: Axis, step: float) -> list[tuple[float, float]]:
    """Goodput in bit/s by seconds, over the axis."""
    bins = run["bins"]
    total = [0, *accumulate(bins["bytes"])]

    def at(seconds: float) -> float:
        place = (seconds - bins["start_seconds"]) / bins["width_seconds"]
        whole = min(max(int(place), 0), len(total) - 1)
        rest = min(max(place - whole, 0.0), 1.0)
        following = total[min(whole + 1, len(total) - 1)]
        return total[whole] + rest * (following - total[whole])

    count = round((axis.end - axis.start) / step)
    moments = [axis.start + i * step for i in range(count + 1)]
    pairs = pairwise(moments)
    return [((a + b) / 2, (at(b) - at(a)) * 8 / (b - a)) for a, b in pairs]


def area(points: Sequence[tuple[float, float]], base: float, colour: str) -> str:
    """A line through places on the page, filled to its base; what is straight has two points."""
    places = [(round(x, 1), round(y, 1)) for x, y in points]
    kept = [
        here
        for i, here in enumerate(places)
        if i in (0, len(places) - 1) or not places[i - 1][1] == here[1] == places[i + 1][1]
    ]
    steps, (x, y) = [f"M{kept[0][0]:g},{kept[0][1]:g}"], kept[0]
    for to_x, to_y in kept[1:]:
        steps.append(f"l{to_x - x:.3g},{to_y - y:.3g}")
        x, y = to_x, to_y
    line = "".join(steps)
    fill = f"{line}V{base:g}H{kept[0][0]:g}Z"
    return (
        f'<path class="line" d="{fill}" fill="{colour}" stroke="none"/>'
        f'<path class="line" d="{line}" fill="none" stroke="{colour}"/>'
    )


# ---- goodput of all -----------------------------------------------------------------------------


def story_svg(runs: Sequence[Run], planes: int, plane_bps: float, step: float = 0.01) -> str:
    """A row for each run, and a heat map of those that tell of their planes' EVs."""
    seconds = runs[0]["seconds"]
    axis = Axis(0.0, seconds, _LEFT, _PLOT)
    detailed = [run for run in runs if run["evs"]]
    bottom = _HEAD + len(runs) * (_TITLE + _ROW + _GAP)
    ends = bottom + sum(_heat_height(run, planes) for run in detailed)
    events = events_of(runs[0])
    body = list(_bands(events, axis, ends))
    for number, run in enumerate(runs):
        top = _HEAD + number * (_TITLE + _ROW + _GAP)
        body += _row(run, axis, top, planes, plane_bps, step)
    for run in detailed:
        body += _heat(run, axis, bottom, planes, plane_bps, 5 * step)
        bottom += _heat_height(run, planes)
    body += _time_axis(axis, ends)
    return _svg(body, ends + 40, "Goodput of each contender over time while planes fail and return")


def _svg(body: Sequence[str], height: float, title: str) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="story" viewBox="0 0 {WIDTH} {height:.0f}"'
        f' width="{WIDTH}" height="{height:.0f}" role="img" aria-label="{escape(title)}">\n'
        + "\n".join(body)
        + "\n</svg>\n"
    )


def _bands(events: Sequence[Event], axis: Axis, bottom: float) -> Iterator[str]:
    """A fault is shaded from its begin to its end; its name stands above."""
    for event in events:
        first, last = axis.x(event.at), axis.x(event.until)
        faint = ' fill-opacity="0.08"'
        yield rectangle(first, _HEAD - 8, last - first, bottom - _HEAD + 8, "var(--ink)", faint)
        alone = not any(
            e is not event and e.at < event.until and event.at < e.until for e in events
        )
        place, anchor = ((first + last) / 2, "middle") if alone else (first, "start")
        yield text(place, 18, event.name, anchor, "event")


def _row(
    run: Run, axis: Axis, top: float, planes: int, plane_bps: float, step: float
) -> Iterator[str]:
    base, peak = top + _TITLE + _ROW, planes * plane_bps * _PEAK

    def y(bps: float) -> float:
        return base - _ROW * min(bps, peak) / peak

    colour = "var(--ours)" if run["contender"] == "mrc" else "var(--theirs)"
    yield text(_LEFT, top + 13, run["contender"], kind="name")
    yield text(WIDTH - _RIGHT, top + 13, summary(run), "end", "note")
    for gbps in _ticks(peak / 1e9):
        yield f'<path class="axis" d="M{_LEFT},{y(gbps * 1e9):.1f}H{WIDTH - _RIGHT}"/>'
        yield text(_LEFT - 6, y(gbps * 1e9) + 4, f"{gbps:g}", "end", "note")
    yield upright(22, top + _TITLE + _ROW / 2, "Gbit/s")
    yield area([(axis.x(at), y(bps)) for at, bps in rates(run, axis, step)], base, colour)
    yield capacity_line(run, axis, planes, lambda left: y(left * plane_bps))


def capacity_line(run: Run, axis: Axis, planes: int, y: Any) -> str:
    """What the planes carry that are there."""
    steps = []
    for part in phases(events_of(run), run["seconds"], planes):
        if part.end > axis.start and part.start < axis.end:
            steps.append(f"{axis.x(part.start):.1f},{y(part.planes):.1f}")
            steps.append(f"{axis.x(part.end):.1f},{y(part.planes):.1f}")
    return f'<path class="capacity" d="M{"L".join(steps)}"/>'


def _ticks(end: float) -> list[float]:
    step = next(each for each in (0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20) if end / each < 4)
    return [i * step for i in range(int(end / step) + 1)]


def summary(run: Run) -> str:
    """The figures that say most, in a line."""
    found = run["figures"]
    stall = duration(found["longest_stall_of_a_stream_seconds"])
    share = found["delivered_bytes"] / found["capacity_bytes"]
    of_one = (
        " of a flow"
        if found["longest_stall_of_a_stream_seconds"]
        > 2 * max(found["longest_stall_seconds"], 0.01)
        else ""
    )
    return f"{share:.0%} of what the planes could carry; longest stall{of_one} {stall}"


def duration(seconds: float | None) -> str:
    """3 ms, 0.25 s."""
    if seconds is None:
        return "never"
    return f"{seconds * 1e3:.0f} ms" if seconds < 0.0995 else f"{seconds:.2f} s"


def _time_axis(axis: Axis, top: float) -> Iterator[str]:
    step = next(each for each in (0.1, 0.2, 0.5, 1, 2, 5) if axis.end / each <= 16)
    for i in range(int(axis.end / step + 1e-9) + 1):
        x = axis.x(i * step)
        yield f'<path class="axis" d="M{x:.1f},{top - 2:.1f}v6"/>'
        yield text(x, top + 17, f"{i * step:g}", "middle", "note")
    yield text(axis.left + axis.width / 2, top + 34, "time, s", "middle", "note")


# ---- planes and EVs -----------------------------------------------------------------------------

_STATES = {"ASSUMED_BAD": "var(--bad)", "SKIP": "var(--skip)", "DENIED": "var(--ink)"}


def _heat_height(run: Run, planes: int) -> float:
    return 2 * _TITLE + planes * (_PLANE + 6) + len(run["evs"]) * _EV


def _heat(
    run: Run, axis: Axis, top: float, planes: int, plane_bps: float, step: float
) -> Iterator[str]:
    yield text(_LEFT, top + 13, f"{run['contender']}: planes and their EVs", kind="name")
    yield from _legend(top + 13)
    y = top + _TITLE
    for plane in range(1, planes + 1):
        yield text(_LEFT - 6, y + _PLANE - 3, f"plane {plane}", "end", "note")
        yield from _strip(run, axis, y, str(plane), plane_bps, step)
        y += _PLANE + 1
        for path in _paths(run, plane):
            yield rectangle(axis.left, y, axis.width, _EV - 1, "var(--good)")
            yield from _ev_states(run, axis, y, plane, path)
            yield from _suspended(run, axis, y, plane)
            y += _EV
        y += 5


def _legend(y: float) -> Iterator[str]:
    x = WIDTH - _RIGHT - 610
    yield text(x, y, "a plane's goodput: none", "start", "note")
    for level in range(1, _LEVELS + 1):
        shade = f' fill-opacity="{level / _LEVELS:.3f}"'
        yield rectangle(x + 126 + 9 * level, y - 9, 9, 10, "var(--ours)", shade)
    yield text(x + 212, y, "full", "start", "note")
    for at, colour, words in ((256, "good", "EV good"), (332, "skip", "to be skipped"),
                              (436, "bad", "bad"), (486, "away", "plane suspended")):  # fmt: skip
        yield rectangle(x + at, y - 9, 14, 10, f"var(--{colour})")
        yield text(x + at + 18, y, words, "start", "note")


def _strip(
    run: Run, axis: Axis, y: float, plane: str, plane_bps: float, step: float
) -> Iterator[str]:
    """Goodput of a plane, in shades; neighbours of one shade are one piece."""
    bins = run["planes"]
    count = max(1, round(step / bins["width_seconds"]))
    width, every = count * bins["width_seconds"], bins["bytes"][plane]
    sums = [sum(every[i : i + count]) for i in range(0, len(every), count)]
    full, at = plane_bps / 8 * width, 0
    for level, group in groupby(min(_LEVELS, round(_LEVELS * n / full)) for n in sums):
        first = axis.x(bins["start_seconds"] + at * width)
        at += len(list(group))
        last = axis.x(bins["start_seconds"] + at * width)
        if level and last > first:
            shade = f' fill-opacity="{level / _LEVELS:.3f}"'
            yield rectangle(first, y, last - first, _PLANE, "var(--ours)", shade)


def _paths(run: Run, plane: int) -> list[str]:
    return [ev["path"] for ev in run["evs"] if ev["plane"] == plane]


def _ev_states(run: Run, axis: Axis, y: float, plane: int, path: str) -> Iterator[str]:
    """What an EV was other than good; what no eye can tell apart is one piece."""
    mine = [c for c in run["ev_changes"] if (c["plane"], c["path"]) == (plane, path)]
    ends = [*(change["at_seconds"] for change in mine[1:]), axis.end]
    pieces: list[tuple[float, float, str]] = []
    for change, end in zip(mine, ends, strict=False):
        first, last = axis.x(change["at_seconds"]), axis.x(end)
        if (colour := _STATES.get(change["new"])) is None or last <= first:
            continue
        if pieces and pieces[-1][2] == colour and first < pieces[-1][1] + 1:
            first = pieces.pop()[0]
        pieces.append((first, max(last, first + 0.8), colour))
    for first, last, colour in pieces:
        yield rectangle(first, y, last - first, _EV - 1, colour)


def _suspended(run: Run, axis: Axis, y: float, plane: int) -> Iterator[str]:
    """While nothing is sent on a plane its EVs have no state of their own."""
    mine = [change for change in run["plane_changes"] if change["plane"] == plane]
    for number, change in enumerate(mine):
        if change["suspended"]:
            end = mine[number + 1]["at_seconds"] if number + 1 < len(mine) else axis.end
            first, last = axis.x(change["at_seconds"]), axis.x(end)
            yield rectangle(first, y, max(last - first, 0.8), _EV - 1, "var(--away)")


# ---- the first moments --------------------------------------------------------------------------

_BEFORE, _AFTER = 0.02, 0.2


def moments_svg(run: Run, planes: int, plane_bps: float) -> str:
    """A contender around the begin of each fault, in bins of 5 ms."""
    events = events_of(run)
    width = (_PLOT + 36) / len(events) - 36
    peak, base, tall = planes * plane_bps * 1.25, 168.0, 130.0
    body = []

    def y(bps: float) -> float:
        return base - tall * min(bps, peak) / peak

    for number, event in enumerate(events):
        left = _LEFT + number * (width + 36)
        axis = Axis(event.at - _BEFORE, event.at + _AFTER, left, width)
        body.append(text(left, 16, event.name, kind="event"))
        for gbps in _ticks(peak / 1e9):
            body.append(f'<path class="axis" d="M{left:.1f},{y(gbps * 1e9):.1f}h{width:.1f}"/>')
            if number == 0:
                body.append(text(left - 6, y(gbps * 1e9) + 4, f"{gbps:g}", "end", "note"))
        points = [(axis.x(at), y(bps)) for at, bps in rates(run, axis, 0.005)]
        body.append(area(points, base, "var(--ours)"))
        body.append(capacity_line(run, axis, planes, lambda left: y(left * plane_bps)))
        for ms in range(0, round(_AFTER * 1000) + 1, 50):
            x = axis.x(event.at + ms / 1000)
            body.append(f'<path class="axis" d="M{x:.1f},{base:.1f}v5"/>')
            body.append(text(x, base + 18, f"{ms}", "middle", "note"))
        words = "time since the fault, ms"
        body.append(text(left + width / 2, base + 36, words, "middle", "note"))
    body.append(upright(22, base - tall / 2, "Gbit/s"))
    return _svg(body, base + 44, "Goodput in the first moments of each fault")
