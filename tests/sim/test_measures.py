# SPDX-License-Identifier: Apache-2.0
"""The measures of jobs, of lost packets and of links, in small runs; TCP flows of scenarios: alone,
against each other, and beside writes of MRC.
"""

from __future__ import annotations

from typing import Any

import pytest

from mrc.sim import checks
from mrc.sim.checks import evaluate
from mrc.sim.run import SimRun, run
from mrc.sim.scenario import Scenario, parse_scenario
from mrc.sim.trials import run_trial, summarize

RING = {"kind": "ring", "write": "256KiB", "steps": 3, "compute": "50us", "group_size": 4}


def make(
    *faults: dict[str, Any],
    traffic: dict[str, Any] = RING,
    hosts: int = 8,
    sample: str = "10us",
    **check: Any,
) -> Scenario:
    values = {
        "title": "t",
        "topology": {"hosts": hosts, "planes": 2, "t0": 2, "t1": 4},
        "traffic": [traffic],
        "faults": list(faults),
        "run": {"sample": sample},
        "checks": [{"at_most": 1} | check] if check else [],
    }
    return parse_scenario(values, "t", "t.toml")


def value(*faults: dict[str, Any], **scenario: Any) -> float | None:
    trial = run_trial(make(*faults, **scenario), seed=1)
    [found] = checks.values_of(trial.result.scenario, trial.result, trial.reference)
    return found


@pytest.fixture(scope="module")
def result() -> SimRun:
    return run(make(), seed=1)


def test_step_times__add_up_to_the_job(result: SimRun) -> None:
    times = checks.step_times_ns(result, range(8))
    assert times is not None and len(times) == 3
    assert sum(times) == max(message.done_ns for message in result.messages)
    assert checks.job_ns(result, range(8)) == sum(times)


def test_bus_bandwidth__is_the_part_of_line_rate_while_hosts_send(result: SimRun) -> None:
    ideal = checks.ideal_step_ns(result, range(8))
    assert ideal == pytest.approx(50_000 + 6 * 262144 * 8 / 200 / (4096 / 4266), rel=1e-3)
    whole = checks.job_ns(result, range(8))
    share = checks.bus_bandwidth(result, range(8))
    assert whole is not None and share is not None
    assert share == pytest.approx(3 * (ideal - 50_000) / (whole - 150_000))
    assert 0.5 < share < 1


def test_step_time__of_one_that_never_ended() -> None:
    dead = {"target": "link:h3.*", "kind": "silent", "at": "60us"}
    assert value(dead, measure="step_time") is None
    assert value(dead, measure="bus_bandwidth") is None


def test_step_time__a_slow_host_delays_all() -> None:
    slow = {"target": "link:h3.*", "kind": "rate", "rate": "25%"}
    found = [value(slow, measure=m, of="reference") for m in ("step_time", "job_completion")]
    assert all(each is not None and 2 < each < 4 for each in found)
    alone = value(slow, measure="step_time", percentile=100)
    assert alone is not None and alone > 2


def test_lost__by_the_qps_that_a_fault_hits() -> None:
    lossy = {"target": "link:h3.1", "kind": "lose", "n": 1, "of": 10, "packets": "data"}
    assert value(measure="qps_hit") == 0
    assert value(lossy, measure="qps_hit") == 2 / 8  # from h3, and to h3
    assert value(lossy, measure="lost_per_qp") == 0
    worst = value(lossy, measure="lost_per_qp", percentile=100)
    assert worst is not None and worst > 0


def test_lost_per_qp__over_time() -> None:
    lossy = {"target": "link:h3.1", "kind": "lose", "n": 1, "of": 10, "packets": "data"}
    lossy |= {"at": "60us", "until": "90us"}
    worst = {"measure": "lost_per_qp", "percentile": 100}
    whole, before, then, after = (
        value(lossy, **worst, **window)
        for window in ({}, {"to": "60us"}, {"from": "60us", "to": "130us"}, {"from": "130us"})
    )
    assert whole is not None and whole > 0
    assert (before, then, after) == (0, whole, 0)


def test_failure_convergence__is_the_goodput_that_is_missing() -> None:
    """All links of a host are silent for a time, in which nothing arrives."""
    outage = {"target": "link:h0.*", "kind": "silent", "at": "200us", "until": "260us"}
    pair = {"kind": "pairs", "pairs": [[0, 1]], "write": "4MiB", "writes": 20}
    check = {"measure": "failure_convergence", "from": "200us", "to": "2ms"}
    found = value(outage, traffic=pair, hosts=2, sample="5us", **check)
    base_rtts = 60_000 / make(traffic=pair, hosts=2).base_rtt_ns
    assert found is not None and base_rtts < found < 10 * base_rtts


def inner(at: float, traffic: dict[str, Any], measure: str) -> float:
    found = value(traffic={"write": "1MiB"} | traffic, measure=measure, percentile=at)
    assert found is not None
    return found


def test_inner_links__one_path_is_full_and_the_others_are_idle() -> None:
    one = {"kind": "pairs", "pairs": [[0, 4]], "paths": [1]}
    two = {"kind": "pairs", "pairs": [[0, 4], [1, 5]], "paths": [1]}
    every = {"kind": "pairs", "pairs": [[i, i + 4] for i in range(4)]}
    assert inner(100, one, "inner_busy") > 0.85
    assert inner(50, one, "inner_busy") == 0
    assert inner(100, two, "inner_busy") > 0.9
    assert inner(30, every, "inner_busy") < 0.1  # half of the links carry SACKs alone
    assert inner(60, every, "inner_busy") > 0.8
    assert inner(100, one, "inner_queue") < 0.2
    assert inner(50, two, "inner_queue") == 0
    assert inner(100, two, "inner_queue") > 0.5


# ---- TCP -----------------------------------------------------------------------------------------


SLOW = {
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


def values_by_name(
    until: str, buffer: str, *traffic: dict[str, Any], **tables: Any
) -> dict[str, float]:
    """The values of the checks in `tables` by name; every check must have a value."""
    scenario = parse_scenario(
        {
            "title": "tcp",
            "topology": SLOW | {"buffer": buffer},
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
    found = values_by_name("20s", buffer, {"kind": "tcp", "pairs": [[0, 2]]}, checks=[check])
    assert 0.95 < found["goodput"] < 1.01


@pytest.mark.slow
@pytest.mark.parametrize("buffer", BUFFERS.values(), ids=BUFFERS)
def test_fairness__two_flows_share(buffer: str) -> None:
    first = {"kind": "tcp", "pairs": [[0, 2]]}
    check = {"at_least": "90%", "from": "1s"}
    found = values_by_name(
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
    found = values_by_name(
        "3s",
        "500kB",
        {"kind": "tcp", "pairs": [[0, 2]], "mss": 1000},
        writes,
        checks=checks,
        transport={"cc": "null", "mpr": 128, "noise": "1ms"},
    )
    assert found["writes completed"] == 1
    assert 0.1 < found["tcp"] < 0.2  # 200 Mbit/s in a plane of 1 Gbit/s
