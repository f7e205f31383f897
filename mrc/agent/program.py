# SPDX-License-Identifier: Apache-2.0
"""A program that uses libmrc: a Context whose engine is in another process."""

from __future__ import annotations

import asyncio
import dataclasses
import errno
import logging
import random
import secrets
import socket
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from msgspec import Struct, structs

from mrc import running
from mrc.agent import device
from mrc.agent.door import Visitor
from mrc.agent.doorbell import Doorbell
from mrc.agent.end import LostChannel, ProgramEnd, ProgramEndedError
from mrc.agent.host import Host
from mrc.agent.knock import knock_of
from mrc.agent.note import read_note
from mrc.agent.opening import MOST_QPS, engine_config
from mrc.agent.reach import QpGoneError, patiently, resume
from mrc.agent.wanted import Wanted, wanted_of
from mrc.aio.connecting import connect
from mrc.aio.context import Context
from mrc.aio.end import End
from mrc.aio.establish import establish
from mrc.aio.local import Local, Terms
from mrc.binding import steering
from mrc.binding.native import CData
from mrc.binding.steering import Frame, SteeredEngine, read_struct, struct_bytes, text_of
from mrc.datapath.dispatch import Dispatcher
from mrc.datapath.links import Links, finder
from mrc.enums import AgentKind, QpState
from mrc.errors import ConnectError, Kind, MrcError, PathError, ProtocolError, StateError
from mrc.exchange import mpr
from mrc.exchange.foreign import shown
from mrc.exchange.oob import Channel
from mrc.fabric.addresses import IpAddress, pack_address, unpack_address
from mrc.fabric.ports import LocalPort
from mrc.linux.interfaces import interfaces
from mrc.tasks import cancelled

logger = logging.getLogger("mrc.agent")

ATTACH_SECONDS = 5.0
_OPEN_TRIES = 5  # an interface may disappear between its listing and the opening of its sockets
_GONE = (errno.ENODEV, errno.EADDRNOTAVAIL)
_MOST_CALLS = 1024  # of peers for QPs that the program has not moved to RTR
_FIRST_PAUSE_SECONDS = 0.1  # between attempts to find a peer's agent again
_LONGEST_PAUSE_SECONDS = 15.0
_DIALLER_SECONDS = 1.0  # in which the agent that had dialled a QP dials again


class _Opened(Struct):
    """The answer to OPEN, and what a program that ran under a former agent told."""

    answer: CData
    ports: list[LocalPort | None]
    qps: list[tuple[Wanted, bytes]]  # with the note of a QP that was ready


class Program(Context):
    """An attached program. Leaving it detaches the program, which then goes on without an agent."""

    def __init__(self, host: Host, connection: socket.socket, visitor: Visitor) -> None:
        self._host = host
        self._connection = connection
        self.visitor = visitor
        self._engine: SteeredEngine
        self._wanted: dict[int, Wanted] = {}  # QPs in RTR or beyond
        self._ends: dict[int, ProgramEnd] = {}
        self._refused: dict[int, str] = {}  # why a peer's agent was refused last, by QPN
        self._callers: dict[int, list[asyncio.Future[Wanted]]] = {}
        self._tasks: dict[int, asyncio.Task[None]] = {}  # connects, by QPN
        self._others: set[asyncio.Task[None]] = set()
        self._resumed: list[tuple[Wanted, bytes]] = []
        self._gids: list[IpAddress] = []
        self._told_ports = b""
        self._reason = ""  # why the agent has detached it
        self.doorbell = Doorbell(self)
        self.first: Frame
        """the first frame of the program"""
        self.gone = asyncio.Event()
        """the program has ended, or broken the protocol"""
        super().__init__(host.local.config)

    def __str__(self) -> str:
        return f"{self.config.program} ({self.visitor.pid})"

    @property
    def pid(self) -> int:
        """The process of the program."""
        return self.visitor.pid

    @property
    def ends(self) -> Sequence[ProgramEnd]:
        """The connected QPs."""
        return tuple(self._ends.values())

    # ---- Attach ---------------------------------------------------------------------------

    async def _make_local(self) -> Local:
        """Lets the program open its engine; raises ProtocolError, PathError, TimeoutError."""
        loop = asyncio.get_running_loop()
        shared = self._host.local
        async with asyncio.timeout(ATTACH_SECONDS):
            first = steering.checked(self.first, AgentKind.ATTACH)
            attach, _ = read_struct("mrc_agent_attach", first.body)
            sizes = (attach.command_bytes, attach.event_bytes, attach.config_bytes)
            if attach.version != steering.VERSION or sizes != steering.layout():
                raise ProtocolError(
                    "libmrc and the agent are of different versions of mrc: install one, and start"
                    " both again"
                )
            name = shown(text_of(attach.program), 63)
            self.config = dataclasses.replace(
                shared.config, program=name, local_view=True, metrics=None
            )
            links = Links(finder(self.config, shared.host))
            opened = await (
                self._adopt_engine(attach.n_qps, links) if attach.resumed else self._open(links)
            )
        self._engine = SteeredEngine(
            self._connection, opened.answer, self._on_frame, self._on_engine_gone
        )
        links.take(opened.ports, self._engine)
        links.on_change = partial(self._tell_ports, links)
        self._resumed = opened.qps
        fd = self._engine.fd

        def on_room(wanted: bool) -> None:
            if wanted:
                loop.add_writer(fd, self._engine.flush)
            else:
                loop.remove_writer(fd)

        self._engine.on_room = on_room
        return structs.replace(
            shared,
            config=self.config,
            links=links,
            dispatcher=Dispatcher(self._engine, steering.first_cookie()),
            rng=random.Random(secrets.randbits(64)),
        )

    async def receive(self) -> Frame:
        """The next frame, before the engine is there; ConnectionResetError, ProtocolError."""
        packet = await asyncio.get_running_loop().sock_recv(self._connection, steering.MAX_FRAME)
        if not packet:
            raise ConnectionResetError("the program has ended")
        return steering.unpack(packet)

    async def _open(self, links: Links) -> _Opened:
        for left in reversed(range(_OPEN_TRIES)):
            ports = links.find()
            there = [port for port in ports if port is not None]
            if not there:
                raise PathError("this host has no interface that is up and has an address")
            self._gids = device.gids_of(there)
            numbers = self._host.numbers.grant(self, steering.MAX_NUMBERS)
            fields = {
                "device": device.DEVICE.encode(),
                "gids": [pack_address(gid) for gid in self._gids],
                "n_gids": len(self._gids),
                "n_ports": len(there),
                "n_numbers": len(numbers),
                "ports": self._port_fields(there),
                "numbers": numbers,
                "config": engine_config(self.config, ports),
            }
            packet = steering.pack(AgentKind.OPEN, body=struct_bytes("mrc_agent_open", fields))
            await asyncio.get_running_loop().sock_sendall(self._connection, packet)
            frame = steering.checked(await self.receive(), AgentKind.OPENED)
            answer, _ = read_struct("mrc_agent_opened", frame.body)
            if answer.error == 0:
                self._told_ports = self._ports_body(there)
                return _Opened(answer, ports, [])
            if -answer.error not in _GONE or left == 0:
                break
        raise PathError(f"the program cannot open its sockets: {shown(text_of(answer.cause))}")

    async def _adopt_engine(self, count: int, links: Links) -> _Opened:
        """Takes over a program whose agent has gone."""
        frame = steering.checked(await self.receive(), AgentKind.OPENED)
        answer, _ = read_struct("mrc_agent_opened", frame.body)
        qps = []
        for _ in range(min(count, MOST_QPS)):
            frame = steering.checked(await self.receive(), AgentKind.CONNECT)
            fields, note = read_struct("mrc_agent_connect", frame.body)
            qps.append((wanted_of(fields), note if fields.ready else b""))
        # A port whose sockets the program has not opened may open later.
        ports = [
            port if port and answer.sports[port.plane - 1][0] else None for port in links.find()
        ]
        self._gids = device.gids_of([port for port in ports if port is not None])
        return _Opened(answer, ports, qps)

    def _port_fields(self, ports: Sequence[LocalPort]) -> list[dict[str, object]]:
        mtus = {each.name: each.mtu for each in interfaces() if each.up}
        return device.ports_of(ports, mtus, lambda nic: mpr.links_bps([nic]))

    def _ports_body(self, ports: Sequence[LocalPort]) -> bytes:
        return b"".join(struct_bytes("mrc_agent_port", each) for each in self._port_fields(ports))

    def _tell_ports(self, links: Links) -> None:
        """Tells the program of ports that went, came or changed their state."""
        body = self._ports_body(links.ports)
        if body != self._told_ports:
            self._told_ports = body
            self._engine.send(AgentKind.PORTS, body=body)

    def start(self) -> None:
        """The program is attached: takes up the QPs that it had under a former agent."""
        for wanted, note in self._resumed:
            if not self._host.numbers.claim(self, wanted.qpn):
                self.fail(wanted.qpn, "another program of this host has this number")
            elif note:
                self._spawn(self._take_up(wanted, note))
            else:
                self._want(wanted)

    # ---- Frames of the program --------------------------------------------------------------

    def _on_frame(self, frame: Frame) -> None:
        if frame.kind is AgentKind.NUMBERS:
            numbers = self._host.numbers.grant(self, steering.MAX_NUMBERS)
            self._engine.send(AgentKind.GRANTED, body=steering.numbers_bytes(numbers))
        elif frame.kind is AgentKind.CONNECT:
            fields, _ = read_struct("mrc_agent_connect", frame.body)
            wanted = wanted_of(fields)
            self._host.numbers.take(self, wanted.qpn)
            self._want(wanted)
        elif frame.kind is AgentKind.RELEASE:
            self._release(frame.value, forever=frame.cookie == 1)
        elif frame.kind is AgentKind.REQUEST:
            self._spawn(self._answer(frame))
        elif frame.kind is AgentKind.KNOCK:
            asked = knock_of(read_struct("mrc_agent_knock", frame.body)[0])
            self._host.numbers.take(self, asked.qpn, asked.by.number)
            self._spawn(self.doorbell.ring(asked))
        elif frame.kind is AgentKind.ADMIT:
            self.doorbell.admit(frame.value, frame.cookie)
        elif frame.kind is AgentKind.KEEP:
            self._host.numbers.take(self, frame.value)
        else:
            raise ProtocolError(f"the program sent {frame.kind.name}")

    async def _answer(self, frame: Frame) -> None:
        try:
            status, body = await self._host.control.request(self, frame.value, frame.body)
        except ProtocolError as error:
            self._on_engine_gone(str(error))
            return
        except Exception:
            logger.exception("bug in request %d of %s", frame.value, self)
            status, body = -errno.EIO, b"the agent has failed: its log says why"
        self._engine.send(AgentKind.ANSWER, status, frame.cookie, body)

    def send_ev_event(self, body: bytes) -> None:
        """An EV has changed its state, in this program or another."""
        self._engine.send(AgentKind.EV_EVENT, body=body)

    def peer_of(self, gid: bytes) -> str:
        """The host that a GID names."""
        return device.peer_of(unpack_address(gid), self._gids, self._opened().host)

    def address_of(self, gid: IpAddress) -> tuple[Local, str, int]:
        """What to dial for the agent of the host with this GID."""
        local = self._opened()
        peer = device.peer_of(gid, self._gids, local.host)
        source = device.source_of(gid, self._gids, peer)
        return structs.replace(local, source=source), peer, self._host.port

    def send(self, kind: AgentKind, value: int, cookie: int, body: bytes) -> None:
        """Sends the program a frame."""
        self._engine.send(kind, value, cookie, body)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._others.add(task)
        task.add_done_callback(self._others.discard)

    def fail(self, qpn: int, reason: str) -> None:
        """Tells the program that a QP cannot be connected."""
        logger.warning("%s: QP %#x: %s", self, qpn, reason)
        self._engine.send(AgentKind.FAILED, qpn, body=steering.line_of(reason))

    # ---- Connecting -------------------------------------------------------------------------

    def _want(self, wanted: Wanted) -> None:
        qpn = wanted.qpn
        if qpn in self._tasks or (qpn in self._ends and not self._ends[qpn].closed):
            raise ProtocolError(f"QP {qpn:#x} is connected already")
        self._wanted[qpn] = wanted
        for caller in self._callers.pop(qpn, []):
            if not caller.done():
                caller.set_result(wanted)
        work = self._dial(wanted) if wanted.dials else self._expect(wanted)
        task = self._tasks[qpn] = asyncio.get_running_loop().create_task(work)
        task.add_done_callback(partial(self._settle, qpn))

    def _settle(self, qpn: int, task: asyncio.Task[None]) -> None:
        if self._tasks.get(qpn) is task:
            del self._tasks[qpn]

    async def _dial(self, wanted: Wanted) -> None:
        local, host, terms = self._terms_of(wanted)
        seconds = self.config.timeouts.exchange
        attempt = partial(connect, local, terms, host, self._host.port, timeout=seconds)
        try:
            end = await patiently(attempt, seconds, self._host.dialling)
        except ConnectError as error:
            self.fail(wanted.qpn, f"{error}; does mrc agent run there?")
        except (MrcError, OSError) as error:
            self.fail(wanted.qpn, str(error))
        else:
            self.connected(end)

    async def _expect(self, wanted: Wanted) -> None:
        """Waits for the peer's agent, which dials."""
        seconds = self.config.timeouts.exchange
        await running.sleep(seconds)
        late = f"its agent has not connected QP {wanted.dest_qpn:#x} in {seconds:g} s"
        why = self._refused.get(wanted.qpn, "does mrc agent run there?")
        self.fail(wanted.qpn, f"{wanted.dest_gid}: {late}: {why}")

    async def until_wanted(self, qpn: int) -> Wanted:
        """Waits until the program moves the QP to RTR: either side may do that first."""
        if qpn in self._wanted:
            return self._wanted[qpn]
        if len(self._callers) >= _MOST_CALLS:
            raise ConnectError(f"too many peers wait for QPs of {self.config.program}")
        caller: asyncio.Future[Wanted] = asyncio.get_running_loop().create_future()
        self._callers.setdefault(qpn, []).append(caller)
        try:
            return await caller
        finally:
            if (waiting := self._callers.get(qpn)) and caller in waiting:
                waiting.remove(caller)
                if not waiting:
                    del self._callers[qpn]

    async def accept(self, channel: Channel, wanted: Wanted) -> End:
        """The listening side of an exchange that the peer's agent has begun."""
        local, _, terms = self._terms_of(wanted)
        known = asyncio.Event()  # it is the peer that the program wants

        def check(*peer: Any) -> None:
            terms.check(*peer)
            known.set()

        try:
            return await establish(local, channel, structs.replace(terms, check=check), first=False)
        except ConnectError as error:  # not yet the end: a stranger may have asked
            self._refused[wanted.qpn] = str(error)
            if known.is_set() and error.kind is Kind.ENDED:  # the engines may have talked already
                self._engine.send(AgentKind.GONE, wanted.qpn)
            raise

    def _terms_of(self, wanted: Wanted) -> tuple[Local, str, Terms]:
        local, host, _ = self.address_of(wanted.dest_gid)
        config = wanted.config(local.config)
        ev_profile, cc_profile = self._host.profiles(wanted)
        terms = Terms(
            wanted.private, ev_profile, cc_profile, admit=wanted.admit,
            check=partial(device.check_host, wanted.dest_gid, self._gids, local.host),
            queue=partial(wanted.queue, config), end=partial(ProgramEnd, wanted),
            peer=wanted.peer if wanted.messages else None,
        )  # fmt: skip
        return structs.replace(local, config=config), host, terms

    def connected(self, end: End) -> None:
        """Both ends are in RTS."""
        assert isinstance(end, ProgramEnd)
        qpn = end.queue.qpn
        if (task := self._tasks.pop(qpn, None)) is not None and task is not asyncio.current_task():
            task.cancel()
        if qpn not in self._wanted:  # the program has destroyed it meanwhile
            self._spawn(end.close(orderly=True))
            return
        self._keep(end)
        self._engine.send(AgentKind.READY, body=end.ready())
        self._watch_peer(end)

    def _watch_peer(self, end: ProgramEnd) -> None:
        tell = partial(self._engine.send, AgentKind.GONE, end.queue.qpn, 0)
        end.on_peer_gone(lambda reason: tell(steering.line_of(reason)))

    def _keep(self, end: ProgramEnd) -> None:
        qpn = end.queue.qpn
        end.on_hangup = lambda: self._look_for(end)
        end.on_failure = partial(self.fail, qpn)
        self._ends[qpn] = end
        self._adopt(end)
        self._spawn(self._host.control.watch(end))

    # ---- Agents that start again -------------------------------------------------------------

    async def _take_up(self, wanted: Wanted, packed: bytes) -> None:
        """Makes the end of a QP that was connected under a former agent."""
        try:
            local, _, terms = self._terms_of(wanted)
            note = await asyncio.to_thread(read_note, packed)  # a long one stops nobody else
            terms.ev_profile._take()
            terms.cc_profile._take()
            queue = wanted.queue(local.config)
            queue.state = QpState.RTS
            channel = LostChannel(note.called, note.remote)
            end = ProgramEnd(
                wanted, local.dispatcher, queue, note.evs, channel, note.hello,
                local.config, terms.ev_profile, terms.cc_profile,
                terms.peer(local.dispatcher) if terms.peer else None,
            )  # fmt: skip
            await end.controller.start()
        except (MrcError, OSError) as error:
            self.fail(wanted.qpn, f"cannot be taken up again: {error}")
            return
        self._wanted[wanted.qpn] = wanted
        self._keep(end)
        self._watch_peer(end)
        end.start(note.path_mtu, note.window)  # finds that its channel is lost

    def _look_for(self, end: ProgramEnd) -> None:
        """The agent that had dialled dials again; if its program has ended, the other one asks."""
        if not self._engine.gone:
            self._spawn(self._redial(end, 0.0 if end.wanted.dials else _DIALLER_SECONDS))

    async def _redial(self, end: ProgramEnd, patience: float) -> None:
        """Dials until the agents are connected, or the peer's one says that the QP is gone."""
        wanted = end.wanted
        local, host, port = self.address_of(wanted.dest_gid)
        pause = _FIRST_PAUSE_SECONDS
        await asyncio.sleep(patience)
        while self._ends.get(wanted.qpn) is end and not (end.joined or end.peer_gone.is_set()):
            try:
                end.rejoin(await resume(local, host, port, wanted))
            except QpGoneError:
                end.on_qp_gone()
            except (MrcError, OSError) as error:
                logger.debug("QP %#x: %s", wanted.qpn, error)
                await asyncio.sleep(local.rng.uniform(pause / 2, pause))
                pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)

    def end_of(self, qpn: int) -> tuple[ProgramEnd, Wanted] | None:
        """A connected QP."""
        end = self._ends.get(qpn)
        return None if end is None else (end, end.wanted)

    # ---- End --------------------------------------------------------------------------------

    def _release(self, qpn: int, *, forever: bool) -> None:
        self._host.numbers.take(self, qpn)
        self._refused.pop(qpn, None)
        task, end = self._tasks.get(qpn), self._ends.get(qpn)
        if task is None or not forever:
            self._wanted.pop(qpn, None)
            self._tasks.pop(qpn, None)
        self._spawn(self._end_qp(qpn, task, end, forever=forever))

    async def _end_qp(
        self, qpn: int, task: asyncio.Task[None] | None, end: End | None, *, forever: bool
    ) -> None:
        if task is not None and forever:  # the peer may wait for answers: first they are connected
            await asyncio.wait([task], timeout=self.config.timeouts.linger)
            end = self._ends.get(qpn)
            self._wanted.pop(qpn, None)
        if task is not None:
            await cancelled(task)
        if end is not None:
            await end.close(orderly=True)
            if self._ends.get(qpn) is end:
                del self._ends[qpn]
        if forever:
            self._host.numbers.free(qpn)

    def _on_engine_gone(self, reason: str) -> None:
        if reason:
            logger.warning("%s: detached: %s", self, shown(reason))
        self._reason = reason
        self.gone.set()

    async def detach(self, *, told: bool) -> None:
        """Forgets the program. `told`: it has ended, and its peers are to know."""
        if told:
            await asyncio.gather(*(end.tell_gone(self._reason) for end in self.ends))
        # For peers of connects that still run.
        why = MrcError(self._reason) if self._reason else ProgramEndedError("the program has ended")
        await cancelled(*self._tasks.values(), *self._others, why=why if told else None)
        with suppress(StateError):
            await self._opened().dispatcher.close()
        await self._close(orderly=False)
