# SPDX-License-Identifier: Apache-2.0
"""Answers of hosts become a result of the simulator's form."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace
from unit.workload.scenes import scenario

from mrc.sim import checks, native
from mrc.sim.run import SimRun, make_flows
from mrc.workload.results import Over
from mrc.workload.run import Moved, gathered
from mrc.workload.task import Counts, HostAnswer, PathChange, ReceivedFlow, SentFlow

MS = 1_000_000
SENT = SentFlow(
    number=0, first_ns=MS, last_ns=21 * MS, posted=4, completed=4, failed=0,
    counts=Counts(sent_packets=70, retransmitted_packets=6, lost_packets=6, rtt_ns=5),
    times=((MS, 21 * MS), (MS, 11 * MS)), error="",
)  # fmt: skip
SAMPLES = ((12 * MS, 1000, 400, 600), (25 * MS, 4000, 1000, 3000))
HOP = {"packets": 9, "bytes": 125_000, "lost": 0, "dropped": 2, "trimmed": 0, "marked": 0}
MOVED: Moved = {"h0>t0:1.0": HOP, "t0:1.1>h2": HOP, "t0:2.1>h2": HOP | {"busy_ns": 7}}


def result(over: Over = "mrc", sent: SentFlow = SENT, samples: Any = SAMPLES) -> SimRun:
    part = scenario()
    change = PathChange(now_ns=9, flow=0, plane=2, path=1, state=2)
    plane = PathChange(now_ns=8, flow=0, plane=2, path=None, state=0)
    answers = [
        HostAnswer(sent=(sent,), received=(), changes=(change, plane)),
        HostAnswer(sent=(), received=(ReceivedFlow(number=0, samples=samples),), changes=()),
    ]
    return gathered(part, 1, make_flows(part, 1), answers, MOVED, over)


def test_result__flows_and_links() -> None:
    found = result()
    (info,), (curve,) = found.infos, found.curves
    assert (info.received_bytes, info.sent_packets, info.rtt_ns) == (4000, 70, 5)
    assert curve.times_ns == (10 * MS, 20 * MS, 25 * MS)
    assert curve.bytes == (833, 2846, 4000)  # between the samples of the host
    assert [plane[0].bytes[-1] for plane in found.planes] == [1000, 3000]
    assert [message.done_ns for message in found.messages] == [11 * MS, 21 * MS]
    assert found.last_hops[2, 1].busy_ns == 10 * MS  # 125 kB at 100 Mbit/s
    assert found.last_hops[2, 2].busy_ns == 7
    assert (found.stats.packets, found.stats.dropped, found.stats.completed_writes) == (9, 6, 4)


def test_result__events_in_order() -> None:
    plane, ev = result().events
    assert (plane.type, plane.now_ns, plane.status) == (native.PLANE_STATE, 8, 0)
    assert (ev.type, ev.path, ev.plane, ev.status) == (native.EV_STATE, 1, 2, 2)


def test_result__a_flow_that_failed_is_an_error_of_its_qp() -> None:
    failed = result(sent=replace(SENT, completed=1, failed=3))
    assert failed.events[-1].type == native.QP_ERROR
    (errors,) = scenario(checks=[{"measure": "qp_errors"}]).checks
    assert checks.values_of(replace(failed.scenario, checks=(errors,)), failed, None) == (1,)


def test_result__nothing_arrived() -> None:
    assert result(samples=()).infos[0].received_bytes == 0


def test_result__iperf3_counts_from_its_own_begin() -> None:
    """Its samples begin with the flow, know no planes, and one write stands for all."""
    one = replace(SENT, posted=1, completed=1)
    found = result("iperf3", one, ((0, 0), (19 * MS, 4000)))
    assert found.infos[0].completed == 4
    assert found.curves[0].times_ns[-1] == 20 * MS
    assert found.curves[0].bytes == (1895, 4000)
