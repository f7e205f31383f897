# SPDX-License-Identifier: Apache-2.0
"""The digest of a file, taken chunk by chunk in a thread while others are under way."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar, TypeVarTuple

import xxhash

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


async def in_thread(function: Callable[[*Ts], T], *args: *Ts) -> T:
    """As asyncio.to_thread, but does not return before the thread is done, even when cancelled.

    So whatever the thread works on can be closed as soon as this has returned.
    """
    work = asyncio.ensure_future(asyncio.to_thread(function, *args))
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        while not work.done():
            with suppress(asyncio.CancelledError):  # of a second time
                await asyncio.wait({work})
        raise


class RunningDigest:
    """xxh3_128: quick enough to see every byte, strong enough against accident (not malice)."""

    def __init__(self) -> None:
        self._hash = xxhash.xxh3_128()

    def update(self, chunk: memoryview) -> None:
        """Lets go of the GIL on large chunks, so it is to run in a thread."""
        self._hash.update(chunk)

    def hexdigest(self) -> str:
        return str(self._hash.hexdigest())
