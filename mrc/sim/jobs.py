# SPDX-License-Identifier: Apache-2.0
"""The times of jobs: of their steps, and of all of them. Pure.

A flow without steps is a job of one step. The flows of a check may belong to several jobs of equal
work: a step then lasts until the last job has ended it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from math import ceil

from mrc.sim.run import Result
from mrc.sim.scenario import payload_share


def percentile(ordered: Sequence[float], percent: float) -> float:
    """The least value that `percent` percent of the values do not exceed."""
    return ordered[max(0, ceil(len(ordered) * percent / 100) - 1)]


def step_times_ns(result: Result, numbers: Sequence[int]) -> list[int] | None:
    """How long each step of these flows took, from the end of the one before; None: not all steps
    ended.
    """
    if any(result.infos[i].completed < result.flows[i].writes for i in numbers):
        return None
    chosen, done = set(numbers), Counter[int]()
    ends = Counter({-1: min(result.flows[i].traffic.start_ns for i in numbers)})
    for message in result.messages:
        if message.flow in chosen:
            step = done[message.flow] // result.flows[message.flow].step_writes
            done[message.flow] += 1
            ends[step] = max(ends[step], message.done_ns)
    return [ends[step] - ends[step - 1] for step in range(max(ends) + 1)]


def job_ns(result: Result, numbers: Sequence[int]) -> int | None:
    """How long all steps of these flows took."""
    times = step_times_ns(result, numbers)
    return None if times is None else sum(times)


def ideal_step_ns(result: Result, numbers: Sequence[int]) -> float:
    """How long a step takes at line rate: to compute, and to send or receive the data of the host
    that has most.
    """
    traffic = result.flows[numbers[0]].traffic
    topology, payload = result.scenario.topology, payload_share(traffic, result.scenario.transport)
    sent, received = Counter[int](), Counter[int]()
    for flow in (result.flows[i] for i in numbers):
        sent[flow.sender] += flow.step_writes * flow.traffic.bytes
        received[flow.receiver] += flow.step_writes * flow.traffic.bytes
    most = max(*sent.values(), *received.values())
    return traffic.compute_ns + most * 8e9 / (topology.planes * topology.host_rate_bps * payload)


def bus_bandwidth(result: Result, numbers: Sequence[int]) -> float | None:
    """The data that the busiest host sends or receives while it does not compute, of line rate. For
    a ring this is the bus bandwidth of NCCL's tests.
    """
    whole_ns = job_ns(result, numbers)
    traffic = result.flows[numbers[0]].traffic
    if whole_ns is None:
        return None
    ideal_ns = ideal_step_ns(result, numbers) - traffic.compute_ns
    return ideal_ns * traffic.steps / (whole_ns - traffic.compute_ns * traffic.steps)
