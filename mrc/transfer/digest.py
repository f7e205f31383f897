# SPDX-License-Identifier: Apache-2.0
"""The digest of a file, taken chunk by chunk while others are under way."""

from __future__ import annotations

import xxhash


class RunningDigest:
    """xxh3_128: quick enough to see every byte, strong enough against accident (not malice)."""

    def __init__(self) -> None:
        self._hash = xxhash.xxh3_128()

    def update(self, chunk: memoryview) -> None:
        """Takes the next chunk. Lets go of the GIL, so it is for a thread."""
        self._hash.update(chunk)

    def hexdigest(self) -> str:
        return str(self._hash.hexdigest())
