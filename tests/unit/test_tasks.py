# SPDX-License-Identifier: Apache-2.0
"""Cancelled tasks that go on."""

from __future__ import annotations

import asyncio

import pytest

from mrc.tasks import took_cancellation


async def test_took_cancellation__time_limits_hold_afterwards() -> None:
    async def goes_on() -> None:
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            took_cancellation()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0):
                await asyncio.get_running_loop().create_future()

    task = asyncio.create_task(goes_on())
    await asyncio.sleep(0)
    task.cancel()
    await task
    assert task.cancelling() == 0
