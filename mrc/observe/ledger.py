# SPDX-License-Identifier: Apache-2.0
"""Totals of all QPs of a Context, closed QPs included: counters that never fall.

There are totals by peer and by plane, but not by QP: each QP would leave a series behind. To limit
the number of series, all peers beyond the first MAX_PEERS share one name.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence

from msgspec import Struct

from mrc.errors import MrcError
from mrc.events import EvInfo, QpInfo
from mrc.observe.observed import ObservedQp

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


class Live(Struct, frozen=True):
    """One QP that is not yet closed."""

    peer: str
    info: QpInfo
    evs: Sequence[EvInfo]


class Ledger:
    """Counts every QP of a Context from its connect to its end."""

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

    async def read(self) -> tuple[Totals, list[Live]]:
        """The totals, and the QPs that are not closed."""
        readings = await asyncio.gather(*map(_reading, list(self._qps)))
        totals, living = self._closed.copy(), []
        # A QP that ended during the reading is already in `_closed`: do not count it twice.
        for qp, info, evs in filter(None, readings):
            if (peer := self._qps.get(qp)) is not None:
                totals.update(_moved(peer, info))
                living.append(Live(peer, info, evs))
        return totals, living


async def _reading(qp: ObservedQp) -> tuple[ObservedQp, QpInfo, Sequence[EvInfo]] | None:
    try:
        return qp, await qp.query(), await qp.evs()
    except MrcError:
        return None
