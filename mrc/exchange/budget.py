# SPDX-License-Identifier: Apache-2.0
"""Limits the memory that a Context uses for its peers: mailboxes, windows, test regions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from mrc.errors import MrcError
from mrc.exchange.sources import source_of


class BudgetError(MrcError):
    """A peer needs more memory than its budget on this host has left."""


class Budget:
    """`total` bytes for all peers together; peers of one source get at most half of them."""

    def __init__(self, total: int) -> None:
        self._left = total
        self._each = total // 2
        self._held: Counter[str] = Counter()

    def left(self, address: str) -> int:
        """Bytes that peers from this address can still take."""
        return min(self._left, self._each - self._held[source_of(address)])

    @contextmanager
    def taken(self, address: str, count: int) -> Iterator[None]:
        """Takes `count` bytes for a peer from this address while the body runs.

        Raises BudgetError when fewer bytes are left.
        """
        if count > (left := self.left(address)):
            raise BudgetError(f"no memory: {count} bytes are needed, {left} are left for this peer")
        source = source_of(address)
        self._left -= count
        self._held[source] += count
        try:
            yield
        finally:
            self._left += count
            self._held[source] -= count
            if not self._held[source]:
                del self._held[source]
