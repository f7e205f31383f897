# SPDX-License-Identifier: Apache-2.0
"""Takes a snapshot of a Context, and removes the numbers that would help to forge packets."""

from __future__ import annotations

import time
from collections.abc import Iterable
from hashlib import blake2s

from msgspec.structs import replace

from mrc.errors import MrcError
from mrc.events import EvInfo, QpInfo
from mrc.observe.observed import Observed, ObservedQp
from mrc.results.plain import like, nonzero
from mrc.results.snapshot import Ev, Plane, Port, Qp, Snapshot

MAX_QPS = 128  # limit of the list; `qps_total` counts all QPs
MAX_EVS = 2048  # limit of all QPs together. Both limits keep a snapshot within one frame


async def snapshot(ctx: Observed) -> Snapshot:
    """A snapshot of a Context; raises StateError if the Context is closed."""
    qps = sorted(ctx.qps, key=lambda qp: (qp.peer_name, qp.qpn))
    listed: list[Qp] = []
    n_evs = 0
    for qp in qps[:MAX_QPS]:
        try:
            info, evs = await qp.query(), await qp.evs()
        except MrcError:
            continue  # it was closed meanwhile
        n_evs += len(evs)
        listed.append(_qp(qp, info, evs if n_evs <= MAX_EVS else None))
    return Snapshot(
        host=ctx.name,
        program=ctx.config.program,
        pid=ctx.pid,
        udp_port=ctx.udp_port,
        monotonic_ns=time.monotonic_ns(),
        ports=tuple(
            Port(plane=port.plane, nic=port.nic, address=str(port.address.ip)) for port in ctx.ports
        ),
        qps_total=len(qps),
        qps=tuple(listed),
        counters=nonzero(await ctx.counters()),
        drops=nonzero(await ctx.drops()),
    )


def public(found: Snapshot, key: bytes) -> Snapshot:
    """The snapshot for other hosts, without the numbers that a forged packet requires.

    Instead of its QPN, a QP has an `id` that is stable for the same secret `key`.
    """
    qps = (
        replace(
            qp,
            qpn=None,
            id=blake2s(str(qp.qpn).encode(), key=key, digest_size=6).hexdigest(),
            evs=qp.evs and tuple(replace(ev, ev=None) for ev in qp.evs),
        )
        for qp in found.qps
    )
    return replace(found, udp_port=None, qps=tuple(qps))


def _qp(qp: ObservedQp, info: QpInfo, evs: Iterable[EvInfo] | None) -> Qp:
    return like(
        Qp,
        info,
        id=None,
        peer=qp.peer_name,
        state=info.state.name,
        path_mtu_bytes=info.path_mtu,
        planes=tuple(like(Plane, plane) for plane in info.planes),
        evs=None if evs is None else tuple(like(Ev, ev, state=ev.state.name) for ev in evs),
    )
