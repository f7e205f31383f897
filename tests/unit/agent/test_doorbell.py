# SPDX-License-Identifier: Apache-2.0
"""Requests of QPs by a program and to one, with a stand-in for it and for other agents."""

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
from mrc.agent import peers
from mrc.agent.peers import EndpointAddress, QpRequest, QpRequests
from mrc.enums import AgentKind
from mrc.errors import BusyError, ConnectError, MrcError, ProtocolError

ASKED = QpRequest(
    EndpointAddress(ip_address("fd00:a:1::1"), "0" * 32, 7),
    EndpointAddress(ip_address("fd00:a::1"), "1" * 32, 8),
    9,
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

    async def request_qp(local: object, host: str, port: int, asked: QpRequest) -> int:
        assert (local, host, port, asked) == (LOCAL, "h1", 4791, ASKED)
        answer = left.pop(0)
        if answer is None:
            await asyncio.Event().wait()
        if isinstance(answer, Exception):
            raise answer
        assert isinstance(answer, int)
        return answer

    monkeypatch.setattr(peers, "request_qp", request_qp)
    monkeypatch.setattr(peers, "_FIRST_PAUSE_SECONDS", 0)


async def test_ask__the_answer_of_a_busy_agent(monkeypatch: pytest.MonkeyPatch) -> None:
    answers(monkeypatch, BusyError("not now"), BusyError("not yet"), 0x123456)
    program: Any = Program()
    await QpRequests(program).ask(ASKED)
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
async def test_ask__fails(
    monkeypatch: pytest.MonkeyPatch, answer: Exception | None, reason: str
) -> None:
    answers(monkeypatch, answer)
    program: Any = Program()
    await QpRequests(program).ask(ASKED)
    assert program.sent == [] and program.failed == {9: reason}


async def test_ask__the_last_answer_counts_when_the_time_is_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The time ends in the middle of a try. The tries before have told why."""
    answers(monkeypatch, BusyError("h1: not yet"), None)
    program: Any = Program()
    await QpRequests(program).ask(ASKED)
    assert program.failed == {9: "h1: not yet"}


async def requested(requests: QpRequests, program: Program) -> tuple[asyncio.Task[int], int]:
    """A request, and the cookie under which the program was asked."""
    task = asyncio.create_task(requests.serve(ASKED))
    await asyncio.sleep(0)
    kind, value, cookie, body = program.sent[-1]
    assert (kind, value, body) == (AgentKind.PEER_REQUEST, 0, ASKED.body)
    return task, cookie


async def test_serve__each_gets_its_answer() -> None:
    program: Any = Program()
    requests = QpRequests(program)
    first, cookie = await requested(requests, program)
    second, other = await requested(requests, program)
    requests.admit(4, other)
    requests.admit(3, cookie)
    requests.admit(5, cookie)  # an answer too many
    requests.admit(5, 999)  # to no question
    assert (await first, await second) == (3, 4)
    requests.admit(6, cookie)


@pytest.mark.parametrize(
    ("answer", "error", "reason"),
    [
        (0, BusyError, "no QP number left"),
        (-errno.ENOENT, ConnectError, "no such endpoint"),
        (-errno.ENOSPC, ConnectError, "the most peers"),
    ],
)
async def test_serve__is_refused(answer: int, error: type[Exception], reason: str) -> None:
    program: Any = Program()
    requests = QpRequests(program)
    task, cookie = await requested(requests, program)
    requests.admit(answer, cookie)
    with pytest.raises(error, match=reason) as found:
        await task
    assert type(found.value) is error


async def test_serve__a_program_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "_ANSWER_SECONDS", 0.01)
    with pytest.raises(BusyError, match="does not answer its agent"):
        await QpRequests(Mock()).serve(ASKED)


async def test_serve__too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "_MOST_REQUESTS", 1)
    program: Any = Program()
    requests = QpRequests(program)
    task, cookie = await requested(requests, program)
    with pytest.raises(BusyError, match="too many endpoints"):
        await requests.serve(ASKED)
    requests.admit(3, cookie)
    assert await task == 3
    again, cookie = await requested(requests, program)  # there is room again
    requests.admit(4, cookie)
    assert await again == 4


@pytest.mark.parametrize("qpn", [1, 2, 1 << 24])
def test_admit__not_a_qpn(qpn: int) -> None:
    with pytest.raises(ProtocolError, match="not a QPN"):
        QpRequests(Mock()).admit(qpn, 1)
