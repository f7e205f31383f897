# SPDX-License-Identifier: Apache-2.0
"""What the end of a program's QP says when the peer's program has ended."""

from __future__ import annotations

import asyncio
from unittest.mock import Mock

from mrc.agent.end import GONE, ProgramEnd


def made(messages: Mock) -> ProgramEnd:
    end = ProgramEnd.__new__(ProgramEnd)
    end.peer_gone, end.channel, end.peer = asyncio.Event(), Mock(), Mock()
    end.dispatcher, end.immediates, end.messages, end._tell = Mock(), Mock(), messages, None
    return end


async def test_gone__the_program_hears_why_before_its_messages_fail() -> None:
    said = Mock()
    end = made(said.messages)
    end.on_peer_gone(said.tell)
    for _ in range(2):
        await end._on_message(GONE)
    calls = [name for name, _, _ in said.mock_calls]
    assert calls[0] == "tell"
    assert calls.count("tell") == 1
    assert "messages.fail" in calls


async def test_gone__before_the_program_was_told_that_the_qp_is_ready() -> None:
    said = Mock()
    end = made(said.messages)
    await end._on_message(GONE)
    end.on_peer_gone(said.tell)
    assert [name for name, _, _ in said.mock_calls].count("tell") == 1
