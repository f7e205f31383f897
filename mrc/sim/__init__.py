# SPDX-License-Identifier: Apache-2.0
"""Experiments in a simulated fabric: the same engine in virtual time, determined by one seed.

from mrc.sim.checks import evaluate
from mrc.sim.scenario import load_scenario
from mrc.sim.trials import run_trial, summarize

scenario = load_scenario("permutation")
for outcome in evaluate(scenario, [summarize(run_trial(scenario, seed=1)).measured]):
    print(outcome.name, outcome.value, outcome.met)
"""
