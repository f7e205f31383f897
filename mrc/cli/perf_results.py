# SPDX-License-Identifier: Apache-2.0
"""Converts the measurements of `mrc perf` into its declared results."""

from __future__ import annotations

from typing import Any

from mrc.cli import history_report
from mrc.cli.shares import carried_percent
from mrc.perf import client, meter, plan
from mrc.perf.messages import Outcome
from mrc.perf.plan import Pattern
from mrc.results.perf import End, Interval, PerfServed, Plan, ReceivedPlane, SentPlane, Test
from mrc.results.plain import like, plain


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


def end_of(plan: plan.Plan, outcome: Outcome, *, receives: bool) -> End:
    """The result of one end. `bins` is None for an end that receives nothing."""
    ping_pong = plan.pattern is Pattern.PING_PONG
    total, history = outcome.total, outcome.history
    return like(
        End,
        total,
        **_by_plane(total),
        messages=outcome.messages,
        messages_per_second=outcome.messages / total.seconds if total.seconds > 0 else 0.0,
        latency_of="half round trip" if ping_pong else "completion",
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
        client=end_of(plan, result.client, receives=plan.client_receives),
        server=None if server is None else end_of(plan, server, receives=plan.server_receives),
    )


def served_of(peer: str, plan: plan.Plan, outcome: Outcome) -> PerfServed:
    end = end_of(plan, outcome, receives=plan.server_receives)
    return PerfServed(peer=peer, plan=plan_of(plan), server=end)


def goodput(result: client.TestResult) -> float:
    """Bit/s in both directions together."""
    total = result.client.total
    return total.written_bits_per_second + total.received_bits_per_second


def interval_row(plan: plan.Plan, interval: meter.Interval) -> dict[str, Any]:
    """A line of CSV: one interval at the client."""
    return {"message_bytes": plan.size, "qps": plan.qps} | _row(interval_of(interval))


def test_rows(result: client.TestResult) -> list[dict[str, Any]]:
    """Lines of CSV: a whole test, at each end."""
    test = test_of(result)
    head = {
        "message_bytes": test.plan.message_bytes,
        "qps": test.plan.qps,
        "direction": test.plan.direction,
    }
    ends = {"client": test.client, "server": test.server}
    return [head | {"end": name} | _row(end) for name, end in ends.items() if end is not None]


def _row(figures: Interval) -> dict[str, Any]:
    """The figures, with a column for each plane."""
    row = plain(figures)
    for plane in row["planes"]:
        row[f"planes.{plane['plane']}.sent_bytes"] = plane["sent_bytes"]
    for plane in row["planes_received"]:
        row[f"planes.{plane['plane']}.received_bytes"] = plane["received_bytes"]
    return {key: value for key, value in row.items() if key not in ("bins", "changes")}
