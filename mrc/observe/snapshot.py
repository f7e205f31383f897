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
from typing import TYPE_CHECKING, ClassVar

from msgspec import Struct
from msgspec.structs import replace

from mrc.errors import MrcError
from mrc.events import EvInfo, PlaneInfo, QpInfo
from mrc.results import KEYS, Result, like, nonzero

if TYPE_CHECKING:
    from mrc.aio.context import Context
    from mrc.aio.qp import QP

# ---- What is shown -------------------------------------------------------------------------------


class Port(Struct, frozen=True, kw_only=True):
    """A UDP port of this host in one plane."""

    plane: int
    """The plane, from 1."""
    nic: str
    """Its network interface."""
    address: str
    """Its address."""


class QpPlane(Struct, frozen=True, kw_only=True):
    """One plane of a QP, since the QP began."""

    texts_of: ClassVar = PlaneInfo

    plane: int
    suspended: bool
    slow: bool
    share_percent: int
    rtt_ns: int | None
    sent_bytes: int
    received_bytes: int
    lost_packets: int
    inflight_bytes: int
    weight: int = 100


class Ev(Struct, frozen=True, kw_only=True):
    """One EV of a QP, since the QP began."""

    texts_of: ClassVar = EvInfo

    ev: int | None
    """The entropy value; null: withheld from other hosts."""
    plane: int
    path: str
    state: str
    """GOOD, SKIP, ASSUMED_BAD, DENIED or UNPROVEN."""
    active: bool
    rtt_ns: int | None
    sent_bytes: int
    lost_packets: int


class Qp(Struct, frozen=True, kw_only=True, rename=KEYS):
    """One QP, since it began."""

    texts_of: ClassVar = QpInfo

    qpn: int | None
    """Its number; null: withheld from other hosts."""
    id: str | None
    """Stands for the number on other hosts; null on this host."""
    peer: str
    """Name or address of the peer."""
    state: str
    """RESET, INIT, RTR, RTS or ERROR."""
    path_mtu: int
    outstanding: int
    cwnd_bytes: int
    inflight_bytes: int
    rtt_ns: int | None
    timeouts: int
    acknowledged_bytes: int
    received_bytes: int
    sent_packets: int
    retransmitted_packets: int
    retransmitted_bytes: int
    """Payload sent again."""
    spurious_packets: int
    planes: tuple[QpPlane, ...]
    evs: tuple[Ev, ...] | None
    """Its EVs; null: the snapshot already lists as many as it may."""


class Snapshot(Result, frozen=True, kw_only=True):
    """One endpoint."""

    host: str
    """Name of its host."""
    program: str
    """Name of its program; empty: not given."""
    pid: int
    """Its process."""
    udp_port: int | None
    """UDP port of its packets; null: withheld from other hosts."""
    monotonic_ns: int
    """When, by CLOCK_MONOTONIC of its host."""
    ports: tuple[Port, ...]
    """Its ports, one for each plane."""
    qps_total: int
    """Number of its QPs; `qps` lists at most 128."""
    qps: tuple[Qp, ...]
    """Its QPs."""
    counters: dict[str, int]
    """Counters that are not 0, by their names in counters.def."""
    drops: dict[str, int]
    """Packets dropped, by reason."""


# ---- Snapshots -----------------------------------------------------------------------------------


MAX_QPS = 128  # limit of the list; `qps_total` counts all QPs
MAX_EVS = 2048  # limit of all QPs together. Both limits keep a snapshot within one frame


async def snapshot(ctx: Context) -> Snapshot:
    """A snapshot of a Context; raises StateError if the Context is closed."""
    qps = sorted(ctx.qps, key=lambda qp: (qp.peer.name, qp.qpn))
    listed: list[Qp] = []
    n_evs = 0
    for qp in qps[:MAX_QPS]:
        try:
            info, evs = await qp.info(), await qp.evs()
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


def _qp(qp: QP, info: QpInfo, evs: Iterable[EvInfo] | None) -> Qp:
    return like(
        Qp,
        info,
        id=None,
        peer=qp.peer.name,
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
        self._qps: dict[QP, str] = {}
        self._closed = Totals()
        self._peers: set[str] = set()

    def add(self, qp: QP) -> None:
        """Begins to count a QP that was connected."""
        if len(self._peers) < MAX_PEERS:
            self._peers.add(qp.peer.name)
        self._qps[qp] = qp.peer.name if qp.peer.name in self._peers else OTHERS

    def retire(self, qp: QP, info: QpInfo | None) -> None:
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


async def _reading(qp: QP) -> tuple[QP, QpInfo, Sequence[EvInfo]] | None:
    try:
        return qp, await qp.info(), await qp.evs()
    except MrcError:
        return None
