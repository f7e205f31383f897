# SPDX-License-Identifier: Apache-2.0
"""Experiments in a simulated fabric: the same engine in virtual time, from one seed.

from mrc.sim import evaluate, load, run

result = run(load("permutation"), seed=1)
for outcome in evaluate([(result, None)]):
    print(outcome.name, outcome.value, outcome.met)
"""

from mrc.sim.checks import Outcome, evaluate, needs_reference
from mrc.sim.reader import load, names
from mrc.sim.run import Result, reference_of, run
from mrc.sim.scenario import Scenario

__all__ = [
    "Scenario",
    "load",
    "names",
    "run",
    "reference_of",
    "Result",
    "evaluate",
    "needs_reference",
    "Outcome",
]
