# SPDX-License-Identifier: Apache-2.0
"""The search for the largest payload that one EV carries: sizes in question, and what is known.

A size fits when a probe of this size was answered. It is too large when `needed` probes of this
size were missed (mrc.exchange.prover says when a probe is missed). Whatever fits or is too large
also decides about all smaller or larger sizes.
"""

from __future__ import annotations

from collections import Counter

from mrc.limits import MIN_MTU

# Payloads on links with an MTU of 9000, 1500, 1450 (VXLAN), 1420 (WireGuard), 1400 or 1280, with
# IPv4, IPv6 or SRv6, and RoCE's sizes. A search begins with them.
COMMON_MTUS = (
    8928, 8908, 8844, 4096, 2048, 1428, 1408, 1376, 1348, 1328, 1308, 1208, 1188, 1124, 1024, 512,
    MIN_MTU,
)  # fmt: skip
NEAR_BYTES = 16  # a search ends this close below the true size
_SIZES = 7  # in question at once, between one that fits and one that is too large
AGAIN = 2  # sizes that are asked for again in a round after the first of a step


def common(above: int) -> list[int]:
    """The payloads to try first, largest first."""
    return [mtu for mtu in COMMON_MTUS if mtu < above]


def between(low: int, above: int) -> list[int]:
    """The payloads to try when `low` fits and `above` does not; none when these are near."""
    if above - low <= NEAR_BYTES:
        return []
    step = -(-(above - low) // (4 * (_SIZES + 1))) * 4
    return list(range(low + step, above, step))


class SizeSearch:
    """Finds out whether an EV carries `goal`; after `widen`, what it carries instead."""

    def __init__(self, goal: int, low: int = 0) -> None:
        self.goal = goal
        self.low = low  # the largest size that was answered; 0: none
        self.above = 0  # the smallest size that is too large; 0: none
        self.wide = False
        self._sizes = [goal]  # in question in this step, ascending
        self._asked = False  # in this step
        self._missed: Counter[int] = Counter()

    @property
    def failed(self) -> bool:
        """Whether the goal is too large."""
        return bool(self.above)

    @property
    def doubtful(self) -> bool:
        """Whether a probe of the goal was missed, and nothing else has been asked yet."""
        return not self.wide and self._missed[self.goal] > 0

    @property
    def over(self) -> bool:
        """Whether nothing is left to ask."""
        return self.low >= self.goal or not self._sizes

    def widen(self) -> None:
        """Asks for common sizes below the goal too, and later for sizes between them."""
        self.wide, self._asked = True, False
        sizes = [size for size in sorted(common(self.above or self.goal)) if size > self.low]
        self._sizes = sizes if self.above else [*sizes, self.goal]

    def next_sizes(self) -> list[int]:
        """The sizes of the next round: in the first of a step all, later those that decide."""
        sizes = [size for size in self._sizes if size > self.low]
        asked, self._asked = self._asked, True
        return sizes[:AGAIN] if asked else sizes

    def on_answer(self, size: int) -> None:
        """A probe of this size was answered."""
        self.low = max(self.low, size)
        if self.low >= self.above:
            self.above = 0

    def on_miss(self, size: int) -> None:
        """A probe of this size was missed."""
        self._missed[size] += 1

    def settle(self, needed: int, *, refine: bool) -> None:
        """Goes to the next step when this one is decided. `refine` allows steps between sizes."""
        larger = [size for size in self._sizes if size > self.low]
        if self.over or (larger and self._missed[larger[0]] < needed):
            return
        self.above = larger[0] if larger else self.above or self.goal
        near = self.wide and refine and self.low > 0
        self._sizes = between(self.low, self.above) if near else []
        self._asked = False
