# SPDX-License-Identifier: Apache-2.0
"""Totals of all QPs of a Context, those that are closed included: counters that never fall.

Totals are kept by peer and plane, not by QP: QPs come and go, and a label that does is a series
that never ends. For the same reason peers beyond the first MAX_PEERS share one name.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from mrc.aio.qp import QP
from mrc.errors import MrcError
from mrc.events import EvInfo, QpInfo
from mrc.observe.snapshot import retransmitted_bytes

MAX_PEERS = 64
OTHERS = "other"

PEER_COUNTERS: Mapping[str, str] = {
    "acknowledged_bytes": "Payload bytes that the peer acknowledged, each once.",
    "retransmitted_bytes": "Payload bytes sent again.",
    "retransmitted_packets": "Data packets sent again.",
    "spurious_packets": "Data packets taken for lost that had arrived after all.",
}
PLANE_COUNTERS: Mapping[str, str] = {
    "sent_bytes": "Payload bytes sent, retransmissions included.",
    "received_bytes": "Payload bytes that came in, each once.",
    "sent_packets": "Data packets sent, retransmissions included.",
    "received_packets": "Data packets that came in, each once.",
    "lost_packets": "Data packets taken for lost.",
}


@dataclass(slots=True)
class Totals:
    """Counters by (peer, name) and (peer, plane, name)."""

    peers: Counter[tuple[str, str]] = field(default_factory=Counter)
    planes: Counter[tuple[str, int, str]] = field(default_factory=Counter)

    def copy(self) -> Totals:
        """A copy to which live QPs may be added."""
        return Totals(self.peers.copy(), self.planes.copy())

    def add(self, peer: str, info: QpInfo) -> None:
        """Adds what one QP has done so far."""
        self.peers.update(
            {
                (peer, "acknowledged_bytes"): info.bytes_acked,
                (peer, "retransmitted_bytes"): retransmitted_bytes(info),
                (peer, "retransmitted_packets"): info.packets_retransmitted,
                (peer, "spurious_packets"): info.packets_spurious,
            }
        )
        for plane in info.planes:
            key = (peer, plane.plane)
            self.planes.update(
                {
                    (*key, "sent_bytes"): plane.bytes,
                    (*key, "received_bytes"): plane.bytes_received,
                    (*key, "sent_packets"): plane.packets,
                    (*key, "received_packets"): plane.packets_received,
                    (*key, "lost_packets"): plane.lost,
                }
            )


@dataclass(frozen=True, slots=True)
class Live:
    """One QP that is not yet closed."""

    peer: str
    info: QpInfo
    evs: Sequence[EvInfo]


class Ledger:
    """Knows every QP of a Context from its connect to the end."""

    def __init__(self) -> None:
        self._qps: dict[QP, str] = {}
        self._closed = Totals()
        self._peers: set[str] = set()

    def add(self, qp: QP) -> None:
        """A QP was connected; from now on it is counted."""
        if len(self._peers) < MAX_PEERS:
            self._peers.add(qp.peer_host)
        self._qps[qp] = qp.peer_host if qp.peer_host in self._peers else OTHERS

    def retire(self, qp: QP, info: QpInfo | None) -> None:
        """A QP is about to end; None when nobody knows any more what it did."""
        peer = self._qps.pop(qp, None)
        if peer is not None and info is not None:
            self._closed.add(peer, info)

    async def read(self) -> tuple[Totals, list[Live]]:
        """The totals, and the QPs that live."""
        readings = await asyncio.gather(*map(_reading, list(self._qps)))
        totals, living = self._closed.copy(), []
        # One that ended meanwhile is in the closed ones, and must not count twice.
        for qp, info, evs in filter(None, readings):
            if (peer := self._qps.get(qp)) is not None:
                totals.add(peer, info)
                living.append(Live(peer, info, evs))
        return totals, living


async def _reading(qp: QP) -> tuple[QP, QpInfo, Sequence[EvInfo]] | None:
    try:
        return qp, await qp.query(), await qp.evs()
    except MrcError:
        return None
