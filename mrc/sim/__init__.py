# SPDX-License-Identifier: Apache-2.0
"""Experiments in a simulated fabric: the same engine in virtual time, determined by one seed.

from mrc.sim.checks import evaluate
from mrc.sim.reader import load
from mrc.sim.trial import run_trial, summarize

scenario = load("permutation")
for outcome in evaluate(scenario, [summarize(run_trial(scenario, seed=1)).measured]):
    print(outcome.name, outcome.value, outcome.met)
"""
