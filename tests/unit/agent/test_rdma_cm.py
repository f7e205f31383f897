# SPDX-License-Identifier: Apache-2.0
"""Connections of rdma_cm between two agents, whose channels are queues here."""

from __future__ import annotations

import asyncio
import errno
import random
import socket
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from ipaddress import ip_address
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec import structs

from mrc import ContextConfig, Timeouts
from mrc.agent import rdma_cm
from mrc.agent.rdma_cm import (
    CM,
    CM_END,
    CmAddress,
    CmAnswer,
    CmDisconnect,
    CmEnd,
    CmParams,
    CmRequest,
    CmSession,
    Phase,
    RdmaCm,
    Reason,
    message_of,
)
from mrc.agent.socket import Credentials
from mrc.agent.steering import MAX_FRAME, prepare, read_struct, unpack
from mrc.enums import CmEvent
from mrc.errors import ConnectError, PeerGoneError, ProtocolError

HERE, THERE = ip_address("10.0.0.1"), ip_address("10.0.0.2")
CALLER = CmAddress(THERE, 40000, 77, "ab" * 16)
CALLED = CmAddress(THERE, 7471, 78, "cd" * 16)
REQUEST = CmRequest(HERE, 7471, CALLER, CmParams(private="0102"))


@dataclass
class Channel:
    """What the peer's agent says, and what it was told. None: it goes."""

    says: list[dict[str, Any] | None]
    told: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    closed: bool = False
    _more: asyncio.Event = field(default_factory=asyncio.Event)

    def say(self, message: dict[str, Any] | None) -> None:
        self.says.append(message)
        self._more.set()

    async def send(self, kind: str, **fields: Any) -> None:
        self.told.append((kind, fields))

    async def receive(self) -> dict[str, Any]:
        while not self.says:
            self._more.clear()
            await self._more.wait()
        message = self.says.pop(0)
        if message is None:
            raise PeerGoneError("gone")
        return message

    async def expect(self, kind: str) -> dict[str, Any]:
        return await self.receive()

    async def during(self, work: Coroutine[Any, Any, Any]) -> Any:
        running = asyncio.create_task(work)
        ahead = asyncio.create_task(self.receive())
        await asyncio.wait((running, ahead), return_when=asyncio.FIRST_COMPLETED)
        if not ahead.done():
            ahead.cancel()
            return await running
        try:
            self.says.insert(0, ahead.result())
        except PeerGoneError:
            running.cancel()
            raise
        return await running

    async def close(self) -> None:
        self.closed = True


class Host:
    """A host whose programs are sockets here."""

    def __init__(self) -> None:
        port = SimpleNamespace(loopback=False, address=SimpleNamespace(ip=HERE))
        self.port = 4791
        self.dialling = asyncio.Semaphore(4)
        self.local: Any = SwitchLocal(
            config=ContextConfig(timeouts=Timeouts(exchange=0.2)), host=None,
            links=SimpleNamespace(ports=[port, None]), rng=random.Random(1),
        )  # fmt: skip
        self.rdma_cm = RdmaCm(self)  # type: ignore[arg-type]
        self.ours, self.program = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        prepare(self.ours)
        self.session = CmSession(self.rdma_cm, self.ours, Credentials(1, 0, 0))
        self.told: list[Any] = []

    def events(self) -> list[CmEvent]:
        """Of the program, since the last call."""
        self.program.setblocking(False)
        found: list[CmEvent] = []
        while True:
            try:
                frame = unpack(self.program.recv(MAX_FRAME))
            except BlockingIOError:
                return found
            self.told.append(read_struct("mrc_agent_cm", frame.body)[0])
            found.append(CmEvent(self.told[-1].event))

    def bound(self, number: int = 1, port: int = 0) -> CmEnd:
        bound = self.rdma_cm.ports.bind(None, port)
        return CmEnd(number, bound, self.session._tell)

    def listening(self, backlog: int = 4) -> CmEnd:
        end = self.bound(port=7471)
        assert end.bound is not None
        self.rdma_cm.ports.listen(end.bound, backlog)
        self.rdma_cm.listen(end, self.session)
        return end

    def end(self, number: int) -> CmEnd:
        """One that a request has made."""
        return self.session._ends[number]


class SwitchLocal(SimpleNamespace):
    """A Local without what nobody asks here."""


@pytest.fixture
async def host(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Host]:
    monkeypatch.setattr(structs, "replace", lambda local, **fields: local)
    made = Host()
    yield made
    await made.rdma_cm.close()
    made.ours.close()
    made.program.close()


def reaches(monkeypatch: pytest.MonkeyPatch, *found: Channel | Exception) -> None:
    """What dials lead to; the last one again."""
    left = list(found)

    @asynccontextmanager
    async def agent_channel(local: Any, peer: str, port: int) -> AsyncIterator[Channel]:
        assert (peer, port) == (str(THERE), 4791)
        each = left.pop(0) if len(left) > 1 else left[0]
        if isinstance(each, Exception):
            raise each
        yield each

    monkeypatch.setattr(rdma_cm, "agent_channel", agent_channel)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(rdma_cm, "_LISTEN_SECONDS", 0.05)
    monkeypatch.setattr(rdma_cm, "_END_SECONDS", 0.1)
    monkeypatch.setattr(rdma_cm, "TIMEWAIT_SECONDS", 0)
    return iter([None])


async def settled() -> None:
    """All that is due now is done."""
    for _ in range(10):
        await asyncio.sleep(0)


# ---- The side that connects -----------------------------------------------------------------


async def call(host: Host) -> CmEnd:
    end = host.bound()
    end.phase = Phase.CALLING
    end.own = CmAddress(HERE, 40001, 9, end.token)
    host.rdma_cm.connect(end, CmRequest(THERE, 7471, end.own, CmParams()))
    await settled()
    return end


async def test_connect__accepted_and_established(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    channel = Channel([message_of(CmAnswer(CALLED))])
    reaches(monkeypatch, channel)
    end = await call(host)
    assert host.events() == [CmEvent.CONNECT_RESPONSE]
    assert (host.told[0].peer.qpn, bytes(host.told[0].own.token).hex()) == (78, end.token)
    end.answer(CmAnswer())
    await settled()
    assert [kind for kind, _ in channel.told] == [CM, CM] and channel.closed
    assert end.phase is Phase.CONNECTED


async def test_connect__rejected(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    reaches(
        monkeypatch, Channel([message_of(CmAnswer(reason=28, params=CmParams(private="6e6f")))])
    )
    await call(host)
    assert host.events() == [CmEvent.REJECTED]
    assert (host.told[0].status, bytes(host.told[0].private_data[0:2])) == (28, b"no")


@pytest.mark.parametrize(
    ("found", "why"),
    [(ConnectError("no agent"), "no agent"), (OSError(errno.EHOSTUNREACH, "no route"), "no route"),
     (Channel([None]), "gone"), (Channel([{"by": 7}]), "wrong words"), (Channel([]), "no answer")],
    ids=["nobody listens", "no route", "goes", "nonsense", "silent"],
)  # fmt: skip
async def test_connect__unreachable(
    host: Host, monkeypatch: pytest.MonkeyPatch, found: Channel | Exception, why: str
) -> None:
    """With the reason, which libmrc-cm prints."""
    reaches(monkeypatch, found)
    await call(host)
    await asyncio.gather(*host.rdma_cm._others)
    assert host.events() == [CmEvent.UNREACHABLE]
    told = host.told[0]
    assert told.status == -errno.ETIMEDOUT
    said = bytes(told.private_data[0 : told.private_bytes]).decode()
    assert why in said and said.startswith(f"{CALLER.gid} port 7471: ")


# ---- The side that listens ------------------------------------------------------------------


def begin(host: Host, channel: Channel) -> asyncio.Task[None]:
    return asyncio.create_task(host.rdma_cm.answer(channel))  # type: ignore[arg-type]


async def test_answer__accepted(host: Host) -> None:
    host.listening()
    channel = Channel([message_of(REQUEST)])
    answering = begin(host, channel)
    await settled()
    assert host.events() == [CmEvent.CONNECT_REQUEST]
    child = host.end(host.told[0].child)
    assert child.own is not None
    child.answer(CmAnswer(child.own))
    channel.say(message_of(CmAnswer()))
    await answering
    assert host.events() == [CmEvent.ESTABLISHED] and child.phase is Phase.CONNECTED
    ending = Channel([message_of(CmDisconnect(child.token))])
    await host.rdma_cm.end(ending)  # type: ignore[arg-type]
    assert ending.told == [(CM_END, {})]
    assert host.events()[0] is CmEvent.DISCONNECTED


async def test_answer__nobody_listens(host: Host) -> None:
    channel = Channel([message_of(REQUEST)])
    await begin(host, channel)
    assert channel.told[0][1]["reason"] == Reason.NO_LISTENER and channel.closed


async def test_answer__somebody_listens_soon(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rdma_cm, "_LISTEN_SECONDS", 60.0)
    answering = begin(host, Channel([message_of(REQUEST)]))
    await settled()
    host.listening()
    await settled()
    assert host.events() == [CmEvent.CONNECT_REQUEST]
    answering.cancel()
    await asyncio.wait([answering])


async def test_answer__more_than_the_backlog(host: Host) -> None:
    host.listening(backlog=1)
    first = begin(host, Channel([message_of(REQUEST)]))
    await settled()
    second = Channel([message_of(REQUEST)])
    await begin(host, second)
    assert second.told[0][1]["reason"] == Reason.NO_RESOURCES
    first.cancel()
    await asyncio.wait([first])


async def test_answer__the_peer_goes_before_the_program_decides(host: Host) -> None:
    host.listening()
    channel = Channel([message_of(REQUEST)])
    answering = begin(host, channel)
    await settled()
    channel.say(None)
    with pytest.raises(PeerGoneError):
        await answering
    assert host.events() == [CmEvent.CONNECT_REQUEST, CmEvent.UNREACHABLE]
    assert host.end(host.told[0].child).phase is Phase.ENDED


async def test_answer__the_peer_is_not_ready_after_all(host: Host) -> None:
    host.listening()
    channel = Channel([message_of(REQUEST)])
    answering = begin(host, channel)
    await settled()
    host.events()
    child = host.end(host.told[0].child)
    child.answer(CmAnswer(child.own))
    channel.say(message_of(CmAnswer(reason=28)))
    await answering
    assert host.events() == [CmEvent.REJECTED]


async def test_end__an_unknown_token(host: Host) -> None:
    channel = Channel([message_of(CmDisconnect("00" * 16))])
    await host.rdma_cm.end(channel)  # type: ignore[arg-type]
    assert channel.told == [(CM_END, {})] and host.events() == []
    with pytest.raises(ProtocolError):
        await host.rdma_cm.end(Channel([{"token": "guess"}]))  # type: ignore[arg-type]


# ---- Both -----------------------------------------------------------------------------------


@pytest.mark.parametrize("found", [Channel([{}]), ConnectError("refused")], ids=["told", "away"])
async def test_disconnect__the_program_learns_it_in_any_case(
    host: Host, monkeypatch: pytest.MonkeyPatch, found: Channel | Exception
) -> None:
    reaches(monkeypatch, found)
    end = host.bound()
    end.peer, end.phase = CALLED, Phase.CONNECTED
    host.rdma_cm.disconnect(end)
    await asyncio.gather(*host.rdma_cm._others)
    assert host.events()[0] is CmEvent.DISCONNECTED
    if isinstance(found, Channel):
        assert found.told == [(CM_END, {"token": CALLED.token})]


async def test_forget__ends_a_call(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    reaches(monkeypatch, Channel([]))
    end = await call(host)
    host.rdma_cm.forget(end)
    await settled()
    assert host.events() == [] and host.rdma_cm._connects == {}


async def test_rows__who_listens(host: Host) -> None:
    end = host.listening()
    (row,) = host.rdma_cm.rows(10)
    assert (row.port, row.address, row.pid) == (7471, "", 1)
    host.rdma_cm.forget(end)
    assert host.rdma_cm.rows(10) == ()
