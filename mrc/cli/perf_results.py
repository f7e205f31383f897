# SPDX-License-Identifier: Apache-2.0
"""Converts the measurements of `mrc perf` into its declared results."""

from __future__ import annotations

from typing import Any

from mrc.cli import history_report
from mrc.cli.shares import carried_percent
from mrc.perf import client, meter, plan
from mrc.perf.messages import Outcome
from mrc.results.perf import End, Interval, PerfServed, Plan, ReceivedPlane, SentPlane, Test
from mrc.results.plain import like


def interval_of(interval: meter.Interval) -> Interval:
    return like(Interval, interval, **_by_plane(interval))


def _by_plane(interval: meter.Interval) -> dict[str, Any]:
    sent, received = interval.planes, interval.planes_received
    sent_percent, received_percent = carried_percent(sent), carried_percent(received)
    return {
        "planes": tuple(
            SentPlane(
                plane=plane,
                sent_bytes=count,
                carried_percent=sent_percent[plane],
                slow=plane in interval.planes_slow,
                suspended=plane in interval.planes_suspended,
            )
            for plane, count in sent.items()
        ),
        "planes_received": tuple(
            ReceivedPlane(
                plane=plane, received_bytes=count, carried_percent=received_percent[plane]
            )
            for plane, count in received.items()
        ),
    }


def end_of(outcome: Outcome, *, receives: bool) -> End:
    """The result of one end. `bins` is None for an end that receives nothing."""
    total, history = outcome.total, outcome.history
    return like(
        End,
        total,
        **_by_plane(total),
        messages=outcome.messages,
        messages_per_second=outcome.messages / total.seconds if total.seconds > 0 else 0.0,
        latency=outcome.latency if outcome.latency.count else None,
        bins=history_report.bins(history.recording) if history and receives else None,
        changes=history_report.changes(history) if history else None,
    )


def plan_of(plan: plan.Plan) -> Plan:
    return like(
        Plan,
        plan,
        message_bytes=plan.size,
        seconds=plan.seconds or None,
        total_bytes=plan.total_bytes or None,
        rate_bits_per_second=plan.rate_bits_per_second or None,
        bin_ns=plan.bin_ns or None,
    )


def test_of(result: client.TestResult) -> Test:
    plan, server = result.plan, result.server
    return Test(
        plan=plan_of(plan),
        interrupted=result.interrupted,
        goodput_bits_per_second=goodput(result),
        intervals=tuple(map(interval_of, result.intervals)),
        client=end_of(result.client, receives=plan.client_receives),
        server=None if server is None else end_of(server, receives=plan.server_receives),
    )


def served_of(peer: str, plan: plan.Plan, outcome: Outcome) -> PerfServed:
    end = end_of(outcome, receives=plan.server_receives)
    return PerfServed(peer=peer, plan=plan_of(plan), server=end)


def goodput(result: client.TestResult) -> float:
    """Bit/s in both directions together, measured at the client."""
    total = result.client.total
    return total.written_bits_per_second + total.received_bits_per_second
