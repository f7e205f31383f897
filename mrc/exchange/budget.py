# SPDX-License-Identifier: Apache-2.0
"""Memory that peers can make a Context hold: mailboxes, windows of files, regions of tests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from mrc.errors import MrcError
from mrc.exchange.admission import source_of


class BudgetError(MrcError):
    """A peer needs more memory than this host still has for it."""


class Budget:
    """So many bytes for all peers together, half of them for the peers of one source at most."""

    def __init__(self, total: int) -> None:
        self._left = total
        self._each = total // 2
        self._held: Counter[str] = Counter()

    def left(self, address: str) -> int:
        """Bytes that peers of this address may still take."""
        return min(self._left, self._each - self._held[source_of(address)])

    @contextmanager
    def taken(self, address: str, count: int) -> Iterator[None]:
        """`count` bytes are taken for a peer of this address while the body runs.

        Raises BudgetError when so many are not left.
        """
        if count > (left := self.left(address)):
            raise BudgetError(f"no memory: {count} bytes are needed, {left} are left for this host")
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
