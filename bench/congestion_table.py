# SPDX-License-Identifier: Apache-2.0
"""Compares the value of each check in the simulator and over real sockets. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from figures import is_met

from mrc.sim.scenario import Check, Scenario

TOLERANCE = 0.1  # a larger difference is marked and must be explained
# Near zero, the ratio of counts and shares of packets has no meaning. They differ if they are
# further apart than this.
_NEGLIGIBLE = {"retransmitted": 0.005, "spurious": 5, "qp_errors": 0}


@dataclass(frozen=True, slots=True)
class Row:
    """A check of a scenario. None: the run has no such value."""

    name: str
    simulated: float | None
    value: float | None  # of the emulated fabric: the median of its runs,
    low: float | None  # the smallest
    high: float | None  # and the largest
    relation: str  # ">=" or "<="
    target: float | None  # None: the value is only shown
    differs: bool
    note: str

    @property
    def ratio(self) -> float | None:
        """Ratio of the emulated fabric's value to the simulator's."""
        return None if self.value is None or not self.simulated else self.value / self.simulated

    @property
    def met(self) -> bool | None:
        """Whether both values meet the target; None: the check has no target."""
        if self.target is None:
            return None
        values = (self.simulated, self.value)
        return all(v is not None and is_met(v, self.relation, self.target) for v in values)

    def encode(self) -> dict[str, Any]:
        return {**asdict(self), "ratio": self.ratio, "met": self.met}


def rows(
    part: Scenario,
    simulated: Sequence[float | None],
    emulated: Sequence[Sequence[float | None]],
) -> list[Row]:
    """A row for each check of a scenario or variant. `emulated` has the values of each run."""
    columns = zip(*emulated, strict=True)
    return [
        _row(part, check, value, column)
        for check, value, column in zip(part.checks, simulated, columns, strict=True)
    ]


def _row(
    part: Scenario, check: Check, simulated: float | None, found: Sequence[float | None]
) -> Row:
    known = [value for value in found if value is not None]
    value = median(known) if len(known) == len(found) else None
    is_demanded = not check.variants or part.variant in check.variants
    return Row(
        name=", ".join(filter(None, (part.name, part.variant, check.name))),
        simulated=simulated,
        value=value,
        low=min(known, default=None),
        high=max(known, default=None),
        relation=check.relation,
        target=check.target if is_demanded else None,
        differs=differs(check.measure, simulated, value),
        note=check.note,
    )


def differs(measure: str, simulated: float | None, value: float | None) -> bool:
    """Whether two values of a measure are further apart than TOLERANCE."""
    if simulated is None or value is None:
        return simulated is not value
    if abs(value - simulated) <= _NEGLIGIBLE.get(measure, 0):
        return False
    return not math.isclose(value, simulated, rel_tol=TOLERANCE)


def notes(found: Sequence[Mapping[str, Any]]) -> list[str]:
    """The explanation of every row that differs, or the name of a row without one."""
    lines = [row["note"] or f"unexplained: {row['name']}" for row in found if row["differs"]]
    return list(dict.fromkeys(lines))
