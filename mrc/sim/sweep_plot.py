# SPDX-License-Identifier: Apache-2.0
"""Draws the lines of a sweep: one value over one parameter, a line for each value of others."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from mrc import units
from mrc.errors import ConfigError
from mrc.results.plain import plain
from mrc.sim.axes import Chart, Line, Point
from mrc.sim.checks import quartiles
from mrc.sim.results import SweptJob
from mrc.sim.sweep import text_of
from mrc.units import counted

Row = dict[str, Any]
_UNITS: tuple[Callable[[str], int], ...] = (
    units.parse_size, units.parse_time, units.parse_rate, units.parse_share,
)  # fmt: skip


def draw(jobs: Sequence[SweptJob], x: str, y: str, by: Sequence[str]) -> str:
    """The picture as SVG. Raises ConfigError for a key that the jobs do not have."""
    rows = [row for job in jobs for row in _rows(job)]
    columns = dict.fromkeys(key for keys, _ in rows for key in keys)
    for option, key in (("--x", x), *(("--by", key) for key in by)):
        if key not in columns:
            raise ConfigError(f"{option} {key}: unknown; known are {', '.join(columns)}")
    known = dict.fromkeys(key for _, values in rows for key in values)
    if y not in known:
        raise ConfigError(f"--y {y}: unknown; known are {', '.join(known)}")
    lines: dict[tuple[Any, ...], dict[Any, list[tuple[Row, float]]]] = {}
    for keys, values in rows:
        if (value := values.get(y)) is not None:
            line = lines.setdefault(tuple(keys.get(key) for key in by), {})
            line.setdefault(keys.get(x), []).append((keys, value))
    _refuse_mixed([cell for line in lines.values() for cell in line.values()])
    names = ", ".join(sorted({job.scenario for job in jobs}))
    seeds = {job.seed for job in jobs}
    chart = _chart(lines, x, y, by)
    chart.title = f"{names}: {y}"
    if len(seeds) > 1:
        chart.notes.append(f"Medians of {counted(len(seeds), 'seed')}; bands show the quartiles.")
    missing = sum(values.get(y) is None for _, values in rows)
    if missing:
        chart.notes.append(f"Without a value: {missing} of {counted(len(rows), 'run')}.")
    return chart.svg()


def _rows(job: SweptJob) -> Iterable[tuple[Row, dict[str, float | None]]]:
    """What selects a run, and what it measured."""
    keys = {key: text_of(value) for key, value in job.parameters.items()}
    keys |= {"scenario": job.scenario, "variant": job.variant, "version": job.version}
    for run in job.runs:
        stats = {key: value for key, value in plain(run.stats).items() if key != "trace"}
        figures = {figure.check: figure.value for figure in run.figures}
        yield keys | {"transport": run.transport, "seed": job.seed}, stats | figures


def _refuse_mixed(cells: Iterable[list[tuple[Row, float]]]) -> None:
    """The runs of one point may differ in their seeds only."""
    for cell in cells:
        first, *others = (keys for keys, _ in cell)
        for key in dict.fromkeys(key for keys in (first, *others) for key in keys):
            if key != "seed" and any(keys.get(key) != first.get(key) for keys in others):
                raise ConfigError(f"the runs differ in {key}, too: add --by {key}")


def _chart(
    lines: dict[tuple[Any, ...], dict[Any, list[tuple[Row, float]]]],
    x: str,
    y: str,
    by: Sequence[str],
) -> Chart:
    places = sorted({place for line in lines.values() for place in line}, key=_order)
    is_number = all(_is_number(place) for place in places)
    chart = Chart(
        x_title=x, y_title=y,
        x_end=max(places, default=1) if is_number else len(places), y_end=1.0,
        x_names=() if is_number else [str(place) for place in places],
    )  # fmt: skip
    for values in sorted(lines, key=lambda each: tuple(map(_order, each))):
        points = [
            Point(
                place if is_number else places.index(place) + 0.5,
                *quartiles([value for _, value in lines[values][place]]),
            )
            for place in places
            if place in lines[values]
        ]
        named = zip(by, values, strict=True)
        label = ", ".join(f"{key}={value}" for key, value in named) or y
        chart.lines.append(Line(label, points, marked=True))
    chart.y_end = 1.05 * max((p.high for line in chart.lines for p in line.points), default=0) or 1
    return chart


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _order(value: Any) -> tuple[int, float, str]:
    """Numbers first, then text by its quantity: "64KiB" stands before "1MiB"."""
    if _is_number(value):
        return 0, value, ""
    for parse in _UNITS:
        try:
            return 1, parse(str(value)), ""
        except ValueError:
            continue
    return 2, 0, str(value)
