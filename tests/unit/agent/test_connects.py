# SPDX-License-Identifier: Apache-2.0
"""What a program is told of a connect that fails, and by the end of its QP."""

from __future__ import annotations

import asyncio
import errno
from typing import Any
from unittest.mock import AsyncMock, MagicMock, Mock

import pytest
from slowness import PATIENCE

from mrc.agent import connects
from mrc.agent.connects import Connects, ProgramQP
from mrc.agent.peers import QpGoneError
from mrc.connect.connect import Local, Terms
from mrc.connect.oob import GONE, Channel
from mrc.enums import AgentKind
from mrc.errors import (
    ArgumentError,
    BusyError,
    ConnectError,
    ConnectRefusedError,
    Kind,
    PeerGoneError,
    ProtocolError,
)
from mrc.tasks import cancelled


@pytest.mark.parametrize("known", [True, False], ids=["the peer", "a stranger"])
@pytest.mark.parametrize("kind", [Kind.ENDED, Kind.OTHER])
async def test_accept__of_a_peer_whose_program_ends_meanwhile(
    monkeypatch: pytest.MonkeyPatch, known: bool, kind: Kind
) -> None:
    """The two engines may talk before the agents are through, so the program waits for it."""

    async def establish(local: Local, channel: Channel, terms: Terms, *, first: bool) -> None:
        if known:
            terms.check("h1", [], "h1")
        raise ConnectRefusedError("it refused", "it has ended", kind)

    monkeypatch.setattr(connects, "establish", establish)
    program = Mock()
    ours: Any = Connects(program, Mock(), Mock())
    ours._terms_of = lambda _: (Mock(), "h1", Terms({}, Mock(), Mock(), Mock()))
    with pytest.raises(ConnectRefusedError):
        await ours.accept(Mock(), Mock(qpn=7))
    told = [call.args for call in program.send.mock_calls]
    assert told == ([(AgentKind.GONE, 7)] if known and kind is Kind.ENDED else [])


def waiting(monkeypatch: pytest.MonkeyPatch, *answers: Exception | None) -> tuple[Any, Mock]:
    """A program whose QPs wait for a peer that dials, and whose agent answers so when asked."""
    monkeypatch.setattr(connects, "_ASK_SECONDS", 0.001)
    monkeypatch.setattr(connects, "ask", AsyncMock(side_effect=answers))
    program, host = Mock(), Mock()
    host.local.config.timeouts.exchange = PATIENCE
    program.address_of.return_value = (Mock(), "h1", 4791)
    return Connects(program, host, Mock()), program


async def test_expect__fails_as_soon_as_the_peer_says_that_its_qp_never_comes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answers = (None, BusyError("young"), TimeoutError(), QpGoneError("it has ended"))
    ours, program = waiting(monkeypatch, *answers)
    await ours._expect(Mock(qpn=7))
    program.fail.assert_called_once_with(7, "it has ended")
    assert ours.fate(7, {}) == "it has ended" and ours.fate(8, {}) == ""


async def test_fate__of_a_qp_that_belongs_to_another(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, program = waiting(monkeypatch)
    program.spawn.side_effect = lambda work: work.close()
    ours.connect(Mock(qpn=7, dials=True, admit=Mock(side_effect=[ConnectError("of QP 9"), None])))
    assert [ours.fate(7, {}), ours.fate(7, {})] == ["of QP 9", ""]


async def test_accept__of_a_qp_that_the_program_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    refused = AsyncMock(side_effect=ArgumentError("QP to INIT: an argument is out of range"))
    monkeypatch.setattr(connects, "establish", refused)
    ours, _ = waiting(monkeypatch)
    ours._terms_of = lambda _: (Mock(), "h1", Terms({}, Mock(), Mock(), Mock()))
    with pytest.raises(ConnectError, match="QP 0x7 has failed before it was connected: QP to INIT"):
        await ours.accept(Mock(), Mock(qpn=7))


# ---- The end of a QP ----------------------------------------------------------------------------


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
