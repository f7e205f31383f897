# SPDX-License-Identifier: Apache-2.0
"""When `mrc agent` ends by itself."""

from __future__ import annotations

import asyncio
from unittest.mock import Mock

from mrc.cli.agent import _until_idle


async def test_idle__a_program_that_came_and_went_between_two_looks() -> None:
    loop = asyncio.get_running_loop()
    agent = Mock(programs=(), left=loop.time() + 0.1)
    serving = loop.create_future()
    await _until_idle(agent, serving, 0.02)
    assert loop.time() >= agent.left + 0.02
    assert serving.cancelled(), "it serves no more"
