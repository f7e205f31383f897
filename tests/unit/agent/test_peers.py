# SPDX-License-Identifier: Apache-2.0
"""QPs and what agents ask one another about them: connects, requests of QPs, resume states."""

from __future__ import annotations

import asyncio
import errno
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from ipaddress import ip_address
from socket import IPPROTO_TCP, TCP_USER_TIMEOUT
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import AsyncMock, MagicMock, Mock

import pytest
from slowness import PATIENCE

from mrc import ContextConfig
from mrc.agent import peers
from mrc.agent import program as program_module
from mrc.agent.parameters import taken
from mrc.agent.peers import (
    EndpointAddress,
    QpGoneError,
    QpGrant,
    QpRequest,
    QpRequests,
    ask,
    described,
    qp_request_in,
    qp_request_of,
    repeat,
    request_qp,
    resume,
)
from mrc.agent.program import Connects, ProgramQP, unpack_resume
from mrc.agent.steering import AgentKind, read_struct
from mrc.config import Timeouts
from mrc.connect.connect import Terms
from mrc.connect.oob import GONE, Channel
from mrc.errors import (
    ArgumentError,
    BusyError,
    ConnectError,
    ConnectRefusedError,
    ConnectTimeoutError,
    Kind,
    MrcError,
    PeerGoneError,
    ProtocolError,
)
from mrc.tasks import cancelled

TO = EndpointAddress(ip_address("fd00:a:1::1"), "0123456789abcdef" * 2, 0x123456)
BY = EndpointAddress(ip_address("10.0.0.2"), "f" * 32, 3)
ASKED = QpRequest(TO, BY, 0xFFFFFF)


def test_message__there_and_back() -> None:
    assert qp_request_in({"type": "knock", **ASKED.message}) == ASKED


def test_body__there_and_back() -> None:
    fields, rest = read_struct("mrc_agent_qp_request", ASKED.body)
    assert qp_request_of(fields) == ASKED
    assert rest == b""


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("qpn",), 2), (("qpn",), 1 << 24), (("qpn",), "7"), (("to", "number"), 0),
        (("to", "number"), -1), (("to", "token"), "0" * 31), (("to", "token"), "G" * 32),
        (("to", "token"), "0" * 32 + "\n0"), (("by", "gid"), "nowhere"), (("by", "gid"), 7),
        (("by",), None),
    ],
)  # fmt: skip
def test_knock_in__refuses(place: tuple[str, ...], value: object) -> None:
    message: dict[str, Any] = ASKED.message
    inner = message
    for name in place[:-1]:
        inner = inner[name]
    inner[place[-1]] = value
    with pytest.raises(ProtocolError, match="a wrong knock"):
        qp_request_in(message)


def test_knock_of__refuses_what_no_program_may_write() -> None:
    fields, _ = read_struct("mrc_agent_qp_request", bytes(len(ASKED.body)))
    with pytest.raises(ProtocolError, match="a wrong knock"):
        qp_request_of(fields)


def test_admitted_in__a_qpn() -> None:
    assert taken({"type": "knock", "qpn": 3}, QpGrant, "").qpn == 3
    for wrong in ({}, {"qpn": 0}, {"qpn": 1 << 24}, {"qpn": None}):
        with pytest.raises(ProtocolError, match="a wrong answer to a knock"):
            taken(wrong, QpGrant, "a wrong answer to a knock")


# ---- Between agents, over loopback --------------------------------------------------------------

HOST = "127.0.0.1"
AT_LOOPBACK = QpRequest(
    EndpointAddress(ip_address(HOST), "0" * 32, 7),
    EndpointAddress(ip_address(HOST), "1" * 32, 8),
    9,
)
PARAMETERS: Any = SimpleNamespace(private={"from": 5, "to": 6}, dest_qpn=6)
LOCAL: Any = SimpleNamespace(host=None, guard=None, source=None)


@asynccontextmanager
async def peer(answer: Callable[[Channel], Awaitable[None]]) -> AsyncIterator[int]:
    """The port of an agent that answers so, and then waits for the end of the connection."""
    ended: asyncio.Queue[None] = asyncio.Queue()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await answer(Channel(reader, writer))
        await reader.read()
        writer.close()
        ended.put_nowait(None)

    server = await asyncio.start_server(serve, HOST, 0)
    async with server, asyncio.timeout(PATIENCE):
        yield server.sockets[0].getsockname()[1]
        await ended.get()


@pytest.mark.parametrize(
    ("error", "advises"),
    [
        (ConnectRefusedError("start both with mrc run --rc, or neither"), False),
        (ConnectError("QP 7 belongs to QP 8"), False),
        (BusyError("not now"), False),
        (OSError("broken"), False),
        (ConnectTimeoutError("no answer"), True),
    ],
)
def test_described__advice_only_where_nobody_answered(error: Exception, advises: bool) -> None:
    assert described(error).endswith("; does mrc agent run there?") == advises
    assert described(away()) == "no program listens; does mrc agent run there?"


def away() -> ConnectError:
    """What `dial` raises while no agent runs there."""
    error = ConnectError("no program listens")
    error.__cause__ = ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused")
    return error


def attempts(*answers: MrcError | int) -> Callable[[], Awaitable[int]]:
    left = list(answers)

    async def attempt() -> int:
        answer = left.pop(0)
        if isinstance(answer, MrcError):
            raise answer
        return answer

    return attempt


async def test_repeat__an_agent_that_starts_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "_FIRST_PAUSE_SECONDS", 0)
    answers = attempts(away(), away(), PeerGoneError("the peer closed"), BusyError("young"), 7)
    assert await repeat(answers, PATIENCE, asyncio.Semaphore(1)) == 7


async def test_repeat__no_longer_than_its_time() -> None:
    with pytest.raises(ConnectError, match="no program listens"):
        await repeat(attempts(away(), 7), 0.0)


async def test_repeat__a_refusal_is_final() -> None:
    with pytest.raises(ConnectRefusedError, match="not you"):
        await repeat(attempts(ConnectRefusedError("not you"), 7), PATIENCE)


async def test_request_qp__admitted() -> None:
    async def answer(channel: Channel) -> None:
        assert qp_request_in(await channel.receive()) == AT_LOOPBACK
        await channel.send("knock", qpn=0x123456)

    async with peer(answer) as port:
        assert await request_qp(LOCAL, HOST, port, AT_LOOPBACK) == 0x123456


@pytest.mark.parametrize(
    ("kind", "error"), [(Kind.BUSY, BusyError), (Kind.OTHER, ConnectRefusedError)]
)
async def test_request_qp__refused(kind: Kind, error: type[Exception]) -> None:
    async def answer(channel: Channel) -> None:
        await channel.receive()
        await channel.refuse("not you", kind)

    async with peer(answer) as port:
        with pytest.raises(error, match=f"{HOST}: TCP port {port}: .* not you") as found:
            await request_qp(LOCAL, HOST, port, AT_LOOPBACK)
        assert type(found.value) is error


@pytest.mark.parametrize(
    ("asks", "said", "error"),
    [
        (request_qp, {"qpn": 0}, ProtocolError("a wrong answer to a knock")),
        (resume, {"from": 7, "to": 5}, ProtocolError("means another QP")),
        (resume, {"gone": True}, QpGoneError("QP 0x6 has ended")),
    ],
)
async def test_answer__that_is_wrong_or_of_a_qp_that_has_ended(
    asks: Callable[..., Awaitable[object]], said: dict[str, Any], error: MrcError
) -> None:
    kind, words = ("resume", PARAMETERS) if asks is resume else ("knock", AT_LOOPBACK)

    async def answer(channel: Channel) -> None:
        await channel.receive()
        await channel.send(kind, **said)

    async with peer(answer) as port:
        with pytest.raises(type(error), match=str(error)):
            await asks(LOCAL, HOST, port, words)


async def test_ask__says_why_the_qp_never_comes() -> None:
    answers: list[dict[str, Any]] = [{}, {"gone": "no program\nhas it"}]

    async def answer(channel: Channel) -> None:
        assert await channel.receive() == {"type": "ask", "from": 5, "to": 6}
        await channel.send("ask", **answers.pop(0))

    async with peer(answer) as port:
        await ask(LOCAL, HOST, port, PARAMETERS)
    async with peer(answer) as port:
        with pytest.raises(QpGoneError) as found:
            await ask(LOCAL, HOST, port, PARAMETERS)
        assert str(found.value) == f"{HOST}: TCP port {port}: no program\\nhas it"


async def test_resume__the_connection_stays() -> None:
    async def answer(channel: Channel) -> None:
        message = await channel.receive()
        assert (message["type"], message["from"], message["to"]) == ("resume", 5, 6)
        await channel.send("resume", **{"from": 6, "to": 5})
        await channel.send("gone")

    async with peer(answer) as port:
        channel = await resume(LOCAL, HOST, port, PARAMETERS)
        tcp = channel._writer.get_extra_info("socket")
        assert tcp.getsockopt(IPPROTO_TCP, TCP_USER_TIMEOUT) == 0, "its silence is no error"
        assert (await channel.receive())["type"] == "gone"
        channel.abort()


# ---- By a program and to one, with stand-ins for it and for other agents ------------------------

BETWEEN_HOSTS = QpRequest(
    EndpointAddress(ip_address("fd00:a:1::1"), "0" * 32, 7),
    EndpointAddress(ip_address("fd00:a::1"), "1" * 32, 8),
    9,
)
CONFIGURED: Any = SimpleNamespace(config=ContextConfig(timeouts=Timeouts(exchange=PATIENCE)))


@dataclass
class Program:
    """What it was sent, and which of its QPs have failed."""

    sent: list[tuple[AgentKind, int, int, bytes]] = field(default_factory=list)
    failed: dict[int, str] = field(default_factory=dict)

    def address_of(self, gid: object) -> tuple[Any, str, int]:
        assert gid == BETWEEN_HOSTS.to.gid
        return CONFIGURED, "h1", 4791

    def send(self, kind: AgentKind, value: int, cookie: int, body: bytes) -> None:
        self.sent.append((kind, value, cookie, body))

    def fail(self, qpn: int, reason: str) -> None:
        self.failed[qpn] = reason


def answers(monkeypatch: pytest.MonkeyPatch, *answers: int | Exception | None) -> None:
    """What other agents answer; None: nothing, until the time is over."""
    left = list(answers)
    if None in answers:
        brief = ContextConfig(timeouts=Timeouts(exchange=0.05))
        monkeypatch.setattr(CONFIGURED, "config", brief)

    async def request_qp(local: object, host: str, port: int, asked: QpRequest) -> int:
        assert (local, host, port, asked) == (CONFIGURED, "h1", 4791, BETWEEN_HOSTS)
        answer = left.pop(0)
        if answer is None:
            await asyncio.Event().wait()
        if isinstance(answer, Exception):
            raise answer
        assert isinstance(answer, int)
        return answer

    monkeypatch.setattr(peers, "request_qp", request_qp)
    monkeypatch.setattr(peers, "_FIRST_PAUSE_SECONDS", 0)


async def asked() -> Program:
    """A program that has asked for a QP of another host."""
    program: Any = Program()
    await QpRequests(program).ask(BETWEEN_HOSTS)
    return cast(Program, program)


async def test_ask__the_answer_of_a_busy_agent(monkeypatch: pytest.MonkeyPatch) -> None:
    answers(monkeypatch, BusyError("not now"), BusyError("not yet"), 0x123456)
    program = await asked()
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
    program = await asked()
    assert program.sent == [] and program.failed == {9: reason}


async def test_ask__the_last_answer_counts_when_the_time_is_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The time ends in the middle of a try. The tries before have told why."""
    answers(monkeypatch, BusyError("h1: not yet"), None)
    assert (await asked()).failed == {9: "h1: not yet"}


async def requested(requests: QpRequests, program: Program) -> tuple[asyncio.Task[int], int]:
    """A request, and the cookie under which the program was asked."""
    task = asyncio.create_task(requests.serve(BETWEEN_HOSTS))
    await asyncio.sleep(0)
    kind, value, cookie, body = program.sent[-1]
    assert (kind, value, body) == (AgentKind.PEER_REQUEST, 0, BETWEEN_HOSTS.body)
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
        await QpRequests(Mock()).serve(BETWEEN_HOSTS)


async def test_serve__too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "_MOST_REQUESTS", 1)
    program: Any = Program()
    requests = QpRequests(program)
    task, cookie = await requested(requests, program)
    with pytest.raises(BusyError, match="too many endpoints"):
        await requests.serve(BETWEEN_HOSTS)
    requests.admit(3, cookie)
    assert await task == 3
    again, cookie = await requested(requests, program)  # there is room again
    requests.admit(4, cookie)
    assert await again == 4


@pytest.mark.parametrize("qpn", [1, 2, 1 << 24])
def test_admit__not_a_qpn(qpn: int) -> None:
    with pytest.raises(ProtocolError, match="not a QPN"):
        QpRequests(Mock()).admit(qpn, 1)


# ---- Connects -----------------------------------------------------------------------------------


@pytest.mark.parametrize("known", [True, False], ids=["the peer", "a stranger"])
@pytest.mark.parametrize("kind", [Kind.ENDED, Kind.OTHER])
async def test_accept__of_a_peer_whose_program_ends_meanwhile(known: bool, kind: Kind) -> None:
    """The two engines may talk before the agents are through, so the program waits for it."""

    async def establish(channel: Channel, terms: Terms, *, first: bool) -> None:
        if known:
            terms.check("h1", [], "h1")
        raise ConnectRefusedError("it refused", "it has ended", kind)

    program = Mock()
    ours: Any = Connects(program, Mock(), Mock())
    local = Mock(establish=establish)
    ours._terms_of = lambda _: (local, "h1", Terms({}, Mock(), Mock(), Mock()))
    with pytest.raises(ConnectRefusedError):
        await ours.accept(Mock(), Mock(qpn=7))
    told = [call.args for call in program.send.mock_calls]
    assert told == ([(AgentKind.GONE, 7)] if known and kind is Kind.ENDED else [])


def waiting(monkeypatch: pytest.MonkeyPatch, *answers: Exception | None) -> tuple[Any, Mock]:
    """A program whose QPs wait for a peer that dials, and whose agent answers so when asked."""
    monkeypatch.setattr(program_module, "_ASK_SECONDS", 0.001)
    monkeypatch.setattr(program_module, "ask", AsyncMock(side_effect=answers))
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
    ours.connect(Mock(qpn=7, dials=True, admit=Mock(side_effect=[ConnectError("of QP 9"), True])))
    assert [ours.fate(7, {}), ours.fate(7, {})] == ["of QP 9", ""]


async def test_accept__of_a_qp_that_the_program_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    refused = AsyncMock(side_effect=ArgumentError("QP to INIT: an argument is out of range"))
    ours, _ = waiting(monkeypatch)
    ours._terms_of = lambda _: (Mock(establish=refused), "h1", Terms({}, Mock(), Mock(), Mock()))
    with pytest.raises(ConnectError, match="QP 0x7 has failed before it was connected: QP to INIT"):
        await ours.accept(Mock(), Mock(qpn=7))


# ---- The end of a QP ----------------------------------------------------------------------------


def made(messages: Mock) -> Any:
    """A ProgramQP whose other parts are mocks."""
    end: Any = ProgramQP.__new__(ProgramQP)
    end._peer_gone, end._over, end._peer = False, Mock(), Mock(host="h1")
    end._ended = asyncio.get_running_loop().create_future()
    end._channel = Mock(end_in=Channel.end_in, called="h1")
    end._dispatcher, end._immediates, end._messages, end._tell = Mock(), Mock(), messages, None
    end._peer_reason, end._failure = "", None
    end._queue, end._sends = Mock(qpn=7), Mock(taken=0, until_idle=AsyncMock())
    end._closer = end._status = None
    end.info, messages.until_idle = AsyncMock(), AsyncMock()
    end.info.return_value.planes = ()
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
    assert end._peer_gone


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
    end = ProgramQP(Mock(), *parts)
    parts[3].receive = AsyncMock(side_effect=PeerGoneError("closed"))
    await end._watch()
    assert not end.joined and not end._peer_gone


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


# ---- Resume states ------------------------------------------------------------------------------


@pytest.mark.parametrize(("packed", "why"), [
    (b"no zlib", "incorrect header"),
    (zlib.compress(b"[]"), "not a JSON object"),
    (zlib.compress(b"[" * 100_000), "not JSON"),
    (zlib.compress(b'{"evs": [' + b"0," * (4 << 20)), "more than 1048576 bytes"),
])  # fmt: skip
def test_unpack_resume__of_a_program_that_means_harm(packed: bytes, why: str) -> None:
    """A few kilobytes do not become megabytes that the agent reads."""
    assert len(packed) < 10_000
    with pytest.raises(ProtocolError, match=f"a program kept a wrong note: .*({why})"):
        unpack_resume(packed)
