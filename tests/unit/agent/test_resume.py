# SPDX-License-Identifier: Apache-2.0
"""What an agent answers about a QP that it does not know."""

from __future__ import annotations

import asyncio
from unittest.mock import AsyncMock, Mock

import pytest

from mrc.agent.agent import AgentListener
from mrc.errors import ConnectError


def asked(age: float) -> tuple[AgentListener, Mock]:
    """An agent of this age in seconds, and the connection of another one, which has sent resume."""
    listener = AgentListener.__new__(AgentListener)
    listener.since = asyncio.get_running_loop().time() - age
    listener.program_of, listener.has_ended = Mock(return_value=None), Mock(return_value=False)
    return listener, Mock(receive=AsyncMock(), send=AsyncMock(), close=AsyncMock())


async def test_resume__an_agent_that_started_just_now_does_not_know() -> None:
    listener, channel = asked(age=5)
    with pytest.raises(ConnectError, match="no program of this host has the QP"):
        await listener._resume(channel, {"to": 6})
    channel.send.assert_not_awaited()


@pytest.mark.parametrize(("age", "gone"), [(0.5, False), (5, True)])
async def test_ask__about_a_qp_that_no_program_has(age: float, gone: bool) -> None:
    listener, channel = asked(age)
    channel.receive.return_value = {"to": 6}
    await listener._answer_ask(channel)
    (told,) = channel.send.await_args_list
    assert ("no program of this host has the QP" in told.kwargs.get("gone", "")) == gone


async def test_ask__about_a_qp_that_a_program_has() -> None:
    listener, channel = asked(age=5)
    channel.receive.return_value = {"to": 6}
    listener.program_of = Mock()
    listener.program_of.return_value.connects.fate.side_effect = ["", "it has failed"]
    for expected in ({}, {"gone": "it has failed"}):
        await listener._answer_ask(channel)
        channel.send.assert_awaited_with("ask", **expected)


async def test_resume__a_program_that_ended_before_the_agent_started() -> None:
    listener, channel = asked(age=31)
    assert await listener._resume(channel, {"to": 6}) is None
    channel.send.assert_awaited_once_with("resume", gone=True)
