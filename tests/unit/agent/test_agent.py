# SPDX-License-Identifier: Apache-2.0
"""An agent with programs of this process, over loopback: QPs, QPNs, agents that start again."""

from __future__ import annotations

import asyncio
import os
import resource
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from ipaddress import ip_address
from itertools import count
from pathlib import Path
from random import randbytes
from socket import AF_UNIX, SOCK_SEQPACKET, socket
from unittest.mock import AsyncMock, Mock

import pytest
from attached import AttachedProgram, attach_body, connect_body, connected, running_agent
from ports import free_port
from slowness import PATIENCE

from mrc.agent import agent as agent_module
from mrc.agent import socket as agent_socket
from mrc.agent.agent import AgentListener, Numbers
from mrc.agent.parameters import QpParameters
from mrc.agent.program import Connects
from mrc.agent.socket import AgentFunction
from mrc.agent.steering import AgentFrame, AgentKind, pack, read_struct, unpack
from mrc.aio.qp import QP
from mrc.connect.oob import Channel
from mrc.engine.native import ffi
from mrc.enums import WcStatus
from mrc.errors import (
    BusyError,
    ConnectError,
    MrcError,
    PeerGoneError,
    ProtocolError,
    QueueFullError,
)
from mrc.fabric.hostconfig import pack_address
from mrc.observe import views
from mrc.tasks import cancelled

NAME = f"@mrc-test-agent-{os.getpid()}"
ENDS = (AgentKind.GONE, AgentKind.FAILED)


running = partial(running_agent, NAME)


@asynccontextmanager
async def attached(name: str = NAME) -> AsyncIterator[AttachedProgram]:
    program = await AttachedProgram.attach(name)
    try:
        yield program
    finally:
        await program.end()


@asynccontextmanager
async def connected_pair(
    name: str = NAME,
) -> AsyncIterator[tuple[AttachedProgram, int, AttachedProgram, int]]:
    """Two programs and their connected QPs."""
    async with attached(name) as a, attached(name) as b:
        ours, theirs = a.numbers[0], b.numbers[0]
        async with asyncio.timeout(PATIENCE):
            await connect(a, ours, b, theirs)
            await until_both_ready(a, ours, b, theirs)
        yield a, ours, b, theirs


async def connect(a: AttachedProgram, ours: int, b: AttachedProgram, theirs: int) -> None:
    """Both programs ask for it."""
    await a.connect(ours, theirs, a.gids[0], b.gids[0])
    await b.connect(theirs, ours, b.gids[0], a.gids[0])


async def until_both_ready(a: AttachedProgram, ours: int, b: AttachedProgram, theirs: int) -> None:
    await until_ready(a, ours)
    await until_ready(b, theirs)


async def until_ready(program: AttachedProgram, qpn: int) -> None:
    await program.until(
        AgentKind.READY, lambda frame: read_struct("mrc_agent_ready", frame.body)[0].qpn == qpn
    )


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 another task changes it
        await asyncio.sleep(0.005)


async def write(a: AttachedProgram, qpn: int, b: AttachedProgram) -> None:
    """Writes some bytes from one program to the other, and compares them."""
    source, target = bytearray(randbytes(100_000)), bytearray(100_000)
    lkey, rkey = a.keys(), b.keys()
    a.register(source, lkey)
    b.register(target, rkey)
    a.write(qpn, source, lkey, int(ffi.cast("uintptr_t", ffi.from_buffer(target))), rkey)
    async with asyncio.timeout(PATIENCE):
        done = await a.completion()
    assert (done.status, done.bytes) == (WcStatus.SUCCESS, 100_000)
    assert target == source


async def test_qps_of_two_programs__are_connected_and_carry_a_write() -> None:
    async with running(), connected_pair() as (a, ours, b, _):
        await write(a, ours, b)


async def test_connect__of_another_host_than_the_program_named() -> None:
    """Who knows both QPNs, which are readable on the way, is not the peer yet."""
    async with running(), attached() as a, attached() as b:
        numbers = {program.numbers[0]: program for program in (a, b)}
        dialler, waiter = min(numbers), max(numbers)
        caller, waiting = numbers[dialler], numbers[waiter]
        elsewhere = pack_address(ip_address("192.0.2.1"))
        await waiting.connect(waiter, dialler, waiting.gids[0], elsewhere)
        await caller.connect(dialler, waiter, caller.gids[0], waiting.gids[0])
        async with asyncio.timeout(PATIENCE):
            failed = await caller.until(AgentKind.FAILED, lambda frame: frame.value == dialler)
    assert "127.0.0.1 is not 192.0.2.1, the peer that the" in failed.body.decode()


async def test_connect__the_peer_may_come_first_or_last() -> None:
    async with running(), attached() as a, attached() as b:
        for here, there in ((a, b), (b, a)):
            ours, theirs = here.numbers.pop(), there.numbers.pop()
            await here.connect(ours, theirs, here.gids[0], there.gids[0])
            await asyncio.sleep(0.05)  # the other one is late
            await there.connect(theirs, ours, there.gids[0], here.gids[0])
            async with asyncio.timeout(PATIENCE):
                await until_both_ready(here, ours, there, theirs)


@pytest.mark.parametrize("error", [BusyError("full"), PeerGoneError("it has ended")])
async def test_connect__again_after_an_agent_that_was_busy_or_ended(
    error: MrcError, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The end that dials has created its QP by then."""
    accept, errors = Connects.accept, [error]

    async def accept_later(connects: Connects, channel: Channel, parameters: QpParameters) -> QP:
        if errors:
            await channel.receive()
            raise errors.pop()
        return await accept(connects, channel, parameters)

    monkeypatch.setattr(Connects, "accept", accept_later)
    async with running(), connected_pair():
        assert not errors


async def test_connect__of_a_qp_that_is_connected__detaches_the_program() -> None:
    async with running() as agent, connected_pair() as (a, ours, b, theirs):
        await a.connect(ours, theirs, a.gids[0], b.gids[0])
        async with asyncio.timeout(PATIENCE):
            gone = await b.until(AgentKind.GONE)
            await until(lambda: len(agent.programs) == 1)
    assert gone.value == theirs
    assert f"QP {ours:#x} is connected already".encode() in gone.body


async def test_connect__again_while_the_former_connection_still_closes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A program may connect a QP again once its engine has none of this number any more."""
    closing, may_close = Channel.close, asyncio.Event()

    async def close(channel: Channel) -> None:
        await may_close.wait()
        await closing(channel)

    monkeypatch.setattr(Channel, "close", close)
    async with running(), connected_pair() as (a, ours, b, theirs), asyncio.timeout(PATIENCE):
        a.say(AgentKind.RELEASE, ours)
        b.say(AgentKind.RELEASE, theirs)
        await until(lambda: ours in a.destroyed and theirs in b.destroyed)
        a.frames.clear()
        b.frames.clear()
        await connect(a, ours, b, theirs)
        await until_both_ready(a, ours, b, theirs)
        may_close.set()
        await write(a, ours, b)


@pytest.mark.parametrize("count", [8, pytest.param(32, marks=pytest.mark.slow)])
async def test_connect__many_at_once(count: int) -> None:
    async with running(), attached() as a, attached() as b:
        pairs = list(zip(a.numbers[:count], b.numbers[:count], strict=True))
        for ours, theirs in pairs:
            await connect(a, ours, b, theirs)
        async with asyncio.timeout(PATIENCE):
            for ours, theirs in pairs:
                await until_both_ready(a, ours, b, theirs)


async def test_release__ends_both_sides_in_order() -> None:
    async with running() as agent, connected_pair() as (a, ours, b, theirs):
        a.say(AgentKind.RELEASE, ours, 1)
        async with asyncio.timeout(PATIENCE):
            gone = await b.until(AgentKind.GONE)
            assert gone.value == theirs
            b.say(AgentKind.RELEASE, theirs, 1)
            await until(lambda: agent.numbers.owner(ours) is None)
            await until(lambda: agent.numbers.owner(theirs) is None)
        assert [each.connects.ends for each in agent.programs] == [{}, {}]


async def test_release__while_the_agents_connect() -> None:
    """The engines may have talked: first the agents are through, then both sides end in order."""
    async with running() as agent, attached() as a, attached() as b:
        one, other = sorted((a, b), key=lambda each: each.numbers[0])  # the lower number dials
        ours, theirs = one.numbers[0], other.numbers[0]
        await connect(one, ours, other, theirs)
        async with asyncio.timeout(PATIENCE):
            while not one.cookies:  # noqa: ASYNC110 until it has a QP, and no longer
                await asyncio.sleep(0)
            one.say(AgentKind.RELEASE, ours, 1)
            gone = await other.until(AgentKind.GONE)
            await until(lambda: agent.numbers.owner(ours) is None)
        assert (gone.value, gone.body) == (theirs, b"")


@pytest.mark.slow
@pytest.mark.parametrize("dialler_ends", [True, False])
@pytest.mark.parametrize("stopped", ["agent", "program"])
async def test_release__while_the_agents_connect_after_a_stop(
    stopped: str, dialler_ends: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither a stop of the agent nor one of a program in the midst of the exchange uses up the
    time in which the agents may still connect.
    """
    monkeypatch.setattr(agent_module, "_YOUNG_SECONDS", 0.0)
    linger = 0.3
    async with running(linger=linger), attached() as a, attached() as b:
        one, other = sorted((a, b), key=lambda each: each.numbers[0])  # the lower number dials
        ours, theirs = one.numbers[0], other.numbers[0]
        await connect(one, ours, other, theirs)
        ending, number, staying = (one, ours, other) if dialler_ends else (other, theirs, one)
        async with asyncio.timeout(PATIENCE):
            if stopped == "program":
                # A listener has heard its peer before it creates the QP, a dialler once its QP is
                # in INIT, after two commands. An agent that has not may give up.
                while len(ending.cookies) < (3 if dialler_ends else 1):  # noqa: ASYNC110
                    await asyncio.sleep(0)
                other.stop()
            ending.say(AgentKind.RELEASE, number, 1)
            for _ in range(5):
                await asyncio.sleep(0)  # the agent reads it
            if stopped == "program":
                await asyncio.sleep(2 * linger)
                other.go_on()
            else:
                time.sleep(2 * linger)  # noqa: ASYNC251 the agent runs here
            await until(lambda: staying.frames[-1:] != [] and staying.frames[-1].kind in ENDS)
        assert [(each.kind, each.body) for each in staying.frames if each.kind in ENDS] == [
            (AgentKind.GONE, b"")
        ]


async def test_program_that_dies__its_peer_learns_it() -> None:
    async with running() as agent, connected_pair() as (a, _, b, theirs):
        before = asyncio.get_running_loop().time()
        await a.end()
        async with asyncio.timeout(PATIENCE):
            gone = await b.until(AgentKind.GONE)
            await until(lambda: len(agent.programs) == 1)
        assert gone.value == theirs
        assert agent.left >= before


@pytest.mark.parametrize("dialler_dies", [True, False])
async def test_program_that_dies__before_its_agent_has_the_qp(dialler_dies: bool) -> None:
    """A program can use a QP before its agent has ended the exchange. If it then dies, its agent
    has no QP of which to tell the peer: the connection of the agents just ends.
    """
    async with running() as agent, connected_pair() as (a, ours, b, theirs):
        one, other = (a, ours), (b, theirs)
        if (ours < theirs) is not dialler_dies:  # the lower number dials
            one, other = other, one
        (victim, number), (survivor, its_number) = one, other
        program = agent.numbers.owner(number)
        assert program is not None
        end = program.connects.ends.pop(number)
        await victim.end()
        end._channel.abort()
        async with asyncio.timeout(PATIENCE):
            assert (await survivor.until(AgentKind.GONE)).value == its_number


async def test_program_that_dies__while_its_agent_connects() -> None:
    """The peer's agent is told, so that its program does not wait for the time limit."""
    port, dialled, heard = free_port(), asyncio.Event(), asyncio.Queue[bytes]()

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        said = await reader.read(1 << 16)
        dialled.set()
        heard.put_nowait(said + await reader.read())
        writer.close()

    async with (
        asyncio.timeout(PATIENCE),
        running(port=port),
        await asyncio.start_server(listen, "127.0.0.2", port),
        attached() as a,
    ):
        await a.connect(a.numbers[0], 0xFFFFFF, a.gids[0], pack_address(ip_address("127.0.0.2")))
        await dialled.wait()
        await a.end()
        assert b'"kind":"ended"' in await heard.get()


async def test_connect__to_a_qp_of_nobody_fails_with_a_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(agent_module, "_YOUNG_SECONDS", 0.0)
    async with running(), attached() as a:
        least = min(a.numbers)
        await a.connect(least, 0xFFFFFE, a.gids[0], a.gids[0])
        async with asyncio.timeout(PATIENCE):
            failed = await a.until(AgentKind.FAILED)
        assert failed.value == least
        assert b"no program of this host has the QP" in failed.body


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (AgentKind.CONNECT, b""),
        (AgentKind.CONNECT, bytes(10_000)),
        (AgentKind.EVENT, b"\x01" * 200),
        (AgentKind.EVENT, bytes(200)),
        (AgentKind.READY, b""),
        (AgentKind.ATTACH, attach_body("again")),
    ],
)
async def test_program_that_breaks_the_protocol__is_detached(kind: AgentKind, body: bytes) -> None:
    async with running() as agent, attached() as a, attached():
        a.say(kind, 1000, body=body)
        async with asyncio.timeout(PATIENCE):
            await until(lambda: len(agent.programs) == 1)


async def test_keep__a_number_of_a_former_agent_is_the_programs() -> None:
    number = 0xABCDE
    async with running() as agent, attached() as a, attached() as b, asyncio.timeout(PATIENCE):
        ours, theirs = a.numbers[0], b.numbers[0]
        a.say(AgentKind.KEEP, number)
        await connect(a, ours, b, theirs)
        await until_ready(a, ours)
        b.say(AgentKind.KEEP, number)
        await until(lambda: len(agent.programs) == 1)
        assert a.attached


async def test_agent__is_shown_by_mrc_top(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(views, "_homes", lambda: iter([tmp_path / "endpoints"]))
    monkeypatch.setattr(views, "_folders", lambda all_users: iter([tmp_path / "endpoints"]))
    async with running():
        shown = [await views.look(path) for path in views.sockets()]
    assert [each["program"] for each in shown] == ["mrc agent"]


async def test_ports__a_program_learns_that_they_went_down(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running() as agent, attached() as a:
        (program,) = agent.programs
        await until(lambda: program._engines is not None)
        links = program._opened().links
        monkeypatch.setattr("mrc.agent.parameters.Interface.all", list)  # none is up
        (changed,) = links.on_change
        changed()
        changed()  # nothing new
        a.say(AgentKind.NUMBERS)
        async with asyncio.timeout(PATIENCE):
            frame = await a.until(AgentKind.PORTS)
            await a.until(AgentKind.GRANTED)
        size = ffi.sizeof("struct mrc_agent_port")
        ports = [
            read_struct("mrc_agent_port", frame.body[at : at + size])[0]
            for at in range(0, len(frame.body), size)
        ]
        assert ports and not any(port.up for port in ports)
        assert [each.kind for each in a.frames].count(AgentKind.PORTS) == 1


async def test_connect__with_a_profile_that_is_not_there() -> None:
    async with running(), attached() as a, asyncio.timeout(PATIENCE):
        body = connect_body(min(a.numbers), 0xFFFFFE, a.gids[0], a.gids[0], ev_profile=99)
        a.say(AgentKind.CONNECT, body=body)
        failed = await a.until(AgentKind.FAILED)
    assert b"EV profile 99" in failed.body


async def answer_to(packet: bytes = b"") -> AgentFrame:
    """What the agent answers somebody who is not attached."""
    connection, loop = await connected(NAME), asyncio.get_running_loop()
    async with asyncio.timeout(PATIENCE):
        if packet:
            await loop.sock_sendall(connection, packet)
        answer = unpack(await loop.sock_recv(connection, 4096))
    connection.close()
    return answer


@pytest.mark.parametrize(
    ("packet", "answered", "said"),
    [
        (pack(AgentKind.REQUEST, AgentFunction.PROFILES), AgentKind.ANSWER, b""),
        (pack(AgentKind.REQUEST, AgentFunction.PROBE), AgentKind.REFUSED, b""),
        (pack(AgentKind.PEER_REQUEST, AgentFunction.PROFILES), AgentKind.REFUSED, b""),
        (pack(AgentKind.ATTACH, body=attach_body("old", version=0)), AgentKind.REFUSED,
         b"different versions"),
    ],
    ids=["profiles", "probe", "of a peer", "another version"],
)  # fmt: skip
async def test_attach__instead_a_program_may_ask_for_the_profiles(
    packet: bytes, answered: AgentKind, said: bytes
) -> None:
    async with running():
        answer = await answer_to(packet)
        assert answer.kind is answered and said in answer.body


async def test_next_agent__takes_up_the_qps_while_data_flows() -> None:
    port = free_port()
    async with AsyncExitStack() as stack:
        async with running(port=port):
            a, ours, b, theirs = await stack.enter_async_context(connected_pair())
            states = {}
            for program in (a, b):
                ready = await program.until(AgentKind.READY)
                states[program] = read_struct("mrc_agent_ready", ready.body)[1]
        await write(a, ours, b)  # no agent runs
        async with running(port=port) as agent:
            former = {program: program.cookies for program in (a, b)}
            for program, qpn, other, dest in ((a, ours, b, theirs), (b, theirs, a, ours)):
                program.cookies = set()
                body = connect_body(qpn, dest, program.gids[0], other.gids[0], ready=1)
                await program.attach_again(NAME, [body + states[program]].copy)
            async with asyncio.timeout(PATIENCE):
                await until(lambda: len(agent.programs) == 2)
                await until(lambda: sum(len(each.connects.ends) for each in agent.programs) == 2)
                await write(a, ours, b)
                a.say(AgentKind.RELEASE, ours, 1)  # reaches the other agent
                assert (await b.until(AgentKind.GONE)).value == theirs
                b.say(AgentKind.RELEASE, theirs, 1)
                await until(lambda: agent.numbers.owner(theirs) is None)
            for program in (a, b):  # probes of the former agent may end now
                assert program.cookies and program.cookies.isdisjoint(former[program])


async def test_serve__goes_on_without_descriptors(caplog: pytest.LogCaptureFixture) -> None:
    """Whoever opens connections cannot end the agent, nor the programs that it has."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    async with running() as agent, attached() as program:
        callers = [await connected(NAME) for _ in range(8)]
        await until(lambda: len(agent.programs) == 9)
        lowest = os.open(os.devnull, os.O_RDONLY)
        os.close(lowest)
        waiting = agent_socket.address_of(NAME)
        with socket(AF_UNIX, SOCK_SEQPACKET) as late:
            try:
                resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, before[1]))
                late.connect(waiting)
                await until(lambda: "cannot let further programs in" in caplog.text)
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, before)
            await until(lambda: len(agent.programs) == 10)
        program.say(AgentKind.NUMBERS)
        async with asyncio.timeout(PATIENCE):
            await program.until(AgentKind.GRANTED)
        for caller in callers:
            caller.close()


async def test_admit__leaves_places_for_other_users(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent_module, "_MOST_OF_USER", 1)
    async with running(), attached():
        answer = await answer_to()
        assert answer.kind is AgentKind.REFUSED
        assert f"1 programs of user {os.geteuid()} are attached".encode() in answer.body


# ---- QPNs ---------------------------------------------------------------------------------------


def test_claim__when_the_host_has_the_most(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent_module, "_MOST_NUMBERS", 2)
    found: Numbers[str] = Numbers(count(3).__next__)
    assert found.grant("a", 2) == [3, 4]
    assert found.claim("a", 4) and not found.claim("a", 5)
    with pytest.raises(QueueFullError, match="this host has 2 QPs, the most"):
        found.grant("b", 1)
    found.free(3)
    assert found.grant("b", 1) == [5]


def test_take__its_own_and_free_ones_only() -> None:
    found: Numbers[str] = Numbers(count(3).__next__)
    found.take("a", 3, 0xFFFFFF)
    found.take("a", 3)
    assert found.owner(0xFFFFFF) == "a"
    with pytest.raises(ProtocolError, match="another program's"):
        found.take("b", 3)
    for wrong in (-1, 0, 2, 1 << 24):
        with pytest.raises(ProtocolError, match="is not a QPN"):
            found.take("b", wrong)


def test_has_ended__what_was_in_use_and_is_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mrc.agent.agent._MOST_ENDED", 2)
    numbers = Numbers[str](iter([3, 4, 5, 6, 3]).__next__)
    numbers.grant("a", 3)
    numbers.free(9)
    assert not any(map(numbers.has_ended, (3, 4, 5, 9)))
    numbers.free(3)
    numbers.forget("a")
    assert [numbers.has_ended(n) for n in (3, 4, 5)] == [False, True, True], "of the last two"
    numbers.grant("b", 2)
    assert not numbers.has_ended(3)


# ---- QPs that the agent does not know -----------------------------------------------------------


def asked(age: float) -> tuple[AgentListener, Mock]:
    """An agent of this age in seconds, and the connection of another one, which has sent resume."""
    listener = AgentListener.__new__(AgentListener)
    listener.age = age
    listener.agent = Mock()
    listener.agent.numbers.owner.return_value = None
    listener.agent.numbers.has_ended.return_value = False
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


async def test_ask__of_an_agent_that_was_stopped_before_its_programs_could_find_it() -> None:
    """What they sent meanwhile may be read after the question."""
    listener, channel = asked(age=0)
    channel.receive.return_value = {"to": 6}
    growing = asyncio.create_task(listener.grow_old())
    await asyncio.sleep(0)
    time.sleep(1.2)  # noqa: ASYNC251 the agent stands still
    await listener._answer_ask(channel)
    await cancelled(growing)
    channel.send.assert_awaited_once_with("ask")


async def test_ask__about_a_qp_that_a_program_has() -> None:
    listener, channel = asked(age=5)
    channel.receive.return_value = {"to": 6}
    program = Mock()
    program.connects.fate.side_effect = ["", "it has failed"]
    listener.agent = Mock()
    listener.agent.numbers.owner.return_value = program
    for expected in ({}, {"gone": "it has failed"}):
        await listener._answer_ask(channel)
        channel.send.assert_awaited_with("ask", **expected)


async def test_resume__a_program_that_ended_before_the_agent_started() -> None:
    listener, channel = asked(age=31)
    assert await listener._resume(channel, {"to": 6}) is None
    channel.send.assert_awaited_once_with("resume", gone=True)
