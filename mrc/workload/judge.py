# SPDX-License-Identifier: Apache-2.0
"""The checks of a scenario on a test bed: which of them apply, and where they differ from the
simulator's. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from mrc.fabric.faults import NEVER
from mrc.results.plain import like
from mrc.sim.checks import Measured, Outcome, evaluate
from mrc.sim.scenario import INNER, Check, Scenario
from mrc.workload.results import CheckVerdict, Over

SIMULATOR = "simulator"
"""the name of its values beside those of the transports"""

TOLERANCE = 0.1
"""a larger difference is marked and must be explained"""
BUSY = 0.95
"""from this share of the processors' time on, the machine may have been slower than the links"""

# Near zero, the ratio of counts and shares of packets has no meaning. They differ if they are
# further apart than this.
_NEGLIGIBLE = {"retransmitted": 0.005, "spurious": 5, "qp_errors": 0, "ev_changes": 10}

_COUNTS = (
    "completed", "qp_errors", "spurious", "retransmitted", "qps_hit", "lost_per_qp", "ev_changes",
)  # fmt: skip
"""measures that do not depend on the speed of the machine"""
_IN_RTTS = ("ev_bad_after", "failure_convergence")
_OF_PACKETS = {
    "retransmitted": ("mrc", "tcp"),
    "spurious": ("mrc",),
    "qps_hit": ("mrc",),
    "lost_per_qp": ("mrc",),
    "lost_per_dead_path": ("mrc",),
    "least_plane": ("mrc",),
    "ev_changes": ("mrc",),
}
"""measures of what not every transport counts"""
_OF_WRITES = ("completion", "step_time", "job_completion", "bus_bandwidth")


class Values(Struct, frozen=True):
    """The values of one seed."""

    seed: int
    found: Mapping[str, Sequence[float | None]]
    """by transport, and by SIMULATOR"""
    busy: Mapping[Over, float]
    """share of the processors' time that was used, by transport"""


def inapplicable(check: Check, over: Over) -> str:
    """Why a test bed cannot tell this figure of a transport; empty: it can."""
    measure = check.measure
    if measure in INNER:
        return "a test bed records no queues between T0s and T1s"
    if measure in _IN_RTTS or (measure == "completion" and check.of == "line"):
        return "it is in base RTTs, and processors add more than that to a round trip"
    if over not in _OF_PACKETS.get(measure, (over,)):
        return f"{over} does not count this"
    if check.plane and over != "mrc":
        return f"{over} does not count the bytes of each plane"
    if measure == "lost_per_qp" and (check.from_ns, check.to_ns) != (0, NEVER):
        return "hosts count the packets of the whole run"
    if over == "iperf3" and measure in _OF_WRITES:
        return "iperf3 sends all writes of a flow as one"
    return ""


def unjudged(check: Check, busy: float) -> str:
    """Why a figure is shown without a verdict; empty: it can be judged."""
    if busy < BUSY or check.measure in _COUNTS:
        return ""
    return f"the processors were {busy:.0%} busy, so they may have set the rates, not the links"


def judged(part: Scenario, overs: Sequence[Over], seeds: Sequence[Values]) -> list[CheckVerdict]:
    """The checks of a scenario or variant; the first transport must meet the targets."""
    first, *others = overs
    beside = (*others, SIMULATOR)
    whys: list[dict[str, str]] = [
        {over: why for over in overs if (why := inapplicable(check, over))} for check in part.checks
    ]
    busy = max(each.busy[first] for each in seeds)
    measured = [
        Measured(
            seed=each.seed,
            values=_applying(each.found[first], whys, first),
            baselines={name: _applying(each.found[name], whys, name) for name in beside},
        )
        for each in seeds
    ]
    outcomes = evaluate(replace(part, baselines=beside), measured)
    return [
        _judged(check, outcome, first, why, unjudged(check, busy))
        for check, outcome, why in zip(part.checks, outcomes, whys, strict=True)
    ]


def _applying(
    values: Sequence[float | None], whys: Sequence[Mapping[str, str]], over: str
) -> tuple[float | None, ...]:
    return tuple(None if why.get(over) else value for value, why in zip(values, whys, strict=True))


def _judged(
    check: Check, outcome: Outcome, first: Over, whys: dict[str, str], not_judged: str
) -> CheckVerdict:
    simulated = outcome.baselines[SIMULATOR]
    values = {first: outcome.value, **outcome.baselines}
    return like(
        CheckVerdict,
        outcome,
        met=None if first in whys or not_judged else outcome.met,
        not_judged="" if first in whys or outcome.target is None else not_judged,
        not_applicable=whys,
        differs=tuple(
            over
            for over, value in values.items()
            if over != SIMULATOR and over not in whys and differs(check.measure, simulated, value)
        ),
        note=check.note,
    )


def differs(measure: str, simulated: float | None, value: float | None) -> bool:
    """Whether two values of a measure are further apart than TOLERANCE."""
    if simulated is None or value is None:
        return simulated is not value
    if abs(value - simulated) <= _NEGLIGIBLE.get(measure, 0):
        return False
    return not math.isclose(value, simulated, rel_tol=TOLERANCE)


def explanations(found: Sequence[CheckVerdict]) -> list[str]:
    """The note of each figure that differs; why figures do not apply, or are not judged."""
    lines = [
        f"{each.name}: {each.note or 'differs, and the scenario does not say why'}"
        for each in found
        if each.differs
    ]
    lines += [
        f"{each.name} does not apply to {over}: {why}"
        for each in found
        for over, why in each.not_applicable.items()
    ]
    lines += [f"not judged: {each.not_judged}" for each in found if each.not_judged]
    return list(dict.fromkeys(lines))
