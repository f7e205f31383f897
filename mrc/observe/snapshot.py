# SPDX-License-Identifier: Apache-2.0
"""What a Context does right now, as plain JSON: QPs with their planes and EVs, counters, drops."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from hashlib import blake2s
from typing import Any

from mrc.aio.context import Context
from mrc.aio.qp import QP
from mrc.errors import MrcError
from mrc.events import EvInfo, PlaneInfo, QpInfo

SCHEMA = 1
MAX_QPS = 128  # told of; the number of all is told as well
MAX_EVS = 2048  # told of, of all QPs together: with MAX_QPS it fits a frame of the exchange

Snapshot = dict[str, Any]


async def snapshot(ctx: Context) -> Snapshot:
    """A snapshot; raises StateError when the Context is closed.

    Bytes are payload, packets data packets, all since the beginning of their QP. What is named
    `_ns` is in nanoseconds: round trips are -1 before the first sample, and `monotonic_ns` is the
    moment, for rates between two snapshots.
    """
    qps = sorted(ctx.qps, key=lambda qp: (qp.peer_host, qp.qpn))
    told: list[dict[str, Any]] = []
    n_evs = 0
    for qp in qps[:MAX_QPS]:
        try:
            info, evs = await qp.query(), await qp.evs()
        except MrcError:
            continue  # it was closed meanwhile
        n_evs += len(evs)
        told.append(_qp(qp, info, evs if n_evs <= MAX_EVS else None))
    return {
        "schema": SCHEMA,
        "host": ctx.name,
        "program": ctx.config.program,
        "pid": os.getpid(),
        "udp_port": ctx.udp_port,
        "monotonic_ns": time.monotonic_ns(),
        "ports": [
            {"plane": port.plane, "nic": port.nic, "address": str(port.address.ip)}
            for port in ctx.ports
        ],
        "qps_total": len(qps),
        "qps": told,
        "counters": _nonzero(await ctx.counters()),
        "drops": _nonzero(await ctx.drops()),
    }


def public(found: Snapshot, key: bytes) -> Snapshot:
    """What strangers may see: nothing that packets forged against a QP need to hold.

    In place of its number a QP has an `id`, which stays the same under the same secret `key`.
    """
    qps = [
        {
            **{name: value for name, value in qp.items() if name != "qpn"},
            "id": blake2s(str(qp["qpn"]).encode(), key=key, digest_size=6).hexdigest(),
            "evs": qp["evs"] and [{n: v for n, v in ev.items() if n != "ev"} for ev in qp["evs"]],
        }
        for qp in found["qps"]
    ]
    return {name: value for name, value in found.items() if name != "udp_port"} | {"qps": qps}


def retransmitted_bytes(info: QpInfo) -> int:
    """Payload that a QP sent again."""
    return sum(plane.sent_bytes for plane in info.planes) - info.first_sent_bytes


def _qp(qp: QP, info: QpInfo, evs: Iterable[EvInfo] | None) -> dict[str, Any]:
    return {
        "qpn": info.qpn,
        "peer": qp.peer_host,
        "state": info.state.name,
        "path_mtu_bytes": info.path_mtu,
        "outstanding": info.outstanding,
        "cwnd_bytes": info.cwnd_bytes,
        "inflight_bytes": info.inflight_bytes,
        "rtt_ns": info.rtt_ns,
        "timeouts": info.timeouts,
        "acknowledged_bytes": info.acknowledged_bytes,
        "received_bytes": info.received_bytes,
        "sent_packets": info.sent_packets,
        "retransmitted_packets": info.retransmitted_packets,
        "retransmitted_bytes": retransmitted_bytes(info),
        "spurious_packets": info.spurious_packets,
        "planes": [_plane(plane) for plane in info.planes],
        "evs": None if evs is None else [_ev(ev) for ev in evs],
    }


def _plane(plane: PlaneInfo) -> dict[str, Any]:
    return {
        "plane": plane.plane,
        "suspended": plane.suspended,
        "slow": plane.slow,
        "share_percent": plane.share_percent,
        "rtt_ns": plane.rtt_ns,
        "sent_bytes": plane.sent_bytes,
        "received_bytes": plane.received_bytes,
        "lost_packets": plane.lost_packets,
        "inflight_bytes": plane.inflight_bytes,
    }


def _ev(ev: EvInfo) -> dict[str, Any]:
    return {
        "ev": ev.ev,
        "plane": ev.plane,
        "path": ev.path,
        "state": ev.state.name,
        "active": ev.active,
        "rtt_ns": ev.rtt_ns,
        "sent_bytes": ev.sent_bytes,
        "lost_packets": ev.lost_packets,
    }


def _nonzero(values: dict[str, int]) -> dict[str, int]:
    return {name: value for name, value in values.items() if value}
