# SPDX-License-Identifier: Apache-2.0
"""rdma_cm: messages, ports, connections between two agents, the ids of one program."""

from __future__ import annotations

import asyncio
import errno
import json
import random
import socket
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from ipaddress import ip_address
from types import SimpleNamespace
from typing import Any, cast

import pytest
from msgspec import structs

from mrc import ContextConfig
from mrc.agent import rdma_cm, steering
from mrc.agent.rdma_cm import (
    AGENT_CM_CHILD,
    CM,
    CM_END,
    CmAddress,
    CmAnswer,
    CmCall,
    CmDisconnect,
    CmEnd,
    CmError,
    CmEvent,
    CmParams,
    CmPorts,
    CmRequest,
    CmSession,
    Phase,
    RdmaCm,
    Reason,
    end_of,
    gid_of,
    message_of,
    params_of,
    read,
)
from mrc.agent.socket import Credentials
from mrc.agent.steering import AgentKind, pack, read_struct, struct_bytes, unpack
from mrc.config import Timeouts
from mrc.errors import ConnectError, PeerGoneError, ProtocolError
from mrc.fabric.hostconfig import IpAddress, pack_address

# ---- Messages -----------------------------------------------------------------------------------

PARAMS = CmParams(3, 4, True, 7, 6, True, "0102")
BY = CmAddress(ip_address("10.0.0.1"), 40000, 77, "ab" * 16)
WRITTEN = CmRequest(ip_address("fd00::1"), 7471, BY, PARAMS)


@pytest.mark.parametrize(
    "said",
    [WRITTEN, CmAnswer(BY, 0, PARAMS), CmAnswer(reason=28), CmAnswer(), CmDisconnect("cd" * 16)],
)
def test_messages__as_json(said: Any) -> None:
    message = json.loads(json.dumps(message_of(said)))
    assert read(message | {"type": "cm", "later": 1}, type(said)) == said


def changed(*path: str, to: object) -> dict[str, Any]:
    message = message_of(WRITTEN)
    inner = message
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = to
    return message


@pytest.mark.parametrize(
    ("path", "to"),
    [
        (("port",), 0), (("port",), 65536), (("to",), "nowhere"), (("by", "qpn"), 2),
        (("by", "token"), "ab"), (("params", "private"), "00" * 197), (("params", "private"), "0"),
        (("params", "retry_count"), 8), (("params", "srq"), "yes"), (("by",), None),
    ],
)  # fmt: skip
def test_read__wrong_words(path: tuple[str, ...], to: object) -> None:
    with pytest.raises(ProtocolError, match="wrong words about rdma_cm: "):
        read(changed(*path, to=to), CmRequest)


def test_read__words_are_shown_safely() -> None:
    with pytest.raises(ProtocolError) as caught:
        read(changed("to", to="\x1b[31m" * 1000), CmRequest)
    assert "\x1b" not in str(caught.value) and len(str(caught.value)) < 500


async def test_structs__both_ways() -> None:
    told: list[dict[str, Any]] = []
    CmEnd(9, None, told.append).tell(CmEvent.CONNECT_REQUEST, child=10, peer=BY, params=PARAMS)
    found, _ = read_struct("mrc_agent_cm", struct_bytes("mrc_agent_cm", told[0]))
    assert (found.id, found.event, found.child) == (9, 4, 10)
    assert end_of(found.peer) == BY
    assert params_of(found) == CmParams(4, 3, True, 7, 6, True, "0102")  # as the other side sees it
    assert gid_of(bytes(found.own.gid)) is None
    assert gid_of(bytes(found.peer.gid)) == BY.gid


def test_structs__of_a_program_that_errs() -> None:
    found, _ = read_struct("mrc_agent_cm", struct_bytes("mrc_agent_cm", {"private_bytes": 197}))
    with pytest.raises(ProtocolError, match="197 bytes"):
        params_of(found)
    with pytest.raises(ProtocolError):
        end_of(found.own)


# ---- Ports --------------------------------------------------------------------------------------

FIRST, SECOND = ip_address("10.0.0.1"), ip_address("10.0.1.1")


def ports() -> CmPorts:
    return CmPorts(random.Random(1))


def refusal(call: Callable[..., object], *words: object) -> int:
    """The error number with which a call is refused."""
    with pytest.raises(CmError) as caught:
        call(*words)
    return caught.value.number


def test_bind__a_taken_port() -> None:
    table = ports()
    first = table.bind(FIRST, 7471)
    table.bind(SECOND, 7471)  # another address
    for gid in (FIRST, None):
        assert refusal(table.bind, gid, 7471) == errno.EADDRINUSE
    table.free(first)
    table.bind(FIRST, 7471)


def test_bind__shared_while_nobody_listens() -> None:
    table = ports()
    first = table.bind(None, 7471, shares=True)
    second = table.bind(None, 7471, shares=True)
    assert refusal(table.bind, None, 7471) and refusal(table.listen, first, 1)
    table.free(second)
    table.listen(first, 1)
    with pytest.raises(CmError):
        table.bind(FIRST, 7471, shares=True)


def test_bind__any_port_and_those_of_root(monkeypatch: pytest.MonkeyPatch) -> None:
    table = ports()
    monkeypatch.setattr(rdma_cm, "_EPHEMERAL", range(40000, 40003))
    assert {table.bind(None, 0).port for _ in range(3)} == {40000, 40001, 40002}
    assert refusal(table.bind, None, 0) == errno.EADDRNOTAVAIL
    assert refusal(table.bind, None, 1023) == errno.EACCES
    table.bind(None, 1023, root=True)


def test_bind__the_most_of_a_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rdma_cm, "_MOST_BOUND", 2)
    table = ports()
    first = table.bind(None, 5000)
    table.bind(None, 5001)
    assert refusal(table.bind, None, 5002) == errno.ENOMEM
    table.free(first)
    table.bind(None, 5002)


def test_listener__by_address() -> None:
    table = ports()
    bound = table.bind(FIRST, 7471)
    assert table.listener(FIRST, 7471) is None
    table.listen(bound, 4)
    assert table.listener(FIRST, 7471) is bound
    assert table.listener(SECOND, 7471) is None
    assert table.listener(FIRST, 7472) is None


# ---- Connections between agents -----------------------------------------------------------------

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
        steering.prepare(self.ours)
        self.session = CmSession(self.rdma_cm, self.ours, Credentials(1, 0, 0))
        self.told: list[Any] = []

    def events(self) -> list[CmEvent]:
        """Of the program, since the last call."""
        self.program.setblocking(False)
        found: list[CmEvent] = []
        while True:
            try:
                frame = unpack(self.program.recv(steering.MAX_FRAME))
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
    answer = CmAnswer(reason=28, params=CmParams(private="6e6f"))
    reaches(monkeypatch, Channel([message_of(answer)]))
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


async def requested(host: Host) -> tuple[Channel, asyncio.Task[None]]:
    """The channel of a request, and its answer, as far as it comes now."""
    channel = Channel([message_of(REQUEST)])
    answering = asyncio.create_task(host.rdma_cm.answer(channel))  # type: ignore[arg-type]
    await settled()
    return channel, answering


async def stop(answering: asyncio.Task[None]) -> None:
    answering.cancel()
    await asyncio.wait([answering])


async def test_answer__accepted(host: Host) -> None:
    host.listening()
    channel, answering = await requested(host)
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
    channel, answering = await requested(host)
    await answering
    assert channel.told[0][1]["reason"] == Reason.NO_LISTENER and channel.closed


async def test_answer__somebody_listens_soon(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rdma_cm, "_LISTEN_SECONDS", 60.0)
    _, answering = await requested(host)
    host.listening()
    await settled()
    assert host.events() == [CmEvent.CONNECT_REQUEST]
    await stop(answering)


async def test_answer__more_than_the_backlog(host: Host) -> None:
    host.listening(backlog=1)
    _, first = await requested(host)
    channel, second = await requested(host)
    await second
    assert channel.told[0][1]["reason"] == Reason.NO_RESOURCES
    await stop(first)


async def test_answer__the_peer_goes_before_the_program_decides(host: Host) -> None:
    host.listening()
    channel, answering = await requested(host)
    channel.say(None)
    with pytest.raises(PeerGoneError):
        await answering
    assert host.events() == [CmEvent.CONNECT_REQUEST, CmEvent.UNREACHABLE]
    assert host.end(host.told[0].child).phase is Phase.ENDED


async def test_answer__the_peer_is_not_ready_after_all(host: Host) -> None:
    host.listening()
    channel, answering = await requested(host)
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


# ---- The ids of one program, with a stand-in for what connects them -----------------------------

GID = ip_address("fd00::1")


class Connections:
    """Keeps what it is asked."""

    def __init__(self) -> None:
        self.ports = CmPorts(random.Random(1))
        self.said: list[tuple[str, CmEnd]] = []
        self.requests: list[CmRequest] = []

    def gid_for(self, called: IpAddress) -> IpAddress:
        assert called == HERE
        return GID

    def listen(self, end: CmEnd, session: CmSession) -> None:
        self.said.append(("listen", end))

    def connect(self, end: CmEnd, request: CmRequest) -> None:
        self.requests.append(request)

    def keep(self, end: CmEnd) -> None:
        self.said.append(("keep", end))

    def disconnect(self, end: CmEnd) -> None:
        self.said.append(("hang up", end))

    def forget(self, end: CmEnd) -> None:
        if end.bound is not None:
            self.ports.free(end.bound)


class Program:
    """The other end of the socket."""

    def __init__(self) -> None:
        self.theirs, self.socket = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        steering.prepare(self.theirs)
        self.socket.setblocking(False)
        self.connections = Connections()
        connections, credentials = cast(RdmaCm, self.connections), Credentials(1, 1000, 1000)
        self.session = CmSession(connections, self.theirs, credentials)
        self.serving = asyncio.get_running_loop().create_task(self.session.serve())

    async def receive(self, kind: AgentKind) -> tuple[int, Any]:
        packet = await asyncio.get_running_loop().sock_recv(self.socket, steering.MAX_FRAME)
        frame = unpack(packet)
        assert frame.kind is kind
        return frame.value, read_struct("mrc_agent_cm", frame.body)[0]

    async def call(self, call: int, **fields: Any) -> tuple[int, Any]:
        """The status, and the answer."""
        body = struct_bytes("mrc_agent_cm", fields)
        self.socket.send(pack(AgentKind.CM_CALL, call, 1, body))
        return await self.receive(AgentKind.ANSWER)

    async def event(self) -> Any:
        return (await self.receive(AgentKind.CM_EVENT))[1]


@pytest.fixture
async def program() -> AsyncIterator[Program]:
    made = Program()
    yield made
    made.socket.close()
    await made.serving
    made.theirs.close()


async def listening(program: Program) -> CmEnd:
    assert (await program.call(CmCall.BIND, id=1, own={"port": 7471}))[0] == 0
    assert (await program.call(CmCall.LISTEN, id=1, option=4))[0] == 0
    return program.connections.said[-1][1]


async def test_calls__in_the_wrong_phase(program: Program) -> None:
    status, answer = await program.call(CmCall.BIND, id=1)
    assert status == 0 and answer.own.port >= 1024
    for call in (CmCall.ACCEPT, CmCall.REJECT, CmCall.ESTABLISH, CmCall.DISCONNECT, CmCall.BIND):
        assert (await program.call(call, id=1))[0] == -errno.EINVAL, call
    for call in CmCall:
        if call not in (CmCall.BIND, CmCall.RESUME):
            assert (await program.call(call, id=2))[0] == -errno.EINVAL, call
    await listening_again(program)


async def listening_again(program: Program) -> None:
    assert (await program.call(CmCall.LISTEN, id=1))[0] == 0
    to = {"gid": pack_address(HERE), "port": 1}
    own = {"gid": pack_address(HERE), "qpn": 9}
    assert (await program.call(CmCall.CONNECT, id=1, own=own, peer=to))[0] == -errno.EINVAL
    assert program.connections.requests == []


async def test_calls__a_taken_port(program: Program) -> None:
    assert (await program.call(CmCall.BIND, id=1, own={"port": 7471}))[0] == 0
    assert (await program.call(CmCall.BIND, id=2, own={"port": 7471}))[0] == -errno.EADDRINUSE
    assert (await program.call(CmCall.BIND, id=2, own={"port": 80}))[0] == -errno.EACCES
    assert (await program.call(CmCall.DESTROY, id=1))[0] == 0
    assert (await program.call(CmCall.BIND, id=2, own={"port": 7471}))[0] == 0


async def test_connect__asks_the_peer(program: Program) -> None:
    """Also after a call that was refused because the program has no QP yet."""
    await program.call(CmCall.BIND, id=1)
    own = {"gid": pack_address(HERE), "qpn": 9}
    peer = {"gid": pack_address(CALLER.gid), "port": 7471}
    data = {"private_bytes": 2, "private_data": b"\1\2"}
    no_qp = own | {"qpn": 0}
    assert (await program.call(CmCall.CONNECT, id=1, own=no_qp, peer=peer))[0] == -errno.EINVAL
    assert (await program.call(CmCall.CONNECT, id=1, own=own, peer=peer, **data))[0] == 0
    (request,) = program.connections.requests
    assert (request.to, request.port, request.by.qpn) == (CALLER.gid, 7471, 9)
    assert request.params == REQUEST.params
    assert (await program.call(CmCall.CONNECT, id=1, own=own, peer=peer))[0] == -errno.EINVAL


@pytest.mark.parametrize("accepts", [True, False])
async def test_request__the_program_decides(program: Program, accepts: bool) -> None:
    listener = await listening(program)
    child = program.session.request(listener, REQUEST)
    assert child is not None
    event = await program.event()
    assert (event.id, event.event, event.child) == (1, CmEvent.CONNECT_REQUEST, AGENT_CM_CHILD)
    assert (event.peer.qpn, bytes(event.private_data[0:2])) == (77, b"\1\2")
    call = CmCall.ACCEPT if accepts else CmCall.REJECT
    assert (await program.call(call, id=event.child, own={"qpn": 9}))[0] == 0
    answer = await child.answered()
    by = CmAddress(GID, 7471, 9, child.token) if accepts else None
    assert (answer.by, answer.reason) == (by, 0 if accepts else Reason.CONSUMER)
    assert (await program.call(call, id=event.child, own={"qpn": 9}))[0] == -errno.EINVAL


async def test_destroy__of_a_request_rejects_it(program: Program) -> None:
    child = program.session.request(await listening(program), REQUEST)
    assert child is not None
    number = (await program.event()).child
    assert (await program.call(CmCall.DESTROY, id=number))[0] == 0
    assert (await child.answered()).reason == Reason.CONSUMER


async def test_request__the_most_ids(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    listener = await listening(program)
    monkeypatch.setattr(rdma_cm, "_MOST_IDS", 2)
    assert program.session.request(listener, REQUEST) is not None
    assert program.session.request(listener, REQUEST) is None
    await program.event()
    assert (await program.call(CmCall.BIND, id=2))[0] == -errno.ENOMEM


async def test_resume__of_a_connected_id(program: Program) -> None:
    own = {"gid": pack_address(HERE), "port": 7471, "qpn": 9, "token": b"\1" * 16}
    peer = {"gid": pack_address(CALLER.gid), "port": 40000, "qpn": 77, "token": b"\2" * 16}
    number = AGENT_CM_CHILD + 5
    assert (await program.call(CmCall.RESUME, id=number, own=own, peer=peer))[0] == 0
    said, end = program.connections.said[-1]
    assert (said, end.token, end.phase) == ("keep", "01" * 16, Phase.CONNECTED)
    assert end.peer is not None and end.peer.token == "02" * 16
    child = program.session.request(await listening(program), REQUEST)
    assert child is not None and child.number == number + 1
    program.session.end_all()
    assert ("hang up", end) in program.connections.said


async def test_events__of_an_end(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rdma_cm, "TIMEWAIT_SECONDS", 0)
    end = program.session.request(await listening(program), REQUEST)
    assert end is not None
    await program.event()
    end.disconnected()
    end.disconnected()
    assert [(await program.event()).event for _ in range(2)] == [
        CmEvent.DISCONNECTED, CmEvent.TIMEWAIT_EXIT,
    ]  # fmt: skip
    end.fail(CmEvent.UNREACHABLE, -errno.ETIMEDOUT)  # too late
    assert (await program.call(CmCall.DISCONNECT, id=end.number))[0] == 0


@pytest.mark.parametrize(
    "packet",
    [
        b"short", pack(AgentKind.ATTACH), pack(AgentKind.CM_CALL, CmCall.BIND, 1, b"short"),
        pack(AgentKind.CM_CALL, CmCall.RESUME, 1, struct_bytes("mrc_agent_cm", {})),
    ],
)  # fmt: skip
async def test_serve__a_program_that_breaks_the_protocol(program: Program, packet: bytes) -> None:
    program.socket.send(packet)
    await program.serving


async def test_serve__a_program_that_does_not_read(program: Program) -> None:
    program.session._packets._most = 8
    listener = await listening(program)
    while program.session.request(listener, REQUEST) is not None:
        pass
    await program.serving
