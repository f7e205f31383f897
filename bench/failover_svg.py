# SPDX-License-Identifier: Apache-2.0
"""Runs through a scenario as SVG: goodput of each contender over one time axis, and planes and EVs
of mrc as a heat map. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from canvas import (
    BOLD,
    DASHED,
    LEFT,
    NAME,
    NOTE,
    PLOT,
    RIGHT,
    TITLE,
    WIDTH,
    backdrop,
    colour,
    name_at,
    panel,
    row,
    tops,
    words,
)
from failover_figures import Run, events_of, rates, summary
from failover_scenario import Event, phases

from mrc.sim.drawing import LIGHT, LINES, draw

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_ROW, _FOOT = 74, 72
_PLANE, _EV = 16, 7
_LEVELS = 8  # of the heat map
_PEAK = 1.12  # top of a row, as a share of the capacity of all planes


# ---- goodput of all -----------------------------------------------------------------------------


def story_svg(runs: Sequence[Run], planes: int, plane_bps: float, step: float = 0.01) -> str:
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
            if _alone(event, events):
                name_at(axes, (event.at + event.until) / 2, event.name)
            else:
                name_at(axes, event.at, event.name, "left")
        words(figure, 14, label, NAME)
        for number, note in enumerate(_notes(step)):
            words(figure, ends + _FOOT - 26 + 15 * number, note, NOTE)
        for run, top in zip(runs, rows, strict=True):
            axes = row(figure, run, top, _ROW, summary(run))
            _goodput(axes, run, planes, plane_bps, step, _PEAK)
            axes.set_ylabel("Gbit/s", **NOTE)
        for run, top in zip(detailed, heats, strict=True):
            _heat(figure, run, top, planes, plane_bps, 5 * step)

    label = (
        f"Goodput while planes fail and return: scenario {runs[0]['scenario']}, {planes} planes of"
        f" {plane_bps / 1e6:.0f} Mbit/s of payload"
    )
    return draw(WIDTH, ends + _FOOT, label, paint)


def _notes(step: float) -> tuple[str, str]:
    return (
        "Dashed: the capacity of the planes. A plane that loses packets counts as 0 there, although"
        " it delivers the rest: hence values above 100%.",
        f"Goodput is counted in bins of {step * 1000:g} ms. A bin may count bytes that arrived"
        f" earlier and waited for others. Bins above {_PEAK:.0%} are drawn at {_PEAK:.0%}.",
    )


def _alone(event: Event, events: Sequence[Event]) -> bool:
    return not any(e is not event and e.at < event.until and event.at < e.until for e in events)


def _goodput(
    axes: Axes, run: Run, planes: int, plane_bps: float, step: float, headroom: float
) -> None:
    """Goodput in the span of the axes. Dashed: the capacity of the planes without a fault."""
    peak, (start, end) = planes * plane_bps * headroom / 1e9, axes.get_xlim()
    axes.set_ylim(-peak / _ROW, peak)
    axes.locator_params(axis="y", nbins=3, steps=[1, 2, 5, 10])
    axes.grid(axis="y")
    grain = peak / _ROW / 10
    points = [
        (at, grain * round(min(bps / 1e9, peak) / grain))
        for at, bps in rates(run, start, end, step)
    ]
    bends = [
        here
        for i, here in enumerate(points)
        if i in (0, len(points) - 1) or not points[i - 1][1] == here[1] == points[i + 1][1]
    ]
    # The edge surrounds the area; its lower and side parts lie outside the visible range.
    x, y = zip((start - step, -peak), (start - step, bends[0][1]), *bends,
               (end + step, bends[-1][1]), (end + step, -peak), strict=True)  # fmt: skip
    axes.fill(x, y, facecolor=(colour(run), 0.22), edgecolor=colour(run), linewidth=1.2,
              joinstyle="round")  # fmt: skip
    parts = phases(events_of(run), run["seconds"], planes)
    left = [part.planes * plane_bps / 1e9 for part in parts for _ in (0, 1)]
    at = [moment for part in parts for moment in (part.start, part.end)]
    axes.plot(at, left, **DASHED)


# ---- planes and EVs -----------------------------------------------------------------------------

_STATES = {"ASSUMED_BAD": "bad", "SKIP": "skip", "DENIED": "ink"}
Piece = tuple[float, float]
"""A begin and a length, in seconds."""


def _heat(figure: Figure, run: Run, top: float, planes: int, plane_bps: float, step: float) -> None:
    """A strip for each plane, and below it a thin strip for each of its EVs."""
    height, seconds = planes * (_PLANE + 6) + len(run["evs"]) * _EV, run["seconds"]
    axes = panel(figure, LEFT, top, PLOT, height, xlim=(0, seconds), ylim=(height, 0), xticks=[])
    axes.set_title(f"{run['contender']}: planes and their EVs", loc="left", **NAME)
    _legend(figure, top - TITLE)
    middles, y = [], 0.0
    for plane in range(1, planes + 1):
        middles.append(y + _PLANE / 2)
        for level, piece in _strip(run, str(plane), plane_bps, step):
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


def _strip(run: Run, plane: str, plane_bps: float, step: float) -> Iterator[tuple[int, Piece]]:
    """Goodput of a plane, in levels. Adjacent bins of one level form one piece."""
    bins = run["planes"]
    count = max(1, round(step / bins["width_seconds"]))
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


# ---- the first moments --------------------------------------------------------------------------

_BEFORE, _AFTER = 0.02, 0.2


def moments_svg(run: Run, planes: int, plane_bps: float) -> str:
    """Goodput around the begin of each fault, in bins of 5 ms."""
    events = events_of(run)
    width = (PLOT + 36) / len(events) - 36

    def paint(figure: Figure) -> None:
        for number, event in enumerate(events):
            span = (event.at - _BEFORE, event.at + _AFTER)
            axes = panel(figure, LEFT + number * (width + 36), 38, width, 130, xlim=span)
            _goodput(axes, run, planes, plane_bps, 0.005, 1.25)
            axes.set_title(event.name, loc="left", **BOLD)
            times = range(0, round(_AFTER * 1000) + 1, 50)
            axes.set_xticks([event.at + ms / 1000 for ms in times], list(map(str, times)))
            axes.set_xlabel("time since the fault, ms", **NOTE)
            if number == 0:
                axes.set_ylabel("Gbit/s", **NOTE)
            else:
                axes.tick_params(labelleft=False)

    return draw(WIDTH, 212, "Goodput in the first moments of each fault", paint)
