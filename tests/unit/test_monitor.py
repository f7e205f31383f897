# SPDX-License-Identifier: Apache-2.0
"""When the interfaces are looked at."""

from __future__ import annotations

import asyncio

import pytest

from mrc.monitor import link_snapshots


async def test_link_snapshots__begin_with_what_is_and_end_when_cancelled() -> None:
    snapshots = link_snapshots()
    assert "lo" in [interface.name for interface in await anext(snapshots)]
    waiting = asyncio.ensure_future(anext(snapshots))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
