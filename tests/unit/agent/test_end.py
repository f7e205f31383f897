# SPDX-License-Identifier: Apache-2.0
"""What the end of a program's QP says when the peer's program has ended."""

from __future__ import annotations

import asyncio
import errno
from typing import Any
from unittest.mock import AsyncMock, MagicMock, Mock

import pytest

from mrc.agent.connects import ProgramQP
from mrc.connect.oob import GONE
from mrc.errors import PeerGoneError, ProtocolError
from mrc.tasks import cancelled


def made(messages: Mock) -> Any:
    """A ProgramQP whose other parts are mocks."""
    end: Any = ProgramQP.__new__(ProgramQP)
    end._peer_gone, end._over, end._channel, end._peer = asyncio.Event(), Mock(), Mock(), Mock()
    end._dispatcher, end._immediates, end._messages, end._tell = Mock(), Mock(), messages, None
    end._peer_reason, end._failure = "", None
    end._queue = Mock(qpn=7, places=Mock(taken=0, until_free=AsyncMock()))
    end._closer = end._status = None
    end.query, messages.until_idle = AsyncMock(), AsyncMock()
    end.query.return_value.planes = ()
    return end


async def test_gone__the_program_hears_why_before_its_messages_fail() -> None:
    said = Mock()
    end = made(said.messages)
    end.on_peer_gone(said.tell)
    for _ in range(2):
        await end._on_message({"type": GONE, "reason": "its disk is full"})
    calls = [name for name, _, _ in said.mock_calls if name != "messages.until_idle"]
    assert calls[0] == "tell"
    said.tell.assert_called_once_with("its disk is full")
    assert "messages.fail" in calls


@pytest.mark.parametrize("kind", [GONE, "refuse"])
async def test_gone__the_peers_program_has_just_ended(kind: str) -> None:
    """Also when its agent was still connecting: that is no reason of its own."""
    said = Mock()
    end = made(said.messages)
    end.on_peer_gone(said.tell)
    await end._on_message({"type": kind, "reason": "in any words", "kind": "ended"})
    said.tell.assert_called_once_with("")


async def test_gone__before_the_program_was_told_that_the_qp_is_ready() -> None:
    said = Mock()
    end = made(said.messages)
    await end._on_message({"type": GONE})
    end.on_peer_gone(said.tell)
    calls = [name for name, _, _ in said.mock_calls if name != "messages.until_idle"]
    assert calls == ["tell", "messages.fail"], "the program hears why before its messages fail"


async def test_lost__a_peers_agent_that_breaks_the_protocol_is_not_looked_for() -> None:
    end = made(Mock())
    end.on_hangup, tell = Mock(), Mock()
    end.on_peer_gone(tell)
    end._bye_ok, end._joined = asyncio.Event(), asyncio.Event()
    end._channel.receive = AsyncMock(side_effect=ProtocolError("no frame"))
    await end._watch()
    end.on_hangup.assert_not_called()
    tell.assert_called_once_with("no frame")
    assert end._peer_gone.is_set()


async def test_rejoin__leaves_one_task_however_often() -> None:
    end = made(Mock())
    end._path_mtu = end._window = 1024
    end._watcher = end._mtu_watcher = None
    end._bye_ok, end._joined = asyncio.Event(), asyncio.Event()
    before = asyncio.all_tasks()
    for _ in range(2):
        end.rejoin(Mock(receive=AsyncMock(side_effect=asyncio.Event().wait)))
        await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert end._watcher is not None
    assert asyncio.all_tasks() - before == {end._watcher}
    await cancelled(end._watcher)


async def test_lost__the_program_here_has_ended_meanwhile() -> None:
    """Nobody keeps this end, so nobody looks for the peer's agent."""
    parts: list[Any] = [MagicMock() for _ in range(9)]
    parts[1].sq_depth = 8
    end = ProgramQP(Mock(), *parts)
    parts[3].receive = AsyncMock(side_effect=PeerGoneError("closed"))
    await end._watch()
    assert not end.joined and not end._peer_gone.is_set()


async def test_lost__the_peers_agent_is_looked_for_after_any_end_of_tcp() -> None:
    for error in (PeerGoneError("closed"), TimeoutError(errno.ETIMEDOUT, "timed out")):
        end = made(Mock())
        end.on_hangup = Mock()
        end._bye_ok, end._joined = asyncio.Event(), asyncio.Event()
        end._joined.set()
        end._channel.receive = AsyncMock(side_effect=error)
        await end._watch()
        end.on_hangup.assert_called_once_with()
        assert not end.joined
