# SPDX-License-Identifier: Apache-2.0
"""What the end of a program's QP says when the peer's program has ended."""

from __future__ import annotations

import asyncio
from unittest.mock import Mock

from mrc.agent.end import GONE, ProgramEnd


async def test_gone__the_program_hears_why_before_its_messages_fail() -> None:
    said = Mock()
    end = ProgramEnd.__new__(ProgramEnd)
    end.peer_gone, end.channel, end.peer = asyncio.Event(), Mock(), Mock()
    end.dispatcher, end.immediates, end.messages = Mock(), Mock(), said.messages
    end.on_peer_gone = said.on_peer_gone
    for _ in range(2):
        await end._on_message(GONE)
    calls = [name for name, _, _ in said.mock_calls]
    assert calls[0] == "on_peer_gone"
    assert calls.count("on_peer_gone") == 1
    assert "messages.fail" in calls
