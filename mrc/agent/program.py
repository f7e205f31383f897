# SPDX-License-Identifier: Apache-2.0
"""A program that uses libmrc: a Context whose engine is in another process, and its QPs: how they
connect, stay with the agents of their peers, and end.
"""

from __future__ import annotations

import asyncio
import dataclasses
import errno
import json
import logging
import random
import secrets
import socket
import struct
import zlib
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

from msgspec import Struct, structs, to_builtins

from mrc.agent import steering
from mrc.agent.parameters import (
    OpenEngine,
    QpParameters,
    adopt_engine,
    check_host,
    emulated_in,
    open_engine,
    peer_of,
    ports_body,
    qp_parameters,
    source_of,
)
from mrc.agent.peers import QpGoneError, QpRequests, ask, described, qp_request_of, repeat, resume
from mrc.agent.socket import Credentials
from mrc.agent.steering import (
    MAX_RESUME,
    AgentFrame,
    AgentKind,
    ProgramEngine,
    line_of,
    read_struct,
    struct_bytes,
    text_of,
)
from mrc.aio.context import Context
from mrc.aio.qp import QP
from mrc.connect.connect import Local, Terms
from mrc.connect.oob import Channel, Hello
from mrc.connect.parse import parse, shown
from mrc.engine.dispatch import Dispatcher
from mrc.engine.paths import PathEv
from mrc.engine.ports import LocalPorts
from mrc.enums import QpState
from mrc.errors import (
    ArgumentError,
    ConnectError,
    Kind,
    MrcError,
    PeerGoneError,
    ProtocolError,
    StateError,
)
from mrc.fabric.hostconfig import IpAddress
from mrc.tasks import Limit, cancelled
from mrc.typed import take
from mrc.units import digits

if TYPE_CHECKING:
    from mrc.agent.agent import Agent

logger = logging.getLogger("mrc.agent")

# ---- What the next agent must know of a QP, as bytes that its program keeps ---------------------

_MOST = 1 << 20  # bytes of a state that is unpacked: thousands of EVs


class ResumeState(Struct, frozen=True):
    """A connected QP."""

    called: str
    """what this host calls the peer; empty: the peer connected"""
    remote: str
    """address of the peer's agent"""
    path_mtu: int
    window: int
    evs: tuple[PathEv, ...]
    """in the order of the engine's array"""
    peer: dict[str, Any]
    """the peer's hello"""

    @property
    def hello(self) -> Hello:
        """The peer's hello."""
        return Hello.from_dict(self.peer)


def pack_resume(
    called: str, remote: str, path_mtu: int, window: int, evs: tuple[PathEv, ...], peer: Hello
) -> bytes:
    """The bytes of a state; empty if it is too large to keep: then no later agent knows the QP."""
    state = ResumeState(called, remote, path_mtu, window, evs, peer.to_dict())
    text = json.dumps(to_builtins(state, enc_hook=str)).encode()
    packed = zlib.compress(text)
    return packed if len(packed) <= MAX_RESUME and len(text) <= _MOST else b""


def unpack_resume(packed: bytes) -> ResumeState:
    """The state in these bytes; raises ProtocolError."""
    try:
        unpacker = zlib.decompressobj()
        text = unpacker.decompress(packed, _MOST)
        if unpacker.unconsumed_tail:
            raise ValueError(f"unpacked it has more than {_MOST} bytes")
        return take(parse(text), ResumeState)
    except (ValueError, zlib.error) as error:
        raise ProtocolError(f"a program kept a wrong note: {error}") from None


class LostChannel(Channel):
    """In place of the connection to an agent that has to be found again."""

    def __init__(self, called: str, remote: str) -> None:
        self.called = called
        self.remote = remote
        self.secured = False
        self.peer_identity = ""
        self._at_end = []

    async def send(self, kind: str, /, **fields: Any) -> NoReturn:
        """Raises PeerGoneError."""
        raise PeerGoneError("the peer's agent is not connected")

    async def receive(self, limit: int = 0) -> NoReturn:
        """Raises PeerGoneError."""
        raise PeerGoneError("the peer's agent is not connected")

    async def close(self) -> None:
        """Nothing is open."""
        self._end()

    def abort(self) -> None:
        """Nothing is open."""
        self._end()


# ---- QPs ----------------------------------------------------------------------------------------

_LOOK_SECONDS = 0.002  # between two looks at outstanding work requests, the first time
_LONGEST_LOOK_SECONDS = 0.05
_MOST_CALLS = 1024  # of peers for QPs that the program has not moved to RTR
_FIRST_PAUSE_SECONDS = 0.1  # between attempts to find a peer's agent again
_LONGEST_PAUSE_SECONDS = 15.0
_DIALLER_SECONDS = 1.0  # in which the agent that had dialled a QP dials again
_ASK_SECONDS = 1.0  # in which a peer's agent dials, usually; then this one asks, ever more seldom
_ASKED_SECONDS = 5.0  # for the answer
_ASKING = 4  # questions of a program at one time: they must not keep connects waiting


class ProgramQP(QP):
    """One end of a QP. The TCP connection joins two agents, not two programs: a QP outlives it."""

    def __init__(self, parameters: QpParameters, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.parameters = parameters
        self._tell: Callable[[str], None] | None = None
        self._peer_reason = ""
        self.on_hangup: Callable[[], None] = lambda: None
        """called when the connection to the peer's agent is lost"""
        self.on_failure: Callable[[str], None] = lambda reason: None
        """called with the reason when the agent has found out that the QP cannot go on"""
        self._joined = asyncio.Event()  # the two agents are connected
        if not isinstance(self._channel, LostChannel):
            self._joined.set()

    def on_peer_gone(self, tell: Callable[[str], None]) -> None:
        """`tell` is called when the peer has closed the QP, or its program has ended, with the
        reason if the peer has named one.

        That may have been before the program here was told that the QP is ready.
        """
        self._tell = tell
        if self._peer_gone:
            tell(self._peer_reason)
            self._fail_messages()

    @property
    def _may_wait(self) -> bool:
        """Work requests are the program's own: its engine knows them."""
        return True

    def _fail(self, error: MrcError) -> None:
        """As that of a Context's QP; the program gets the reason before its QP ends."""
        if not self.closed:
            self.on_failure(str(error))
        super()._fail(error)

    def ready(self) -> bytes:
        """What the program is told when both ends are in RTS: a struct mrc_agent_ready, and the
        resume state.
        """
        fields = {
            "qpn": self._queue.qpn,
            "path_mtu": self._path_mtu,
            "mpr": self._window,
            "max_wimm": min(self._queue.max_wimm, self._peer.attributes.max_wimm),
        }
        if (emulated := emulated_in(self._peer.private)) is not None:
            fields |= to_builtins(emulated)
        channel = self._channel
        state = pack_resume(
            channel.called,
            channel.remote,
            self._path_mtu,
            self._window,
            tuple(self._paths),
            self._peer,
        )
        return struct_bytes("mrc_agent_ready", fields) + state

    async def _on_hangup(self, error: MrcError) -> None:
        if isinstance(error, PeerGoneError):
            self._look_again()
        else:
            self._joined.clear()
            await super()._on_hangup(error)

    def _on_tcp_lost(self, error: OSError) -> None:
        super()._on_tcp_lost(error)
        self._look_again()

    def _look_again(self) -> None:
        self._joined.clear()
        if not self._peer_gone:
            self.on_hangup()

    def _on_gone(self, error: MrcError | None) -> None:
        if not (self._peer_reason or error is None or isinstance(error, PeerGoneError)):
            self._peer_reason = str(error)
        if not self._peer_gone and self._tell is not None:
            # Before its messages fail, so that their errors name the reason.
            self._tell(self._peer_reason)
        super()._on_gone(error)

    def _fail_messages(self) -> None:
        if self._tell is not None:  # else later: first the program hears why
            super()._fail_messages()

    def _without_bye(self, reason: str = "") -> PeerGoneError:
        self._peer_reason = reason
        return super()._without_bye(reason)

    async def _until_idle(self) -> None:
        pause = _LOOK_SECONDS
        while self._queue.state is QpState.RTS and (await self.info()).outstanding:
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_LOOK_SECONDS)

    @property
    def joined(self) -> bool:
        """Whether the two agents are connected."""
        return self._joined.is_set()

    def on_qp_gone(self) -> None:
        """The QP at the peer, or its program, has ended."""
        if not self._peer_gone:
            self._on_gone(self._without_bye())

    def rejoin(self, channel: Channel) -> None:
        """The two agents are connected again."""
        if self._watcher is not None:
            self._watcher.cancel()
        self._channel.abort()
        self._channel = channel
        self._bye_ok.clear()
        self._watcher = asyncio.get_running_loop().create_task(self._watch())
        self._joined.set()

    async def _say_bye(self) -> bool:
        if not self._peer_gone:
            with suppress(TimeoutError):  # then the peer finds out by its own timeouts
                async with Limit(self._config.timeouts.linger):
                    await self._joined.wait()
        return await super()._say_bye()

    async def tell_gone(self, reason: str) -> None:
        """Tells the peer's agent that the program here has ended; `reason`: why, if it is known.

        A program may end because its QP has failed: then this is the reason.
        """
        await self._send_gone(reason or self._fault)  # False: nobody is there to be told


@contextmanager
def _of_program(qpn: int) -> Iterator[None]:
    """A program may move its QP to ERR meanwhile; its engine then refuses the next step."""
    try:
        yield
    except ArgumentError as error:
        raise ConnectError(f"QP {qpn:#x} has failed before it was connected: {error}") from error


class Connects:
    """The QPs of one program, from RTR until they are released."""

    def __init__(
        self, program: ProgramContext, agent: Agent, adopt: Callable[[QP], object]
    ) -> None:
        self._program = program
        self._agent = agent
        self._adopt = adopt
        self.ends: dict[int, ProgramQP] = {}
        """the connected QPs"""
        self._parameters: dict[int, QpParameters] = {}  # QPs in RTR or beyond
        self._refused: dict[int, str] = {}  # why a peer's agent was refused last
        self._failures: dict[int, str] = {}  # QPs that never connect, and why
        self._met: set[int] = set()  # QPs whose exchange runs: the peer has sent its hello
        self._asking = asyncio.Semaphore(_ASKING)
        self._callers: list[tuple[int, asyncio.Future[QpParameters]]] = []
        self._tasks: dict[int, asyncio.Task[None]] = {}  # the last connect of each

    # ---- Connecting -------------------------------------------------------------------------

    def connect(self, parameters: QpParameters) -> None:
        """The program has moved a QP to RTR; raises ProtocolError."""
        qpn = parameters.qpn
        task, end = self._tasks.get(qpn), self.ends.get(qpn)
        if (task is not None and not task.done()) or (end is not None and not end.closed):
            raise ProtocolError(f"QP {qpn:#x} is connected already")
        self._met.discard(qpn)
        self._parameters[qpn] = parameters
        self._failures.pop(qpn, None)
        for called, caller in self._callers:
            if called == qpn and not caller.done():
                caller.set_result(parameters)
        work = self._dial(parameters) if parameters.dials else self._expect(parameters)
        self._tasks[qpn] = self._program.spawn(work)

    async def _dial(self, parameters: QpParameters) -> None:
        try:
            local, host, terms = self._terms_of(parameters)
            seconds = local.config.timeouts.exchange
            attempt = partial(local.connect, terms, host, self._agent.port, timeout=seconds)
            with _of_program(parameters.qpn):
                end = await repeat(attempt, seconds, self._agent.dialling)
        except (MrcError, OSError) as error:
            self._fail(parameters.qpn, described(error))
        else:
            self.connected(end)

    async def _expect(self, parameters: QpParameters) -> None:
        """Waits for the peer's agent, which dials, or answers that it never will."""
        seconds = self._agent.local.config.timeouts.exchange
        try:
            async with Limit(seconds):
                self._fail(parameters.qpn, await self._until_gone(parameters))
        except TimeoutError:
            late = f"its agent has not connected QP {parameters.dest_qpn:#x} in {digits(seconds)} s"
            why = self._refused.get(parameters.qpn, "does mrc agent run there?")
            self._fail(parameters.qpn, f"{parameters.dest_gid}: {late}: {why}")

    async def _until_gone(self, parameters: QpParameters) -> str:
        """Asks the peer's agent until it answers that its QP never connects, and why."""
        pause = _ASK_SECONDS
        while True:
            with suppress(TimeoutError):  # as asyncio.sleep, but a stop does not count
                async with Limit(pause):
                    await asyncio.get_running_loop().create_future()
            pause *= 2
            try:
                async with self._asking, Limit(_ASKED_SECONDS):
                    await ask(*self._program.address_of(parameters.dest_gid), parameters)
            except QpGoneError as error:
                return str(error)
            except (MrcError, OSError) as error:  # it may start again
                logger.debug("QP %#x: %s", parameters.qpn, error)

    def _fail(self, qpn: int, reason: str) -> None:
        self._failures[qpn] = reason
        self._program.fail(qpn, reason)

    def fate(self, qpn: int, private: dict[str, Any]) -> str:
        """Why a QP never connects to the end that has sent this; empty: it may still do so."""
        try:
            if qpn in self._parameters:
                self._parameters[qpn].admit(private)
        except (ConnectError, ProtocolError) as error:
            return str(error)
        return self._failures.get(qpn, "")

    async def until_rtr(self, qpn: int) -> QpParameters:
        """Waits until the program moves the QP to RTR: either side may do that first."""
        if qpn in self._parameters:
            return self._parameters[qpn]
        if len(self._callers) >= _MOST_CALLS:
            raise ConnectError("too many peers wait for QPs of this program")
        caller: asyncio.Future[QpParameters] = asyncio.get_running_loop().create_future()
        self._callers.append((qpn, caller))
        try:
            return await caller
        finally:
            self._callers.remove((qpn, caller))

    async def accept(self, channel: Channel, parameters: QpParameters) -> QP:
        """The listening side of an exchange that the peer's agent has begun."""
        local, _, terms = self._terms_of(parameters)
        known = asyncio.Event()  # it is the peer that the program has named

        def check(*peer: Any) -> None:
            terms.check(*peer)
            known.set()

        try:
            with _of_program(parameters.qpn):
                return await local.establish(
                    channel, structs.replace(terms, check=check), first=False
                )
        except BaseException as error:
            if known.is_set():
                self._met.discard(parameters.qpn)
            if isinstance(error, ConnectError):  # not yet the end: a stranger may have asked
                self._refused[parameters.qpn] = str(error)
                if known.is_set() and error.kind is Kind.ENDED:  # the engines may have talked
                    self._program.send(AgentKind.GONE, parameters.qpn)
            raise

    def _terms_of(self, parameters: QpParameters) -> tuple[Local, str, Terms]:
        def check(*peer: Any) -> None:
            check_host(parameters.dest_gid, self._program.engine.gids, local.host, *peer)
            self._met.add(parameters.qpn)

        local, host, _ = self._program.address_of(parameters.dest_gid)
        config = parameters.config(local.config)
        ev_profile, cc_profile = self._agent.profiles(parameters)
        terms = Terms(
            parameters.private, ev_profile, cc_profile, check=check,
            admit=lambda peer: parameters.admit(peer.private),
            queue=partial(parameters.queue, config), end=partial(ProgramQP, parameters),
            peer=parameters.peer if parameters.messages else None, rejoins=False,
        )  # fmt: skip
        return structs.replace(local, config=config), host, terms

    def connected(self, end: QP) -> None:
        """Both ends are in RTS."""
        assert isinstance(end, ProgramQP)
        qpn = end.qpn
        if (task := self._tasks.pop(qpn, None)) is not None and task is not asyncio.current_task():
            task.cancel()
        if qpn not in self._parameters:  # the program has destroyed it meanwhile
            self._program.spawn(end.close())
            return
        self._keep(end)
        self._program.send(AgentKind.READY, body=end.ready())
        end.on_peer_gone(partial(self._tell_gone, qpn))

    def _keep(self, end: ProgramQP) -> None:
        end.on_hangup = partial(self._look_for, end)
        end.on_failure = partial(self._program.fail, end.qpn)
        self.ends[end.qpn] = end
        self._adopt(end)
        self._program.spawn(self._agent.requests.watch(end))

    def _tell_gone(self, qpn: int, reason: str) -> None:
        self._program.send(AgentKind.GONE, qpn, body=line_of(reason))

    # ---- Agents that start again -------------------------------------------------------------

    async def take_up(self, parameters: QpParameters, state: bytes) -> None:
        """A QP that was connected under a former agent, by its resume state."""
        try:
            local, _, terms = self._terms_of(parameters)
            former = await asyncio.to_thread(unpack_resume, state)  # a long one stops nobody else
            terms.ev_profile._take()
            terms.cc_profile._take()
            queue = parameters.queue(local.config)
            queue.state = QpState.RTS
            end = ProgramQP(
                parameters, local.dispatcher, queue, former.evs,
                LostChannel(former.called, former.remote), former.hello, local.config,
                terms.ev_profile, terms.cc_profile,
                terms.peer(local.dispatcher) if terms.peer else None,
            )  # fmt: skip
            await end._controller.start()
            end._start(former.path_mtu, former.window)  # finds that its channel is lost
        except (MrcError, OSError) as error:
            self._program.fail(parameters.qpn, f"cannot be taken up again: {error}")
            return
        self._parameters[parameters.qpn] = parameters
        self._keep(end)
        end.on_peer_gone(partial(self._tell_gone, parameters.qpn))

    def _look_for(self, end: ProgramQP) -> None:
        """The agent that had dialled dials again; if its program has ended, the other one asks."""
        if not self._program.detached:
            self._program.spawn(
                self._redial(end, 0.0 if end.parameters.dials else _DIALLER_SECONDS)
            )

    async def _redial(self, end: ProgramQP, patience: float) -> None:
        """Dials until the agents are connected, or the peer's one says that the QP is gone."""
        parameters = end.parameters
        local, host, port = self._program.address_of(parameters.dest_gid)
        pause = _FIRST_PAUSE_SECONDS
        await asyncio.sleep(patience)
        while self.ends.get(parameters.qpn) is end and not (end.joined or end.ended):
            try:
                end.rejoin(await resume(local, host, port, parameters))
            except QpGoneError:
                end.on_qp_gone()
            except (MrcError, OSError) as error:
                logger.debug("QP %#x: %s", parameters.qpn, error)
                await asyncio.sleep(local.rng.uniform(pause / 2, pause))
                pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)

    # ---- End --------------------------------------------------------------------------------

    def release(self, qpn: int, *, forever: bool) -> None:
        """The program has moved a QP to RESET, or destroyed it `forever`."""
        self._refused.pop(qpn, None)
        self._failures.pop(qpn, None)
        task, end = self._tasks.get(qpn), self.ends.get(qpn)
        if task is None or not forever:
            self._parameters.pop(qpn, None)
            self._tasks.pop(qpn, None)
        self._program.spawn(self._end(qpn, task, end, forever=forever))

    async def _end(
        self, qpn: int, task: asyncio.Task[None] | None, end: QP | None, *, forever: bool
    ) -> None:
        if task is not None and forever:  # the peer may wait for answers: first they are connected
            with suppress(TimeoutError):
                async with Limit(self._agent.local.config.timeouts.linger):
                    await asyncio.wait([task])
            if qpn in self._met:  # the exchange has a limit of its own
                await asyncio.wait([task])
            end = self.ends.get(qpn)
            self._parameters.pop(qpn, None)
            self._tasks.pop(qpn, None)
        if task is not None:
            await cancelled(task)
        if end is not None:
            await end.close()
            if self.ends.get(qpn) is end:
                del self.ends[qpn]
        if forever:
            self._agent.numbers.free(qpn)


# ---- Programs -----------------------------------------------------------------------------------


class ProgramEndedError(MrcError):
    """What ends the connects of a program that has ended without giving a reason."""

    kind = Kind.ENDED


class ProgramContext(Context):
    """An attached program. Leaving it detaches the program, which then goes on without an agent."""

    def __init__(self, agent: Agent, connection: socket.socket, credentials: Credentials) -> None:
        self._agent = agent
        self._connection = connection
        self.credentials = credentials
        self._steered: ProgramEngine
        self._tasks: set[asyncio.Task[None]] = set()
        self.detached = False
        self._reason = ""  # why the agent has detached it
        self.qp_requests = QpRequests(self)
        self.connects = Connects(self, agent, self._adopt)
        self.first: AgentFrame
        """the first frame of the program"""
        self.engine: OpenEngine
        self.gone = asyncio.Event()
        """the program has ended, or broken the protocol"""
        super().__init__(agent.local.config)

    def __str__(self) -> str:
        return f"{self.config.program} ({self.credentials.pid})"

    @property
    def pid(self) -> int:
        """The process of the program."""
        return self.credentials.pid

    # ---- Attach ---------------------------------------------------------------------------

    async def _make_local(self) -> Local:
        """Lets the program open its engine; raises ProtocolError, PathError.

        It may take its time, as in a debugger: its connection ends when it ends.
        """
        shared = self._agent.local
        attach, _ = steering.checked(self.first, AgentKind.ATTACH, "mrc_agent_attach")
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
        links = LocalPorts.of(self.config, shared.host)
        if attach.resumed:
            self.engine = await adopt_engine(self._connection, links, attach.n_qps)
        else:
            grant = partial(self._agent.numbers.grant, self, steering.MAX_NUMBERS)
            self.engine = await open_engine(self._connection, self.config, links, grant)
        self._steered = ProgramEngine(
            self._connection, self.engine.answer, self._on_frame, self._on_engine_gone
        )
        links.take(self.engine.ports, self._steered)
        links.on_change.append(partial(self._tell_ports, links))
        return structs.replace(
            shared,
            config=self.config,
            links=links,
            dispatcher=Dispatcher(self._steered, steering.first_cookie()),
            rng=random.Random(secrets.randbits(64)),
        )

    def _tell_ports(self, links: LocalPorts) -> None:
        """Tells the program of ports that went, came or changed their state."""
        body = ports_body(links.ports)
        if body != self.engine.ports_body:
            self.engine.ports_body = body
            self.send(AgentKind.PORTS, body=body)

    def start(self) -> None:
        """The program is attached: takes up the QPs that it had under a former agent."""
        for parameters, state in self.engine.qps:
            if not self._agent.numbers.claim(self, parameters.qpn):
                self.fail(parameters.qpn, "another program of this host has this number")
            elif state:
                self.spawn(self.connects.take_up(parameters, state))
            else:
                self.connects.connect(parameters)

    # ---- Frames of the program --------------------------------------------------------------

    def _on_frame(self, frame: AgentFrame) -> None:
        if frame.kind is AgentKind.NUMBERS:
            numbers = self._agent.numbers.grant(self, steering.MAX_NUMBERS)
            self.send(AgentKind.GRANTED, body=struct.pack(f"={len(numbers)}I", *numbers))
        elif frame.kind is AgentKind.CONNECT:
            parameters = qp_parameters(read_struct("mrc_agent_connect", frame.body)[0])
            self._agent.numbers.take(self, parameters.qpn)
            self.connects.connect(parameters)
        elif frame.kind is AgentKind.RELEASE:
            self._agent.numbers.take(self, frame.value)
            self.connects.release(frame.value, forever=frame.cookie == 1)
        elif frame.kind is AgentKind.REQUEST:
            self.spawn(self._answer(frame))
        elif frame.kind is AgentKind.QP_REQUEST:
            request = qp_request_of(read_struct("mrc_agent_qp_request", frame.body)[0])
            self._agent.numbers.take(self, request.qpn, request.by.number)
            self.spawn(self.qp_requests.ask(request))
        elif frame.kind is AgentKind.ADMIT:
            self.qp_requests.admit(frame.value, frame.cookie)
        elif frame.kind is AgentKind.KEEP:
            self._agent.numbers.take(self, frame.value)
        else:
            raise ProtocolError(f"the program sent {frame.kind.name}")

    async def _answer(self, frame: AgentFrame) -> None:
        try:
            status, body = await self._agent.requests.request(self, frame.value, frame.body)
        except ProtocolError as error:
            self._on_engine_gone(str(error))
            return
        except Exception:
            logger.exception("bug in request %d of %s", frame.value, self)
            status, body = -errno.EIO, b"the agent has failed: its log says why"
        self.send(AgentKind.ANSWER, status, frame.cookie, body)

    # ---- For the parts of the agent -----------------------------------------------------------

    def send(self, kind: AgentKind, value: int = 0, cookie: int = 0, body: bytes = b"") -> None:
        """Sends the program a frame."""
        self._steered.send(kind, value, cookie, body)

    def fail(self, qpn: int, reason: str) -> None:
        """Tells the program that a QP cannot be connected."""
        logger.warning("%s: QP %#x: %s", self, qpn, reason)
        self.send(AgentKind.FAILED, qpn, body=steering.line_of(reason))

    def address_of(self, gid: IpAddress) -> tuple[Local, str, int]:
        """What to dial for the agent of the host with this GID."""
        local = self._opened()
        peer = peer_of(gid, self.engine.gids, local.host)
        source = source_of(gid, self.engine.gids, peer)
        return structs.replace(local, source=source), peer, self._agent.port

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Starts a task that ends when the program is detached."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    # ---- End --------------------------------------------------------------------------------

    def _on_engine_gone(self, reason: str) -> None:
        if reason:
            logger.warning("%s: detached: %s", self, shown(reason))
        self._reason = reason
        self.gone.set()

    async def detach(self, *, ended: bool) -> None:
        """Forgets the program. `ended`: its peers are to know."""
        self.detached = True
        if ended:
            ends = self.connects.ends.values()
            await asyncio.gather(*(end.tell_gone(self._reason) for end in ends))
        # For peers of connects that still run.
        why = MrcError(self._reason) if self._reason else ProgramEndedError("the program has ended")
        await cancelled(*self._tasks, why=why if ended else None)
        with suppress(StateError):
            await self._opened().dispatcher.close()
        await self._close(orderly=False)
