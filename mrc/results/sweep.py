# SPDX-License-Identifier: Apache-2.0
"""What `mrc sim sweep` prints as JSON, and the lines that it writes."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from mrc.results.plain import Result
from mrc.results.sim import Check, LostTrial, Stats, Value


class Figure(Struct, frozen=True, kw_only=True):
    """The value of a check in one run."""

    check: str
    """Its name."""
    value: float | None
    """null: the run did not show it."""


class SweptRun(Struct, frozen=True, kw_only=True):
    """One run of a job: the scenario's, or that of a baseline."""

    transport: str
    """Kind of the transport."""
    stats: Stats
    """The whole fabric."""
    figures: tuple[Figure, ...]
    """The values of the checks."""


class SweptJob(Result, frozen=True, kw_only=True):
    """A line in the folder of `mrc sim sweep`."""

    job: str
    """Hash of parameters, scenario, seed and version."""
    version: str
    """Version of mrc."""
    scenario: str
    """Name of the scenario."""
    variant: str
    """Name of the variant; empty: there are none."""
    seed: int
    """Seed of everything that is random."""
    parameters: dict[str, Any]
    """Values of --set and --grid, by their keys."""
    runs: tuple[SweptRun, ...]
    """The run itself, then those of the baselines."""


class Point(Struct, frozen=True, kw_only=True):
    """A point of the grid, over its seeds that have a result."""

    parameters: dict[str, Any]
    """Values of --grid, by their keys."""
    checks: tuple[Check, ...]
    """Figures that must meet a target."""
    values: tuple[Value, ...]
    """Other figures."""


class LostJob(LostTrial, frozen=True, kw_only=True):
    """A job without a result."""

    parameters: dict[str, Any]
    """Values of --set and --grid, by their keys."""

    def __str__(self) -> str:
        given = "".join(f"{key}={value}, " for key, value in self.parameters.items())
        return f"{given}{LostTrial.__str__(self)}"


class Sweep(Result, frozen=True, kw_only=True):
    """`mrc sim sweep`."""

    scenario: str
    """Name of the scenario."""
    seeds: tuple[int, ...]
    """Seeds of every point."""
    jobs: int
    """Jobs of the whole grid."""
    missing: int
    """How many of them have no result yet, here or of another part."""
    points: tuple[Point, ...]
    """The grid."""
    lost: tuple[LostJob, ...]
    """Jobs of this call without a result."""
