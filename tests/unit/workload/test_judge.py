# SPDX-License-Identifier: Apache-2.0
"""Which checks apply to a test bed, and where it differs from the simulator."""

from __future__ import annotations

from typing import Any

import pytest
from unit.workload.scenes import scenario

from mrc.sim.scenario import Criterion
from mrc.workload import compare
from mrc.workload.compare import SIMULATOR, Values
from mrc.workload.results import CheckVerdict, Over

CHECKS = [
    {"measure": "goodput", "at_least": "90%", "note": "late hosts"},
    {"measure": "retransmitted", "at_most": "1%"},
    {"measure": "completed"},
]


def check(**values: Any) -> Criterion:
    (found,) = scenario(checks=[{"at_most": 1, **values}]).checks
    return found


@pytest.mark.parametrize(
    ("values", "over", "said"),
    [
        ({"measure": "goodput"}, "mptcp", ""),
        ({"measure": "inner_busy"}, "mrc", "no queues"),
        ({"measure": "completion"}, "mrc", "base RTTs"),
        ({"measure": "completion", "of": "reference"}, "mrc", ""),
        ({"measure": "completion", "of": "reference"}, "iperf3", "as one"),
        ({"measure": "ev_bad_after"}, "mrc", "base RTTs"),
        ({"measure": "retransmitted"}, "tcp", ""),
        ({"measure": "retransmitted"}, "mptcp", "mptcp does not count this"),
        ({"measure": "qps_hit"}, "tcp", "tcp does not count this"),
        ({"measure": "ev_changes"}, "tcp", "tcp does not count this"),
        ({"measure": "goodput", "plane": 1}, "mrc", ""),
        ({"measure": "goodput", "plane": 1}, "tcp", "each plane"),
        ({"measure": "lost_per_qp"}, "mrc", ""),
        ({"measure": "lost_per_qp", "from": "1us"}, "mrc", "the whole run"),
    ],
)
def test_inapplicable(values: dict[str, Any], over: Over, said: str) -> None:
    found = compare.inapplicable(check(**values), over)
    assert said in found and bool(said) is bool(found)


def judged(busy: float = 0.5, *, mrc: float = 0.95, simulated: float = 1.0) -> list[CheckVerdict]:
    found: dict[str, tuple[float | None, ...]] = {
        "mrc": (mrc, 0.0, 1.0),
        "mptcp": (0.5, None, 1.0),
        SIMULATOR: (simulated, 0.004, 1.0),
    }
    part = scenario(checks=CHECKS)
    seeds = [Values(seed, found, {"mrc": busy, "mptcp": 1.0}) for seed in (1, 2)]
    return compare.verdicts(part, ("mrc", "mptcp"), seeds)


def test_judged__beside_the_others() -> None:
    goodput, again, completed = judged()
    assert (goodput.value, goodput.met) == (0.95, True)
    assert goodput.baselines == {"mptcp": 0.5, SIMULATOR: 1.0}
    assert goodput.differs == ("mptcp",)
    assert (again.met, again.differs) == (True, ())
    assert again.not_applicable == {"mptcp": "mptcp does not count this"}
    assert completed.met
    assert compare.explanations((goodput, again, completed)) == [
        "goodput: late hosts",
        "retransmitted does not apply to mptcp: mptcp does not count this",
    ]


def test_judged__a_miss() -> None:
    assert judged(mrc=0.8)[0].met is False


def test_judged__no_verdict_of_a_busy_machine() -> None:
    """Rates may be the machine's; counts are not."""
    goodput, again, completed = judged(busy=0.96, mrc=0.5)
    assert goodput.met is None and goodput.value == 0.5
    assert "the processors were 96% busy" in goodput.not_judged
    assert (again.met, completed.met, again.not_judged) == (True, True, "")
    assert any("not judged" in line for line in compare.explanations([goodput]))


@pytest.mark.parametrize(
    ("measure", "simulated", "value", "expected"),
    [
        ("goodput", 1.0, 0.91, False),
        ("goodput", 1.0, 0.89, True),
        ("goodput", None, 0.5, True),
        ("goodput", None, None, False),
        ("retransmitted", 0.01, 0.014, False),
        ("retransmitted", 0.01, 0.016, True),
        ("qp_errors", 0.0, 1.0, True),
    ],
)
def test_differs(measure: str, simulated: float, value: float, expected: bool) -> None:
    assert compare.differs(measure, simulated, value) is expected
