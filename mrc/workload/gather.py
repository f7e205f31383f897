# SPDX-License-Identifier: Apache-2.0
"""The answers of hosts and the counters of a test bed as a result of the simulator's form."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from mrc.sim import native
from mrc.sim.curves import Curve
from mrc.sim.native import Event, FlowInfo, Message, PortInfo
from mrc.sim.results import Stats
from mrc.sim.run import Result
from mrc.sim.scenario import Scenario
from mrc.sim.traffic import Flow
from mrc.testbed.bed import Testbed
from mrc.testbed.shape import Fabric
from mrc.workload.results import Over
from mrc.workload.task import HostAnswer, SentFlow
from mrc.workload.tasks import over_of

Moved = Mapping[str, Mapping[str, int]]
"""Counters of each direction of each link, by its name; those of the whole fabric by ""."""


def counters(bed: Testbed) -> Moved:
    """The counters so far. A kernel fabric counts links alone."""
    links = bed.links()
    if bed.shape.fabric is Fabric.KERNEL:
        return links
    fabric = bed.counters()
    return {**links, "": {key: fabric[key] for key in ("overloaded", "unroutable")}}


def result(
    scenario: Scenario,
    seed: int,
    flows: Sequence[Flow],
    answers: Sequence[HostAnswer],
    moved: Moved,
    over: Over,
) -> Result:
    """What no host counts is 0; mrc.workload.judge says which measures need it."""
    sent = {each.number: each for answer in answers for each in answer.sent}
    samples = {each.number: each.samples for answer in answers for each in answer.received}
    if over == "iperf3":
        _shift(flows, sent, samples)
    curves, planes = _curves(scenario, [samples.get(i, ()) for i in range(len(flows))])
    infos = [_info(flow, sent[i], curves[i], over) for i, flow in enumerate(flows)]
    return Result(
        scenario=scenario,
        seed=seed,
        flows=tuple(flows),
        infos=tuple(infos),
        curves=tuple(curves),
        planes=planes,
        retransmitted=(),
        events=tuple(_events(infos, answers)),
        messages=tuple(_messages(sent)),
        last_hops=dict(_last_hops(scenario, flows, moved)),
        stats=_stats(max(curve.times_ns[-1] for curve in curves), moved, infos),
    )


def _curves(
    scenario: Scenario, samples: Sequence[Sequence[tuple[int, ...]]]
) -> tuple[list[Curve], tuple[tuple[Curve, ...], ...]]:
    """The curve of each flow, and the same in each plane, all at the same times: each host took
    its samples at times of its own. iperf3 counts no planes.
    """
    n_planes = len(scenario.topology.plane_numbers())
    end_ns = max((rows[-1][0] for rows in samples if rows), default=1)
    times = (*range(scenario.sample_ns, end_ns, scenario.sample_ns), end_ns)
    curves: list[Curve] = []
    apart: list[list[Curve]] = [[] for _ in range(n_planes)]
    for rows in samples:
        at, *columns = zip(
            (0,) * (2 + n_planes), *(_padded(row, n_planes) for row in rows), strict=True
        )
        found = [_at_times(Curve(at, column), times) for column in columns]
        curves.append(found[0])
        for plane, curve in zip(apart, found[1:], strict=True):
            plane.append(curve)
    return curves, tuple(map(tuple, apart))


def _padded(row: tuple[int, ...], n_planes: int) -> tuple[int, ...]:
    return row + (0,) * (2 + n_planes - len(row))


def _at_times(curve: Curve, times: tuple[int, ...]) -> Curve:
    return Curve(times, tuple(round(curve.at(now_ns)) for now_ns in times))


def _shift(
    flows: Sequence[Flow],
    sent: Mapping[int, SentFlow],
    samples: dict[int, tuple[tuple[int, ...], ...]],
) -> None:
    """Lets the samples of iperf3 count from the start of the run, as those of the others."""
    for number, flow in enumerate(flows):
        if over_of(flow, "iperf3") == "iperf3":
            first_ns = sent[number].first_ns
            samples[number] = tuple(
                (first_ns + at, *counts) for at, *counts in samples.get(number, ())
            )


def _info(flow: Flow, sent: SentFlow, curve: Curve, over: Over) -> FlowInfo:
    whole = flow.writes if over_of(flow, over) == "iperf3" else 1
    counts = sent.counts
    return FlowInfo(
        first_ns=sent.first_ns,
        last_ns=sent.last_ns,
        posted=sent.posted * whole,
        completed=sent.completed * whole,
        failed=sent.failed * whole,
        received_bytes=curve.bytes[-1],
        sent_packets=counts.sent_packets or 0,
        retransmitted_packets=counts.retransmitted_packets or 0,
        spurious_packets=counts.spurious_packets or 0,
        repeated_packets=counts.spurious_packets or 0,  # hosts count no others
        lost_packets=counts.lost_packets or 0,
        rtt_ns=-1 if counts.rtt_ns is None else counts.rtt_ns,
    )


def _events(infos: Sequence[FlowInfo], answers: Sequence[HostAnswer]) -> Iterator[Event]:
    found = [
        Event(info.last_ns, i, 0, 0, native.QP_ERROR, 0, 0, 0)
        for i, info in enumerate(infos)
        if info.failed
    ]
    for change in (each for answer in answers for each in answer.changes):
        kind = native.PLANE_STATE if change.path is None else native.EV_STATE
        found.append(
            Event(
                change.now_ns, change.flow, change.path or 0, change.plane, kind, change.state, 0, 0
            )
        )
    yield from sorted(found, key=lambda event: event.now_ns)


def _messages(sent: Mapping[int, SentFlow]) -> list[Message]:
    found = [
        Message(wanted_ns=due, done_ns=done, flow=number)
        for number, each in sent.items()
        for due, done in each.times
    ]
    return sorted(found, key=lambda message: message.done_ns)


def _last_hops(
    scenario: Scenario, flows: Sequence[Flow], moved: Moved
) -> Iterator[tuple[tuple[int, int], PortInfo]]:
    topology = scenario.topology
    for host in sorted({flow.receiver for flow in flows}):
        for plane in topology.plane_numbers():
            hop = moved.get(f"t0:{plane}.{topology.t0_of(host)}>h{host}")
            if hop is not None:
                busy_ns = hop["bytes"] * 8e9 / topology.host_rate_bps
                yield (
                    (host, plane),
                    PortInfo(
                        busy_ns=hop.get("busy_ns", round(busy_ns)),
                        peak_bytes=hop.get("peak_bytes", 0),
                        trimmed=hop["trimmed"],
                        dropped=hop["dropped"],
                        marked=hop["marked"],
                    ),
                )


def _stats(now_ns: int, moved: Moved, infos: Sequence[FlowInfo]) -> Stats:
    links = [counts for name, counts in moved.items() if name]

    def total(key: str) -> int:
        return max(0, sum(counts[key] for counts in links))

    return Stats(
        now_ns=now_ns,
        packets=sum(c["packets"] for name, c in moved.items() if name.startswith("h")),
        hops=total("packets"),
        lost=total("lost"),
        dropped=total("dropped"),
        trimmed=total("trimmed"),
        marked=total("marked"),
        completed_writes=sum(info.completed for info in infos),
        unroutable=moved[""]["unroutable"] if "" in moved else 0,
        events=0,
        corrupt=0,
        first_lost_ns=None,
        trace="",
    )
