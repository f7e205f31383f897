# SPDX-License-Identifier: Apache-2.0
"""Slow, long or changing planes: the built-in scenarios meet their checks."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median
from typing import Any

import pytest

from mrc.sim import checks
from mrc.sim.checks import evaluate
from mrc.sim.run import run
from mrc.sim.scenario import load_scenario, scenario_names
from mrc.sim.trials import run_trial, summarize

QUICK = {"small-writes": 1, "uplinks-flap": 1, "uplinks-down": 2}
"""The seed with which the default tests run a scenario."""


def check(name: str, seeds: range, settings: Mapping[str, Any] | None = None) -> None:
    parts = load_scenario(name, settings or {}).parts
    for scenario in parts:
        runs = [summarize(run_trial(scenario, seed)).measured for seed in seeds]
        missed = [o for o in evaluate(scenario, runs) if o.met is False]
        assert not missed, [(o.name, o.value, o.relation, o.target) for o in missed]


@pytest.mark.parametrize("name", QUICK)
def test_planes__carry_what_they_can(name: str) -> None:
    check(name, range(QUICK[name], QUICK[name] + 1))


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    "name", [name for name in scenario_names() if not load_scenario(name).slow]
)
def test_built_in__meets_its_targets_with_other_seeds(name: str) -> None:
    check(name, range(1, 6))


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("shares", ["measured", "equal"])
@pytest.mark.parametrize("name", ["permutation", "all-to-all"])
@pytest.mark.parametrize("first", range(1, 21, 4))
def test_full_fabrics__meet_their_checks_at_every_seed(first: int, name: str, shares: str) -> None:
    for seed in range(first, first + 4):
        check(name, range(seed, seed + 1), {"transport.plane_shares": shares})


def goodputs_of_connects(n: int) -> list[float]:
    """Goodputs of n QPs, one after the other, between hosts that run up to 2 ms late."""
    scenario = load_scenario(
        "long-way",
        {
            "topology.wake_noise": "2ms",
            "run.until": "1500ms",
            "variants": [],
            "checks.0.from": "500ms",
        },
    )
    values = []
    for seed in range(1, n + 1):
        value = checks.goodput_bps(scenario.checks[0], run(scenario, seed))
        assert value is not None
        values.append(value)
    return values


def worst_of_median(values: list[float]) -> float:
    return min(values) / median(values)


@pytest.mark.slow
def test_connects__none_is_left_behind() -> None:
    """If noise makes the base RTT too small, the QP is not slow for its whole life."""
    assert worst_of_median(goodputs_of_connects(20)) >= 0.7


@pytest.mark.slow
def test_connects__none_of_200_is_left_behind() -> None:
    assert worst_of_median(goodputs_of_connects(200)) >= 0.7
