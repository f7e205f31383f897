# SPDX-License-Identifier: Apache-2.0
"""The end of asyncio's tasks."""

from __future__ import annotations

import asyncio
from typing import Any


async def cancelled(*tasks: asyncio.Task[Any]) -> None:
    """Cancels tasks, and returns when each has ended, whatever it raised."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
