# SPDX-License-Identifier: Apache-2.0
"""TCP flows of scenarios: alone, against each other, and beside writes of MRC."""

from __future__ import annotations

from typing import Any

import pytest

from mrc.sim.checks import evaluate
from mrc.sim.scenario import parse_scenario
from mrc.sim.trials import run_trial, summarize

TOPOLOGY = {
    "hosts": 4,
    "planes": 1,
    "t0": 2,
    "t1": 1,
    "host_rate": "1Gbit/s",
    "fabric_rate": "200Mbit/s",
    "fabric_delay": "5ms",
    "ecn_low": "0B",
    "ecn_high": "0B",
}
BUFFERS = {"20 ms": "500kB", "100 ms": "2500kB"}


def values(until: str, buffer: str, *traffic: dict[str, Any], **tables: Any) -> dict[str, float]:
    """The values of the checks in `tables` by name; every check must have a value."""
    scenario = parse_scenario(
        {
            "title": "tcp",
            "topology": TOPOLOGY | {"buffer": buffer},
            "run": {"until": until, "sample": "50ms"},
            "traffic": list(traffic),
        }
        | tables,
        "tcp",
        "tcp.toml",
    )
    found = evaluate(scenario, [summarize(run_trial(scenario, seed=1)).measured])
    assert all(outcome.value is not None for outcome in found)
    return {outcome.name: outcome.value or 0.0 for outcome in found}


@pytest.mark.more
@pytest.mark.parametrize("buffer", BUFFERS.values(), ids=BUFFERS)
def test_goodput__a_lone_flow_fills_its_link(buffer: str) -> None:
    check = {"measure": "goodput", "of": "max-min", "from": "1s", "at_least": "90%"}
    found = values("20s", buffer, {"kind": "tcp", "pairs": [[0, 2]]}, checks=[check])
    assert 0.95 < found["goodput"] < 1.01


@pytest.mark.slow
@pytest.mark.parametrize("buffer", BUFFERS.values(), ids=BUFFERS)
def test_fairness__two_flows_share(buffer: str) -> None:
    first = {"kind": "tcp", "pairs": [[0, 2]]}
    check = {"at_least": "90%", "from": "1s"}
    found = values(
        "60s",
        buffer,
        first,
        first | {"pairs": [[1, 3]], "start": "1s"},
        checks=[check | {"measure": "fairness"}, check | {"measure": "goodput", "of": "max-min"}],
    )
    assert found["fairness"] > 0.9
    assert found["goodput"] > 0.95


def test_completed__counts_writes_alone() -> None:
    writes = {"kind": "pairs", "pairs": [[1, 3]], "write": "1MiB", "writes": 4}
    checks = [
        {"measure": "completed"},
        {"name": "tcp", "measure": "goodput", "group": "tcp", "at_least": 0},
    ]
    found = values(
        "3s",
        "500kB",
        {"kind": "tcp", "pairs": [[0, 2]], "mss": 1000},
        writes,
        checks=checks,
        transport={"cc": "null", "mpr": 128, "noise": "1ms"},
    )
    assert found["writes completed"] == 1
    assert 0.1 < found["tcp"] < 0.2  # 200 Mbit/s in a plane of 1 Gbit/s
