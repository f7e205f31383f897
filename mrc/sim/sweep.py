# SPDX-License-Identifier: Apache-2.0
"""A sweep: a scenario at every point of a grid of parameters, with every seed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from hashlib import sha256
from importlib.metadata import version
from itertools import product
from typing import Any

import msgspec
from msgspec import Struct

from mrc.errors import BadFileError
from mrc.fabric import document
from mrc.sim import reader, report
from mrc.sim.checks import Measured
from mrc.sim.many import Job
from mrc.sim.results import CheckValue, SweptJob, SweptRun
from mrc.sim.scenario import Scenario
from mrc.sim.trial import measured, run_trial

Grid = Mapping[str, Sequence[Any]]
"""The values of each key, as `--set` names it."""


@cache
def version_here() -> str:
    """Of mrc on this machine."""
    return version("mrc-transport")


class Planned(Struct, frozen=True):
    """A job of a sweep."""

    name: str
    parameters: dict[str, Any]  # values of --set and of the grid
    scenario: Scenario
    seed: int

    @property
    def job(self) -> Job:
        return self.scenario, self.seed


class Spot(Struct, frozen=True):
    """A point of the grid, and the part of the scenario that runs there."""

    grid: dict[str, Any]
    scenario: Scenario
    jobs: tuple[Planned, ...]  # one for each seed


def parse_setting(text: str) -> tuple[str, Any]:
    """ "a.b=3" -> ("a.b", 3). A value that is not TOML is text: rates and times need no quotes."""
    key, separator, value = text.partition("=")
    if not key or not separator:
        raise ValueError(f"{text!r} is not KEY=VALUE")
    return key, _value(value)


def parse_axis(text: str) -> tuple[str, list[Any]]:
    """ "a.b=1,2" -> ("a.b", [1, 2]). Commas within brackets and quotes part nothing."""
    key, separator, values = text.partition("=")
    found = [_value(part) for part in _parts(values)]
    if not key or not separator or "" in found:
        raise ValueError(f"{text!r} is not KEY=VALUE,VALUE")
    if any(each in found[:i] for i, each in enumerate(found)):
        raise ValueError(f"{text!r} has a value twice")
    return key, found


def _value(text: str) -> Any:
    try:
        return document.parsed(f"value = {text}", text)["value"]
    except BadFileError:
        return text


def _parts(text: str) -> list[str]:
    parts, depth, quote = [""], 0, ""
    for letter in text:
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "\"'":
            quote = letter
        else:
            depth += (letter in "[{") - (letter in "]}")
        if letter == "," and not depth and not quote:
            parts.append("")
        else:
            parts[-1] += letter
    return parts


def plan(name: str, settings: Mapping[str, Any], grid: Grid, seeds: Sequence[int]) -> list[Spot]:
    """The jobs of every point of the grid. Raises ConfigError."""
    spots = []
    for values in product(*grid.values()):
        point = dict(zip(grid, values, strict=True))
        parameters = {**settings, **point}
        for part in reader.load(name, parameters).parts:
            jobs = [Planned(_hash(part, parameters, s), parameters, part, s) for s in seeds]
            spots.append(Spot(point, part, tuple(jobs)))
    return spots


def _hash(scenario: Scenario, parameters: Mapping[str, Any], seed: int) -> str:
    """The parameters count too: a line says them, and other keys may lead to one scenario."""
    told = (version_here(), seed, parameters, scenario)
    text = msgspec.json.encode(told, order="deterministic", enc_hook=str)
    return sha256(text).hexdigest()[:16]


class Swept(Struct, frozen=True):
    """What a job returns."""

    version: str  # of mrc where it ran
    runs: tuple[SweptRun, ...]


def swept_of(job: Job) -> Swept:
    """Runs a job, on any machine."""
    trial = run_trial(*job)
    found = measured(trial)
    values = [found.values, *found.baselines.values()]
    return Swept(
        version_here(),
        tuple(
            SweptRun(
                transport=result.scenario.transport.kind,
                stats=result.stats,
                figures=tuple(
                    CheckValue(check=check.name, value=value)
                    for check, value in zip(job[0].checks, row, strict=True)
                ),
            )
            for result, row in zip(trial.results, values, strict=True)
        ),
    )


def line_of(planned: Planned, swept: Swept) -> SweptJob:
    return SweptJob(
        job=planned.name,
        version=swept.version,
        scenario=planned.scenario.name,
        variant=planned.scenario.variant,
        seed=planned.seed,
        parameters=planned.parameters,
        runs=swept.runs,
    )


def measured_in(line: SweptJob) -> Measured:
    """The values of a line, as of a trial."""
    first, *baselines = (
        (run.transport, tuple(figure.value for figure in run.figures)) for run in line.runs
    )
    return Measured(seed=line.seed, values=first[1], baselines=dict(baselines))


def found_at(spot: Spot, lines: Mapping[str, SweptJob]) -> list[Measured]:
    """The values of every seed that has a result."""
    return [measured_in(lines[job.name]) for job in spot.jobs if job.name in lines]


def rows(spots: Sequence[Spot], lines: Mapping[str, SweptJob]) -> Iterator[dict[str, Any]]:
    """Lines of CSV, as those of a scenario, with a column for each parameter."""
    for spot in spots:
        given = {key: text_of(value) for key, value in spot.jobs[0].parameters.items()}
        for row in report.rows(spot.scenario, found_at(spot, lines)):
            yield {**given, **row}


def text_of(value: Any) -> Any:
    """A value for a cell: numbers and text as they are, arrays as JSON."""
    is_plain = isinstance(value, (str, int, float))
    return value if is_plain else msgspec.json.encode(value).decode()
