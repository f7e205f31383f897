# SPDX-License-Identifier: Apache-2.0
"""The ids of one program, with a stand-in for what connects them."""

from __future__ import annotations

import asyncio
import errno
import random
import socket
from collections.abc import AsyncIterator
from ipaddress import ip_address
from typing import Any, cast

import pytest

from mrc.agent import rdma_cm, steering
from mrc.agent.rdma_cm import (
    CmAddress,
    CmEnd,
    CmParams,
    CmPorts,
    CmRequest,
    CmSession,
    Phase,
    RdmaCm,
    Reason,
)
from mrc.agent.socket import Credentials
from mrc.agent.steering import pack, read_struct, struct_bytes, unpack
from mrc.enums import AgentKind, CmCall, CmEvent
from mrc.fabric.hostconfig import IpAddress, pack_address
from mrc.limits import AGENT_CM_CHILD

HERE, GID = ip_address("10.0.0.1"), ip_address("fd00::1")
CALLER = CmAddress(ip_address("10.0.0.2"), 40000, 77, "ab" * 16)
REQUEST = CmRequest(HERE, 7471, CALLER, CmParams(private="0102"))


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
        self.session = CmSession(
            cast(RdmaCm, self.connections), self.theirs, Credentials(1, 1000, 1000)
        )
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


async def test_serve__a_program_that_does_not_read(
    program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rdma_cm, "_MOST_WAITING", 8)
    listener = await listening(program)
    while program.session.request(listener, REQUEST) is not None:
        pass
    await program.serving
