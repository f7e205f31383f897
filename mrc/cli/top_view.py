# SPDX-License-Identifier: Apache-2.0
"""The tables of `mrc top` for an endpoint: planes, QPs and paths. Pure."""

from __future__ import annotations

from collections import Counter

from mrc.cli.live import Block
from mrc.cli.output import format_bytes, format_rate, format_seconds
from mrc.events import known
from mrc.results.snapshot import Ev
from mrc.results.top import Endpoint, PlaneRates, QpRates
from mrc.units import counted, digits

MAX_ROWS = 32  # of QPs and of paths that are printed: the busiest QPs, the worst paths
DROPS = {
    "SHORT": "too short", "OPCODE": "unknown opcode", "VERSION": "unknown version",
    "PKEY": "wrong partition key", "FIELD": "forbidden value", "LENGTH": "wrong length",
    "ICRC": "wrong ICRC", "SEAL": "wrong seal", "REPLAY": "sealed long ago",
    "QPN": "unknown QP", "QP_STATE": "QP not ready",
    "SOURCE": "wrong source", "PSN_WINDOW": "PSN beyond the window",
    "DUPLICATE": "duplicates", "ACK_UNSENT": "ACK of an unsent PSN", "STALE": "outdated answers",
    "UNKNOWN_ID": "late probe answers", "ACCESS": "memory access refused",
    "WIMM_LIMIT": "too many immediates", "RATE": "too many requests", "TRIMMED": "trimmed",
    "PORT": "unknown port", "PORT_STATUS": "bad port status",
}  # fmt: skip
"""Reasons for dropped packets, in a few words."""
# A healthy fabric brings these: late or repeated packets, trimming switches, scans.
_HARMLESS = {"QPN", "QP_STATE", "DUPLICATE", "STALE", "UNKNOWN_ID", "RATE", "TRIMMED", "SPURIOUS"}
_ALARMS = {"RX_OVERFLOW": "receive buffer overflows", "TIMEOUTS": "timeouts",
           "SPURIOUS": "spurious losses", "TX_BURST_ERRORS": "send errors",
           "MEMORY_FAULTS": "memory faults"}  # fmt: skip
_BADNESS = ("ASSUMED_BAD", "DENIED", "SKIP", "GOOD")  # the worst first


def summary_blocks(endpoint: Endpoint) -> list[Block]:
    """What fits 80 columns: the endpoint and its planes."""
    return [_title(endpoint), *_drops(endpoint), *_planes(endpoint)]


def _title(endpoint: Endpoint) -> Block:
    words = [
        f"{endpoint.host}: {endpoint.program or 'mrc'}",
        f"pid {endpoint.pid}",
        *([f"UDP port {endpoint.udp_port}"] if endpoint.udp_port is not None else []),
        counted(endpoint.qps_total, "QP"),
    ]
    return Block(", ".join(words))


def _drops(endpoint: Endpoint) -> list[Block]:
    """Two lines: drops and alarms that hurt, because they grow and are not usual; and the rest."""
    now, rest = [], []
    dropped = {name: f"dropped ({DROPS.get(name, name.lower())})" for name in endpoint.drops}
    for totals, rates, words in (
        (endpoint.drops, endpoint.drops_per_second, dropped),
        (endpoint.counters, endpoint.counters_per_second, _ALARMS),
    ):
        for name in (each for each in words if each in totals):
            text = f"{totals[name]} {words[name]}"
            if name in rates and name not in _HARMLESS:
                now.append(f"{text} {digits(rates[name], 3)}/s")
            else:
                rest.append(text)
    hurts = [Block(f"  now: {', '.join(now)}", style="bold red")] if now else []
    return hurts + ([Block(f"  so far: {', '.join(rest)}", style="dim")] if rest else [])


def _planes(endpoint: Endpoint) -> list[Block]:
    """One row for each plane, summed over all QPs."""
    nics = {port.plane: port.nic for port in endpoint.ports}
    shares: dict[int, list[PlaneRates]] = {}
    for qp in endpoint.qps:
        for plane in qp.planes:
            shares.setdefault(plane.plane, []).append(plane)
    rows = []
    for number, parts in sorted(shares.items()):
        rows.append((
            number,
            nics.get(number, "-"),
            _plane_state(parts),
            format_rate(sum(part.sent_bits_per_second for part in parts)),
            format_rate(sum(part.received_bits_per_second for part in parts)),
            _rtt(max(known(part.rtt_ns for part in parts), default=None)),
            sum(part.lost_packets for part in parts),
        ))  # fmt: skip
    head = ("plane", "NIC", "state", "sends", "receives", "RTT", "lost")
    return [Block("planes", head, rows)] if rows else []


def _plane_state(parts: list[PlaneRates]) -> str:
    """How many QPs have suspended the plane, or the least that it carries for one; "up" if none."""
    if suspended := sum(part.suspended for part in parts):
        return f"suspended {suspended}/{len(parts)}" if len(parts) > 1 else "suspended"
    slow = [part.share_percent for part in parts if part.slow]
    return f"slow {min(slow)}%" if slow else "up"


def qp_blocks(endpoint: Endpoint, most: int) -> list[Block]:
    """One row for each QP, the busiest first."""
    busy = sorted(endpoint.qps, key=_moved, reverse=True)
    rows = [
        (
            qp.id if qp.qpn is None else f"{qp.qpn:#08x}",
            qp.peer,
            qp.state,
            format_rate(qp.acknowledged_bits_per_second),
            format_rate(qp.received_bits_per_second),
            round(qp.retransmitted_packets_per_second),
            qp.outstanding,
            format_bytes(qp.inflight_bytes),
            format_bytes(qp.cwnd_bytes),
            _rtt(qp.rtt_ns),
            qp.timeouts,
        )
        for qp in busy[:most]
    ]
    head = ("QP", "peer", "state", "writes", "receives", "rtx/s", "posted", "in flight", "window",
            "RTT", "timeouts")  # fmt: skip
    more = endpoint.qps_total - len(rows)
    title = f"QPs ({more} more)" if more > 0 else "QPs"
    return [Block(title, head, rows)] if rows else []


def _moved(qp: QpRates) -> float:
    return qp.acknowledged_bits_per_second + qp.received_bits_per_second


def path_blocks(endpoint: Endpoint, most: int) -> list[Block]:
    """One row for each path to a peer, the worst first, summed over the QPs. Each QP has its own EV
    for a path.
    """
    paths: dict[tuple[str, int, str], list[Ev]] = {}
    for qp in endpoint.qps:
        for ev in qp.evs or ():
            paths.setdefault((qp.peer, ev.plane, ev.path), []).append(ev)
    rows = []
    for (peer, plane, path), evs in paths.items():
        states = Counter(ev.state for ev in evs)
        worst = sorted(states, key=_badness)
        several = ", ".join(f"{state} {states[state]}" for state in worst)
        rows.append((
            peer,
            plane,
            path,
            worst[0] if len(worst) == 1 else several,
            _rtt(min(known(ev.rtt_ns for ev in evs), default=None)),
            sum(ev.lost_packets for ev in evs),
        ))  # fmt: skip
    rows.sort(key=lambda row: (_badness(str(row[3])), row[:3]))
    title = f"paths (EVs), {len(rows) - most} more" if len(rows) > most else "paths (EVs)"
    head = ("peer", "plane", "path", "state", "RTT", "lost")
    return [Block(title, head, rows[:most])] if rows else []


def _badness(state: str) -> int:
    word = state.partition(" ")[0]
    return _BADNESS.index(word) if word in _BADNESS else 0


def _rtt(ns: int | None) -> str:
    return "-" if ns is None else format_seconds(ns / 1e9)
