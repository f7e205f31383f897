# SPDX-License-Identifier: Apache-2.0
"""A network of which a part limps, and the receiver behind it. Pure.

Packets on some EVs arrive late, or are lost. The receiver answers each packet that arrives with a
SACK, as a responder does.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator

from msgspec import Struct, field

from mrc.conform.packets import Datagram

_BITS = 64  # of a bitmap


class Limping(Struct):
    """What the network does with the packets of the device, and what the receiver has."""

    limps: Callable[[Datagram], bool]
    """Whether a packet takes the part that limps."""
    late_ns: int = 0
    loses: int = 0
    """There every n-th packet is lost; 0: none."""
    received: set[int] = field(default_factory=set)
    """PSNs."""
    _sent: int = 0
    _passed: int = 0
    _on_the_way: list[tuple[int, int, Datagram]] = field(default_factory=list)

    def send(self, seen: Datagram) -> None:
        """A packet of the device enters the network."""
        self._sent += 1
        limps = self.limps(seen)
        self._passed += limps
        if limps and self.loses and self._passed % self.loses == 0:
            return
        at_ns = seen.at_ns + (self.late_ns if limps else 0)
        heapq.heappush(self._on_the_way, (at_ns, self._sent, seen))

    @property
    def next_ns(self) -> int | None:
        """When the next packet arrives; None: none is on its way."""
        return self._on_the_way[0][0] if self._on_the_way else None

    def arrivals(self, now_ns: int) -> Iterator[tuple[Datagram, int]]:
        """The packets that have arrived by now, in order, and their delays in nanoseconds."""
        while self._on_the_way and self._on_the_way[0][0] <= now_ns:
            at_ns, _, seen = heapq.heappop(self._on_the_way)
            yield seen, at_ns - seen.at_ns

    def report(self, psn: int | None) -> dict[str, int | str]:
        """What a SACK says: the cumulative PSN, the offset of its bitmap, and the PSNs in it, among
        them the one that arrived.
        """
        cum = -1
        while cum + 1 in self.received:
            cum += 1
        base = cum + 1 if psn is None else max(cum + 1, psn - _BITS + 1)
        has = [each for each in range(base, base + _BITS) if each in self.received]
        told: dict[str, int | str] = {"cum_psn": cum, "sack_offset": base - cum}
        return told | ({"has": ",".join(map(str, has))} if has else {})
