# SPDX-License-Identifier: Apache-2.0
"""How much of what a sender claims to have written has come.

An immediate names a chunk, but its slot may still hold the bytes of an earlier one. So the chunks
of a session together are never more than the payload that came.
"""

from __future__ import annotations

from msgspec import Struct


class Arrived(Struct):
    """Bytes of a session, since its begin. Both counts of what came are lower bounds."""

    with_immediates: int = 0
    counted: int = 0
    """by the engine; also the parts of chunks that came without an immediate"""
    used: int = 0
    """by chunks"""

    def has(self, size: int) -> bool:
        """Whether a further chunk of this size can have come."""
        return self.used + size <= max(self.with_immediates, self.counted)
