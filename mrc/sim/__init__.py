# SPDX-License-Identifier: Apache-2.0
"""Experiments in a simulated fabric: the same engine in virtual time, determined by one seed.

from mrc.sim import evaluate, load, run_trial, summarize

scenario = load("permutation")
for outcome in evaluate(scenario, [summarize(run_trial(scenario, seed=1)).measured]):
    print(outcome.name, outcome.value, outcome.met)
"""

from mrc.sim.checks import Measured, Outcome, evaluate
from mrc.sim.reader import load, names
from mrc.sim.run import Result, baseline_of, reference_of, run
from mrc.sim.scenario import Scenario
from mrc.sim.trial import Summary, Trial, run_trial, summarize

__all__ = [
    "Scenario",
    "load",
    "names",
    "run",
    "run_trial",
    "summarize",
    "reference_of",
    "baseline_of",
    "Result",
    "Trial",
    "Summary",
    "Measured",
    "evaluate",
    "Outcome",
]
