# SPDX-License-Identifier: Apache-2.0
"""What an endpoint shows of itself: snapshots, and totals of all QPs of a Context, closed QPs
included.

The numbers that would help to forge packets can be removed from a snapshot.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2s
from typing import Protocol

from msgspec import Struct
from msgspec.structs import replace

from mrc.config import ContextConfig
from mrc.errors import MrcError
from mrc.events import EvInfo, QpInfo
from mrc.fabric.paths import LocalPort
from mrc.observe.results import Ev, Port, Qp, QpPlane, Snapshot
from mrc.results import like, nonzero


class ObservedQp(Protocol):
    """A QP of the Context."""

    @property
    def qpn(self) -> int: ...
    @property
    def peer_name(self) -> str: ...
    async def query(self) -> QpInfo: ...
    async def evs(self) -> Sequence[EvInfo]: ...


class ObservedContext(Protocol):
    """A Context; its members raise StateError when it is closed."""

    config: ContextConfig

    @property
    def name(self) -> str: ...
    @property
    def pid(self) -> int: ...
    @property
    def udp_port(self) -> int: ...
    @property
    def ports(self) -> Sequence[LocalPort]: ...
    @property
    def qps(self) -> Sequence[ObservedQp]: ...
    async def counters(self) -> dict[str, int]: ...
    async def drops(self) -> dict[str, int]: ...


# ---- Snapshots -----------------------------------------------------------------------------------


MAX_QPS = 128  # limit of the list; `qps_total` counts all QPs
MAX_EVS = 2048  # limit of all QPs together. Both limits keep a snapshot within one frame


async def snapshot(ctx: ObservedContext) -> Snapshot:
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
        planes=tuple(like(QpPlane, plane) for plane in info.planes),
        evs=None if evs is None else tuple(like(Ev, ev, state=ev.state.name) for ev in evs),
    )


# ---- Totals --------------------------------------------------------------------------------------


MAX_PEERS = 64
OTHERS = "other"

MEANINGS: Mapping[str, str] = {
    "peer_acknowledged_bytes": "Payload bytes that the peer acknowledged, each once.",
    "peer_retransmitted_bytes": "Payload bytes retransmitted.",
    "peer_retransmitted_packets": "Data packets retransmitted.",
    "peer_spurious_packets": "Data packets declared lost that had arrived.",
    "plane_sent_bytes": "Payload bytes sent, retransmissions included.",
    "plane_received_bytes": "Payload bytes received, each once.",
    "plane_sent_packets": "Data packets sent, retransmissions included.",
    "plane_received_packets": "Data packets received, each once.",
    "plane_lost_packets": "Data packets declared lost.",
}

Totals = Counter[tuple[str, ...]]
"""Counts by (name, peer) or by (name, peer, plane)."""


def _moved(peer: str, info: QpInfo) -> dict[tuple[str, ...], int]:
    """The counts of one QP since its connect."""
    moved: dict[tuple[str, ...], int] = {
        ("peer_acknowledged_bytes", peer): info.acknowledged_bytes,
        ("peer_retransmitted_bytes", peer): info.retransmitted_bytes,
        ("peer_retransmitted_packets", peer): info.retransmitted_packets,
        ("peer_spurious_packets", peer): info.spurious_packets,
    }
    for plane in info.planes:
        key = (peer, str(plane.plane))
        moved["plane_sent_bytes", *key] = plane.sent_bytes
        moved["plane_received_bytes", *key] = plane.received_bytes
        moved["plane_sent_packets", *key] = plane.sent_packets
        moved["plane_received_packets", *key] = plane.received_packets
        moved["plane_lost_packets", *key] = plane.lost_packets
    return moved


class OpenQp(Struct, frozen=True):
    """One QP that is not yet closed."""

    peer: str
    info: QpInfo
    evs: Sequence[EvInfo]


class Ledger:
    """Counts every QP of a Context from its connect to its end: counters that never fall.

    There are totals by peer and by plane, but not by QP: each QP would leave a series behind. To
    limit the number of series, all peers beyond the first MAX_PEERS share one name.
    """

    def __init__(self) -> None:
        self._qps: dict[ObservedQp, str] = {}
        self._closed = Totals()
        self._peers: set[str] = set()

    def add(self, qp: ObservedQp) -> None:
        """Begins to count a QP that was connected."""
        if len(self._peers) < MAX_PEERS:
            self._peers.add(qp.peer_name)
        self._qps[qp] = qp.peer_name if qp.peer_name in self._peers else OTHERS

    def retire(self, qp: ObservedQp, info: QpInfo | None) -> None:
        """Adds the counts of a QP that ends to its peer's totals; None: its counts are lost."""
        peer = self._qps.pop(qp, None)
        if peer is not None and info is not None:
            self._closed.update(_moved(peer, info))

    async def read(self) -> tuple[Totals, list[OpenQp]]:
        """The totals, and the QPs that are not closed."""
        readings = await asyncio.gather(*map(_reading, list(self._qps)))
        totals, living = self._closed.copy(), []
        # A QP that ended during the reading is already in `_closed`: do not count it twice.
        for qp, info, evs in filter(None, readings):
            if (peer := self._qps.get(qp)) is not None:
                totals.update(_moved(peer, info))
                living.append(OpenQp(peer, info, evs))
        return totals, living


async def _reading(qp: ObservedQp) -> tuple[ObservedQp, QpInfo, Sequence[EvInfo]] | None:
    try:
        return qp, await qp.query(), await qp.evs()
    except MrcError:
        return None
