# SPDX-License-Identifier: Apache-2.0
"""The faults of a scenario with a seed: targets with `*` become parts, all or some at random. Pure.

With `every`, each of the parts fails at random times of its own.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from math import prod

from msgspec.structs import replace

from mrc.fabric.faults import Fault
from mrc.fabric.topology import Topology
from mrc.sim.scenario import Scenario

ANY = "*"


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
    return _part(target, _ranges(target, fabric), 0)


def n_parts(target: str, fabric: Topology) -> int:
    """How many parts a target with `*` has. Raises ValueError."""
    return _count(_ranges(target, fabric))


def _count(ranges: Sequence[Sequence[int]]) -> int:
    return prod(map(len, ranges))


def _drawn(fault: Fault, scenario: Scenario, rng: random.Random) -> Iterator[Fault]:
    if ANY not in fault.target:
        yield fault
        return
    ranges = _ranges(fault.target, scenario.topology)
    every = range(_count(ranges))
    chosen = rng.sample(every, fault.draw) if fault.draw else every
    for index, begin, end in _times(fault, chosen, scenario.until_ns, rng):
        target = _part(fault.target, ranges, index)
        yield replace(fault, target=target, at_ns=begin, until_ns=end, every_ns=0, for_ns=0, draw=0)


def _times(
    fault: Fault, chosen: Sequence[int], end_ns: int, rng: random.Random
) -> Iterator[tuple[int, int, int | None]]:
    """Part, begin and end of each occurrence."""
    if not fault.every_ns:
        yield from ((index, fault.at_ns, fault.until_ns) for index in chosen)
        return
    last_ns = min(fault.end_ns, end_ns)
    for index in chosen:
        begin = fault.at_ns
        while (
            begin := begin + round(rng.expovariate(1 / (fault.every_ns - fault.for_ns)))
        ) < last_ns:
            end = min(begin + fault.for_ns, fault.end_ns)
            yield index, begin, end
            begin = end


def _ranges(target: str, fabric: Topology) -> list[Sequence[int]]:
    """The numbers that stand for each part of a target's name."""
    kind, _, rest = target.partition(":")
    every = {
        "plane": (fabric.plane_numbers(),),
        "t0": (fabric.plane_numbers(), fabric.t0_numbers()),
        "t1": (fabric.plane_numbers(), fabric.t1_numbers()),
        "uplink": (fabric.plane_numbers(), fabric.t0_numbers(), fabric.t1_numbers()),
        "link": (fabric.host_numbers(), fabric.plane_numbers()),
    }.get(kind, ())
    named = rest.removeprefix("h").split(".")
    if len(named) != len(every) or not all(name == ANY or name.isdecimal() for name in named):
        raise ValueError(f"target {target!r} does not name parts: use * in place of numbers")
    return [
        numbers if name == ANY else [int(name)] for name, numbers in zip(named, every, strict=True)
    ]


def _part(target: str, ranges: Sequence[Sequence[int]], index: int) -> str:
    """The part with this number, among all that the ranges name."""
    numbers: list[str] = []
    for values in reversed(ranges):
        index, i = divmod(index, len(values))
        numbers.insert(0, str(values[i]))
    kind = target.partition(":")[0]
    return f"{kind}:{'h' if kind == 'link' else ''}{'.'.join(numbers)}"
