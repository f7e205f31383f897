# SPDX-License-Identifier: Apache-2.0
"""Cancels asyncio tasks."""

from __future__ import annotations

import asyncio
from typing import Any


async def cancelled(*tasks: asyncio.Task[Any]) -> None:
    """Cancels the tasks and returns when all have ended; ignores their exceptions."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
