# SPDX-License-Identifier: Apache-2.0
"""The faults of a scenario with a seed: targets with `*` become parts, all or some at random. Pure.

With `every`, each of the parts fails at random times of its own.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from mrc.fabric.faults import Fault
from mrc.fabric.targets import ANY, Parts, has_target
from mrc.fabric.topology import Topology
from mrc.sim.scenario import Scenario


def with_seed(scenario: Scenario, seed: int) -> Scenario:
    """The scenario with the faults that this seed draws."""
    faults = [
        each
        for number, fault in enumerate(scenario.faults)
        for each in _drawn(fault, scenario, random.Random(f"faults {number} {seed}"))
    ]
    return replace(scenario, faults=tuple(faults))


def first_part(target: str, fabric: Topology) -> str:
    """One of the parts of a target with `*`. Raises ValueError."""
    return _parts(target, fabric)[0]


def n_parts(target: str, fabric: Topology) -> int:
    """How many parts a target with `*` has. Raises ValueError."""
    return len(_parts(target, fabric))


def _parts(target: str, fabric: Topology) -> Sequence[str]:
    """Those of a target with `*` that exist."""
    parts = Parts(target, fabric)
    if not fabric.absent:
        return parts
    return [part for part in parts if has_target(part, fabric)]


def _drawn(fault: Fault, scenario: Scenario, rng: random.Random) -> Iterator[Fault]:
    if ANY not in fault.target:
        yield fault
        return
    every = _parts(fault.target, scenario.topology)
    chosen = rng.sample(every, fault.draw) if fault.draw else every
    for part, begin, end in _times(fault, chosen, scenario.until_ns, rng):
        yield replace(fault, target=part, at_ns=begin, until_ns=end, every_ns=0, for_ns=0, draw=0)


def _times(
    fault: Fault, chosen: Sequence[str], end_ns: int, rng: random.Random
) -> Iterator[tuple[str, int, int | None]]:
    """Part, begin and end of each occurrence."""
    if not fault.every_ns:
        yield from ((part, fault.at_ns, fault.until_ns) for part in chosen)
        return
    last_ns = min(fault.end_ns, end_ns)
    for part in chosen:
        begin = fault.at_ns
        while (
            begin := begin + round(rng.expovariate(1 / (fault.every_ns - fault.for_ns)))
        ) < last_ns:
            end = min(begin + fault.for_ns, fault.end_ns)
            yield part, begin, end
            begin = end
