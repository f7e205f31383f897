# SPDX-License-Identifier: Apache-2.0
"""Knocks of a program and at a program, with a stand-in for the program and for other agents."""

from __future__ import annotations

import asyncio
import errno
from dataclasses import dataclass, field
from ipaddress import ip_address
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from mrc import ContextConfig, Timeouts
from mrc.agent import doorbell, reach
from mrc.agent.doorbell import Doorbell
from mrc.agent.peers import Knock, Point
from mrc.enums import AgentKind
from mrc.errors import BusyError, ConnectError, MrcError, ProtocolError

ASKED = Knock(
    Point(ip_address("fd00:a:1::1"), "0" * 32, 7), Point(ip_address("fd00:a::1"), "1" * 32, 8), 9
)
LOCAL: Any = SimpleNamespace(config=ContextConfig(timeouts=Timeouts(exchange=0.05)))


@dataclass
class Program:
    """What it was sent, and which of its QPs have failed."""

    sent: list[tuple[AgentKind, int, int, bytes]] = field(default_factory=list)
    failed: dict[int, str] = field(default_factory=dict)

    def address_of(self, gid: object) -> tuple[Any, str, int]:
        assert gid == ASKED.to.gid
        return LOCAL, "h1", 4791

    def send(self, kind: AgentKind, value: int, cookie: int, body: bytes) -> None:
        self.sent.append((kind, value, cookie, body))

    def fail(self, qpn: int, reason: str) -> None:
        self.failed[qpn] = reason


def answers(monkeypatch: pytest.MonkeyPatch, *answers: int | Exception | None) -> None:
    """What other agents answer; None: nothing."""
    left = list(answers)

    async def knock(local: object, host: str, port: int, asked: Knock) -> int:
        assert (local, host, port, asked) == (LOCAL, "h1", 4791, ASKED)
        answer = left.pop(0)
        if answer is None:
            await asyncio.Event().wait()
        if isinstance(answer, Exception):
            raise answer
        assert isinstance(answer, int)
        return answer

    monkeypatch.setattr(doorbell, "knock", knock)
    monkeypatch.setattr(reach, "_FIRST_PAUSE_SECONDS", 0)


async def test_ring__the_answer_of_a_busy_agent(monkeypatch: pytest.MonkeyPatch) -> None:
    answers(monkeypatch, BusyError("not now"), BusyError("not yet"), 0x123456)
    program: Any = Program()
    await Doorbell(program).ring(ASKED)
    assert program.sent == [(AgentKind.ADMITTED, 9, 0, bytes([0x56, 0x34, 0x12, 0]))]
    assert program.failed == {}


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (None, "h1: no answer in 0.05 s"),
        (ConnectError("h1: refused"), "h1: refused"),
        (MrcError("a wrong answer"), "a wrong answer"),
        (OSError(errno.EPIPE, "broken"), "[Errno 32] broken"),
    ],
)
async def test_ring__fails(
    monkeypatch: pytest.MonkeyPatch, answer: Exception | None, reason: str
) -> None:
    answers(monkeypatch, answer)
    program: Any = Program()
    await Doorbell(program).ring(ASKED)
    assert program.sent == [] and program.failed == {9: reason}


async def test_ring__the_last_answer_counts_when_the_time_is_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The time ends in the middle of a try. The tries before have told why."""
    answers(monkeypatch, BusyError("h1: not yet"), None)
    program: Any = Program()
    await Doorbell(program).ring(ASKED)
    assert program.failed == {9: "h1: not yet"}


async def visiting(bell: Doorbell, program: Program) -> tuple[asyncio.Task[int], int]:
    """A visit, and the cookie under which the program was asked."""
    task = asyncio.create_task(bell.visit(ASKED))
    await asyncio.sleep(0)
    kind, value, cookie, body = program.sent[-1]
    assert (kind, value, body) == (AgentKind.VISIT, 0, ASKED.body)
    return task, cookie


async def test_visit__each_gets_its_answer() -> None:
    program: Any = Program()
    bell = Doorbell(program)
    first, cookie = await visiting(bell, program)
    second, other = await visiting(bell, program)
    bell.admit(4, other)
    bell.admit(3, cookie)
    bell.admit(5, cookie)  # an answer too many
    bell.admit(5, 999)  # to no question
    assert (await first, await second) == (3, 4)
    bell.admit(6, cookie)


@pytest.mark.parametrize(
    ("answer", "error", "reason"),
    [
        (0, BusyError, "no QP number left"),
        (-errno.ENOENT, ConnectError, "no such endpoint"),
        (-errno.ENOSPC, ConnectError, "the most peers"),
    ],
)
async def test_visit__is_refused(answer: int, error: type[Exception], reason: str) -> None:
    program: Any = Program()
    bell = Doorbell(program)
    task, cookie = await visiting(bell, program)
    bell.admit(answer, cookie)
    with pytest.raises(error, match=reason) as found:
        await task
    assert type(found.value) is error


async def test_visit__a_program_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doorbell, "_ANSWER_SECONDS", 0.01)
    with pytest.raises(BusyError, match="does not answer its agent"):
        await Doorbell(Mock()).visit(ASKED)


async def test_visit__too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doorbell, "_MOST_VISITS", 1)
    program: Any = Program()
    bell = Doorbell(program)
    task, cookie = await visiting(bell, program)
    with pytest.raises(BusyError, match="too many endpoints"):
        await bell.visit(ASKED)
    bell.admit(3, cookie)
    assert await task == 3
    again, cookie = await visiting(bell, program)  # there is room again
    bell.admit(4, cookie)
    assert await again == 4


@pytest.mark.parametrize("qpn", [1, 2, 1 << 24])
def test_admit__not_a_qpn(qpn: int) -> None:
    with pytest.raises(ProtocolError, match="not a QPN"):
        Doorbell(Mock()).admit(qpn, 1)
