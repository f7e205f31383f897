# SPDX-License-Identifier: Apache-2.0
"""Pictures of runs through faults, as SVG: a row for each run over one time axis, faults shaded;
for mrc also its planes and EVs as a heat map. Pure.

mrc is blue and the others are orange, which differ for every kind of colour blindness. Places and
words mark faults, too, not colour alone. Sizes are in pixels.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

from faults import Event, Run, events_of, phases, rates, summary
from steps import chapters

from mrc.sim.drawing import LIGHT, LINES, draw

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


# ---- goodput of all -----------------------------------------------------------------------------

_ROW, _FOOT = 74, 72
_PLANE, _EV = 16, 7
_LEVELS = 8  # of the heat map
_PEAK = 1.12  # top of a row, as a share of the capacity of all planes
_STEP = 0.02  # seconds between points
_NOTES = (
    "Dashed: the capacity of the planes. A plane that loses packets counts as 0 there, although it"
    " delivers the rest: hence values above 100%.",
    f"Goodput is counted in bins of {_STEP * 1000:g} ms. A bin may count bytes that arrived earlier"
    f" and waited for others. Bins above {_PEAK:.0%} are drawn at {_PEAK:.0%}.",
)


def story_svg(runs: Sequence[Run], planes: int, plane_bps: float) -> str:
    """A row for each run, and a heat map for each run that recorded its EVs."""
    detailed = [run for run in runs if run["evs"]]
    *rows, below = tops(len(runs) + 1, _ROW)
    ends = below - TITLE
    heats = []
    for run in detailed:
        heats.append(ends + TITLE)
        ends += 2 * TITLE + planes * (_PLANE + 6) + len(run["evs"]) * _EV

    def paint(figure: Figure) -> None:
        events = events_of(runs[0])
        axes = backdrop(figure, runs[0]["seconds"], ends, events)
        for event in events:
            if any(e is not event and e.at < event.until and event.at < e.until for e in events):
                name_at(axes, event.at, event.name, "left")
            else:
                name_at(axes, (event.at + event.until) / 2, event.name)
        words(figure, 14, label, NAME)
        for number, note in enumerate(_NOTES):
            words(figure, ends + _FOOT - 26 + 15 * number, note, NOTE)
        for run, top in zip(runs, rows, strict=True):
            axes = row(figure, run, top, _ROW, summary(run))
            _goodput(axes, run, planes, plane_bps)
            axes.set_ylabel("Gbit/s", **NOTE)
        for run, top in zip(detailed, heats, strict=True):
            _heat(figure, run, top, planes, plane_bps)

    label = (
        f"Goodput while planes fail and return: scenario {runs[0]['scenario']}, {planes} planes of"
        f" {plane_bps / 1e6:.0f} Mbit/s of payload"
    )
    return draw(WIDTH, ends + _FOOT, label, paint)


def _goodput(axes: Axes, run: Run, planes: int, plane_bps: float) -> None:
    """Dashed: the capacity of the planes without a fault."""
    peak, start, end = planes * plane_bps * _PEAK / 1e9, 0.0, run["seconds"]
    axes.set_ylim(-peak / _ROW, peak)
    axes.locator_params(axis="y", nbins=3, steps=[1, 2, 5, 10])
    axes.grid(axis="y")
    grain = peak / _ROW / 10
    points = [
        (at, grain * round(min(bps / 1e9, peak) / grain))
        for at, bps in rates(run, start, end, _STEP)
    ]
    bends = [
        here
        for i, here in enumerate(points)
        if i in (0, len(points) - 1) or not points[i - 1][1] == here[1] == points[i + 1][1]
    ]
    # The edge surrounds the area; its lower and side parts lie outside the visible range.
    x, y = zip((start - _STEP, -peak), (start - _STEP, bends[0][1]), *bends,
               (end + _STEP, bends[-1][1]), (end + _STEP, -peak), strict=True)  # fmt: skip
    axes.fill(x, y, facecolor=(colour(run), 0.22), edgecolor=colour(run), linewidth=1.2,
              joinstyle="round")  # fmt: skip
    parts = phases(events_of(run), run["seconds"], planes)
    left = [part.planes * plane_bps / 1e9 for part in parts for _ in (0, 1)]
    at = [moment for part in parts for moment in (part.start, part.end)]
    axes.plot(at, left, **DASHED)


# ---- planes and EVs -----------------------------------------------------------------------------

_STATES = {"ASSUMED_BAD": "bad", "SKIP": "skip", "DENIED": "ink", "UNPROVEN": "ink"}
Piece = tuple[float, float]
"""A begin and a length, in seconds."""


def _heat(figure: Figure, run: Run, top: float, planes: int, plane_bps: float) -> None:
    """A strip for each plane, and below it a thin strip for each of its EVs."""
    height, seconds = planes * (_PLANE + 6) + len(run["evs"]) * _EV, run["seconds"]
    axes = panel(figure, LEFT, top, PLOT, height, xlim=(0, seconds), ylim=(height, 0), xticks=[])
    axes.set_title(f"{run['contender']}: planes and their EVs", loc="left", **NAME)
    _legend(figure, top - TITLE)
    middles, y = [], 0.0
    for plane in range(1, planes + 1):
        middles.append(y + _PLANE / 2)
        for level, piece in _strip(run, str(plane), plane_bps):
            _piece(axes, piece, y, _PLANE, LINES[0], level / _LEVELS)
        y += _PLANE + 1
        for path in (ev["path"] for ev in run["evs"] if ev["plane"] == plane):
            _piece(axes, (0, seconds), y, _EV - 1, LIGHT["good"])
            for name, piece in (*_ev_states(run, plane, path), *_suspended(run, plane)):
                _piece(axes, piece, y, _EV - 1, LIGHT[name])
            y += _EV
        y += 5
    axes.set_yticks(middles, [f"plane {plane}" for plane in range(1, planes + 1)])


def _piece(
    axes: Axes, piece: Piece, y: float, height: float, colour: str, alpha: float = 1
) -> None:
    begin, length = piece
    axes.fill([begin, begin + length, begin + length, begin], [y, y, y + height, y + height],
              facecolor=(colour, alpha), linewidth=0)  # fmt: skip


def _legend(figure: Figure, top: float) -> None:
    axes = panel(figure, WIDTH - RIGHT - 610, top, 610, TITLE, xlim=(0, 610), ylim=(TITLE, 0),
                 xticks=[], yticks=[])  # fmt: skip
    axes.text(0, 13, "a plane's goodput: none", **NOTE)
    for level in range(1, _LEVELS + 1):
        _piece(axes, (126 + 9 * level, 9), 4, 10, LINES[0], level / _LEVELS)
    axes.text(212, 13, "full", **NOTE)
    for at, name, said in ((256, "good", "EV good"), (332, "skip", "skipped"),
                            (436, "bad", "bad"), (486, "away", "plane suspended")):  # fmt: skip
        _piece(axes, (at, 14), 4, 10, LIGHT[name])
        axes.text(at + 18, 13, said, **NOTE)


def _strip(run: Run, plane: str, plane_bps: float) -> Iterator[tuple[int, Piece]]:
    """Goodput of a plane, in levels. Adjacent bins of one level form one piece."""
    bins = run["planes"]
    count = max(1, round(5 * _STEP / bins["width_seconds"]))
    width, every = count * bins["width_seconds"], bins["bytes"][plane]
    sums = [sum(every[i : i + count]) for i in range(0, len(every), count)]
    full, at = plane_bps / 8 * width, 0
    for level, group in groupby(min(_LEVELS, round(_LEVELS * n / full)) for n in sums):
        length = len(list(group))
        if level:
            yield level, (bins["start_seconds"] + at * width, length * width)
        at += length


def _ev_states(run: Run, plane: int, path: str) -> Iterator[tuple[str, Piece]]:
    """The times in which an EV was not good. Pieces less than a pixel apart form one piece."""
    pixel = run["seconds"] / PLOT
    mine = [c for c in run["ev_changes"] if (c["plane"], c["path"]) == (plane, path)]
    ends = [*(change["at_seconds"] for change in mine[1:]), run["seconds"]]
    pieces: list[tuple[str, float, float]] = []
    for change, end in zip(mine, ends, strict=False):
        name, begin = _STATES.get(change["new"]), change["at_seconds"]
        if name is None or not begin < end:
            continue
        if pieces and pieces[-1][0] == name and begin < pieces[-1][2] + pixel:
            begin = pieces.pop()[1]
        pieces.append((name, begin, max(end, begin + 0.8 * pixel)))
    for name, begin, end in pieces:
        yield name, (begin, end - begin)


def _suspended(run: Run, plane: int) -> Iterator[tuple[str, Piece]]:
    """The times in which a plane was suspended. Its EVs have no state of their own then."""
    mine = [change for change in run["plane_changes"] if change["plane"] == plane]
    ends = [*(change["at_seconds"] for change in mine[1:]), run["seconds"]]
    for change, end in zip(mine, ends, strict=False):
        if change["suspended"]:
            begin = change["at_seconds"]
            yield "away", (begin, max(end - begin, 0.8 * run["seconds"] / PLOT))


# ---- steps of a training -------------------------------------------------------------------------

_STEP_ROW, _STEP_FOOT = 84, 44
_RANGE = (0.05, 12.0)  # seconds
_TICKS = {0.1: "0.1", 1.0: "1", 10.0: "10"}


def steps_svg(runs: Sequence[Run], planes: int) -> str:
    places = tops(len(runs), _STEP_ROW)
    bottom, seconds = places[-1] + _STEP_ROW, runs[0]["seconds"]
    events = [Event(**event) for event in runs[0]["events"]]

    def paint(figure: Figure) -> None:
        faults = [event for event in events if event.plane == 1]
        axes = backdrop(figure, seconds, bottom + 4, faults)
        for chapter in chapters(events, seconds, planes):
            name_at(axes, (chapter.start + chapter.end) / 2, chapter.name)
        words(figure, 14, label, NAME)
        for run, top in zip(runs, places, strict=True):
            _steps(row(figure, run, top, _STEP_ROW, _steps_summary(run)), run)

    label = f"Duration of each training step while planes fail and return, {planes} planes"
    return draw(WIDTH, bottom + _STEP_FOOT, label, paint)


def _steps(axes: Axes, run: Run) -> None:
    axes.set_yscale("log")
    axes.set_ylim(*_RANGE)
    axes.set_yticks(list(_TICKS), list(_TICKS.values()))
    axes.set_yticks([], minor=True)
    axes.grid(axis="y")
    axes.set_ylabel("step, s", **NOTE)
    usual = run["chapters"][0]["median_seconds"]
    *steps, last = run["steps"]
    if last[1] > usual:  # it has no end yet: a short one tells nothing
        steps.append(last)
    x: list[float] = []
    y: list[float] = []
    for begin, length in steps:
        height = min(max(length, _RANGE[0]), _RANGE[1])
        x += (begin, begin + length)
        y += (height, height)
    axes.plot(x, y, color=colour(run), linewidth=1.6, drawstyle="steps-post",
              solid_joinstyle="miter")  # fmt: skip
    axes.axhline(usual, **DASHED)


def _steps_summary(run: Run) -> str:
    """`340 steps; median before the faults 112 ms; longest 0.21 s`"""
    *done, last = (length for _, length in run["steps"])
    usual = run["chapters"][0]["median_seconds"]
    return (
        f"{len(done)} steps; median before the faults {usual * 1e3:.0f} ms;"
        f" longest {max(*done, last):.2f} s"
    )
