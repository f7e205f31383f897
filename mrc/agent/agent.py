# SPDX-License-Identifier: Apache-2.0
"""The agent: it attaches the programs of a host, and connects their QPs with those of peers."""

from __future__ import annotations

import asyncio
import functools
import logging
import socket
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from typing import Any, Generic, Self, TypeVar

import msgspec

from mrc import versions
from mrc.agent import socket as agent_socket
from mrc.agent import steering
from mrc.agent.parameters import QpParameters, receive
from mrc.agent.peers import ASK, QP_REQUEST, RESUME, qp_request_in
from mrc.agent.profiles import RequestError, Requests
from mrc.agent.program import ProgramContext, ProgramQP
from mrc.agent.rdma_cm import CM, CM_END, CmSession, RdmaCm
from mrc.agent.socket import AgentFunction, AgentProfiles, CcProfileRow, Credentials, EvProfileRow
from mrc.agent.steering import AgentKind
from mrc.aio.context import Context
from mrc.aio.qp import QP
from mrc.config import ContextConfig
from mrc.connect.connect import Local
from mrc.connect.listener import Listener
from mrc.connect.oob import Channel
from mrc.connect.profiles import CcProfile, EvProfile
from mrc.engine.queue_pair import QueuePair
from mrc.errors import BusyError, ConnectError, MrcError, ProtocolError, QueueFullError, StateError
from mrc.tasks import cancelled, took_cancellation

logger = logging.getLogger("mrc.agent")

Owner = TypeVar("Owner")
EXCHANGE_SECONDS = 30.0  # for a program to move its QP to RTR after its peer has
_PROBE_SECONDS = 3.0  # to connect to another agent
_DIALLING = 32  # exchanges that this host begins and that run at one time
_MOST_PROGRAMS = 256
_MOST_OF_USER = _MOST_PROGRAMS - 32  # so that no user takes the last place from the others
_MOST_ROWS, _MOST_PATHS = 256, 16  # in one answer
_YOUNG_SECONDS = 1.0  # programs look for the next agent every 0.2 s
_OLD_SECONDS = 30.0  # programs that run, though seldom, have found the agent
_MOST_NUMBERS = 1 << 20  # on one host; then a sixteenth of all numbers is in use
_MOST_ENDED = 1 << 16  # of which the agent remembers that they have ended


class Numbers(Generic[Owner]):
    """Which program has which QPN."""

    def __init__(self, draw: Callable[[], int]) -> None:
        self._draw = draw
        self._owners: dict[int, Owner] = {}
        self._ended: dict[int, None] = {}  # the last ones, in order

    def grant(self, owner: Owner, count: int) -> list[int]:
        """New numbers for a program; raises QueueFullError when the host has too many QPs."""
        if len(self._owners) + count > _MOST_NUMBERS:
            raise QueueFullError(f"this host has {_MOST_NUMBERS} QPs, the most allowed")
        granted: list[int] = []
        while len(granted) < count:
            if (number := self._draw()) not in self._owners:
                self._owners[number] = owner
                granted.append(number)
        return granted

    def claim(self, owner: Owner, number: int) -> bool:
        """Gives a number to a program that had it under a former agent; False: it is taken."""
        if number not in self._owners and len(self._owners) >= _MOST_NUMBERS:
            return False
        return self._owners.setdefault(number, owner) == owner

    def take(self, owner: Owner, *numbers: int) -> None:
        """The same for a frame that names them; raises ProtocolError."""
        for number in numbers:
            if not 3 <= number <= 0xFFFFFF:
                raise ProtocolError(f"{number:#x} is not a QPN")
            if not self.claim(owner, number):
                raise ProtocolError(f"QP {number:#x} is another program's")

    def owner(self, number: int) -> Owner | None:
        """The program that has a number."""
        return self._owners.get(number)

    def has_ended(self, number: int) -> bool:
        """Whether a program had it, and that QP or program has ended."""
        return number in self._ended and number not in self._owners

    def free(self, number: int) -> None:
        """The QP has ended."""
        if self._owners.pop(number, None) is not None:
            self._ended.pop(number, None)
            self._ended[number] = None
            if len(self._ended) > _MOST_ENDED:
                del self._ended[next(iter(self._ended))]

    def forget(self, owner: Owner) -> None:
        """The program has ended."""
        for number in [n for n, each in self._owners.items() if each == owner]:
            self.free(number)


class AgentListener(Listener):
    """Gives each connection to the program that has the QP."""

    agent: Agent
    """its own"""
    age = 0.0
    """for how many seconds it has served; a stop is not counted"""

    async def grow_old(self) -> None:
        """Counts looks: what came during a stop is not read yet."""
        while self.age <= _OLD_SECONDS:
            await asyncio.sleep(0.1)
            self.age += 0.1

    async def _answer(self, channel: Channel) -> QP | None:
        message = channel.peeked
        if message["type"] == RESUME:
            return await self._resume(channel, message)
        answers = {
            QP_REQUEST: self._request_qp,
            ASK: self._answer_ask,
            CM: self.agent.rdma_cm.answer,
            CM_END: self.agent.rdma_cm.end,
        }
        if message["type"] in answers:
            await answers[message["type"]](channel)
            return None
        private = message.get("private")
        if not isinstance(private, dict) or "to" not in private:
            return await super()._answer(channel)  # an agent's own, or mrc paths: for probes
        program, qpn = self._program(private)
        return await program.connects.accept(channel, await program.connects.until_rtr(qpn))

    async def _request_qp(self, channel: Channel) -> None:
        """Brings a request to its program, and the answer back."""
        request = qp_request_in(await channel.receive())
        program = self.agent.numbers.owner(request.to.number)
        try:
            if program is None:
                raise self._unknown("endpoint")
            qpn = await program.qp_requests.serve(request)
        except BusyError as error:
            await channel.refuse(str(error), error.kind)
        else:
            await channel.send(QP_REQUEST, qpn=qpn)
            await channel.close()

    async def _resume(self, channel: Channel, message: dict[str, Any]) -> QP | None:
        """Joins the connection to its QP; None: the QP is gone, and the peer's agent is told."""
        await channel.receive()
        asked = message.get("to")
        # The program of a QP that has not come to this agent ended before that, which is long ago.
        old = self.age > _OLD_SECONDS
        if type(asked) is int and (
            self.agent.numbers.has_ended(asked) or (old and self.agent.numbers.owner(asked) is None)
        ):
            await channel.send(RESUME, gone=True)
            await channel.close()
            return None
        program, qpn = self._program(message)
        end = program.connects.ends.get(qpn)
        if end is None:
            raise ConnectError(f"QP {qpn:#x} is not connected here")
        end.parameters.admit(message)
        if channel.remote != end.peer.address:
            raise ConnectError(f"QP {qpn:#x} is connected with {end.peer.address}")
        await channel.send(RESUME, **end.parameters.private)
        end.rejoin(channel)
        return end

    async def _answer_ask(self, channel: Channel) -> None:
        """Tells an agent why the QP that one of its own waits for never connects to it."""
        gone = self._fate(await channel.receive())
        await channel.send(ASK, **({"gone": gone} if gone else {}))
        await channel.close()

    def _fate(self, private: dict[str, Any]) -> str:
        """Empty: it may still connect."""
        try:
            program, qpn = self._program(private)
        except ConnectError as error:
            return "" if isinstance(error, BusyError) else str(error)
        return program.connects.fate(qpn, private)

    def _program(self, private: dict[str, Any]) -> tuple[ProgramContext, int]:
        """The program that a peer's agent means, and its QP; raises ConnectError."""
        qpn = private.get("to")
        program = self.agent.numbers.owner(qpn) if type(qpn) is int else None
        if program is None or type(qpn) is not int:
            raise self._unknown("QP")
        return program, qpn

    def _unknown(self, what: str) -> ConnectError:
        if self.age < _YOUNG_SECONDS:
            return BusyError("the agent has started just now: its programs may not have found it")
        return ConnectError(f"no program of this host has the {what}: has it ended?")

    async def _deliver(self, end: QP, accept: Callable[[], None]) -> None:
        accept()
        if not isinstance(end, ProgramQP):
            self.agent.keep_probed(self._adopt(end))
            return
        program = self.agent.numbers.owner(end.qpn)
        if program is None:
            await end.tell_gone("")
            await end.abort()
        elif end not in program.connects.ends.values():  # otherwise it has joined again
            program.connects.connected(end)


def configured(config: ContextConfig) -> ContextConfig:
    """The configuration of an agent: programs connect many QPs at once, and may be slow to."""
    return replace(
        config,
        program="mrc agent",
        local_view=True,
        udp_port=config.udp_port or _free_udp_port(),
        limits=replace(
            config.limits,
            max_qps=65536,
            max_qps_per_source=65536,
            max_pending=2048,
            max_pending_per_source=1024,
        ),
        timeouts=replace(config.timeouts, exchange=EXCHANGE_SECONDS),
    )


def _free_udp_port() -> int:
    """A port for the agent's own probes: the usual one is for the first program."""
    with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as trial:
        trial.bind(("::", 0))
        return int(trial.getsockname()[1])


class Agent(Context):
    """The control plane of a host. An async context manager; `serve` then runs until cancelled."""

    def __init__(
        self, config: ContextConfig, *, port: int = versions.TCP_PORT, group: int | None
    ) -> None:
        super().__init__(configured(config))
        self.port = port
        self.numbers: Numbers[ProgramContext] = Numbers(QueuePair.random_qpn)
        self.dialling = asyncio.Semaphore(_DIALLING)
        self._group = group
        self._attached: dict[ProgramContext, asyncio.Task[None]] = {}
        self._probed: set[asyncio.Task[None]] = set()
        self.options: dict[str, str] = {}
        """With which its user has started it."""
        self.left = 0.0
        """When the last program ended, in the time of the event loop."""

    @property
    def local(self) -> Local:
        """What the programs share."""
        return self._opened()

    @property
    def programs(self) -> tuple[ProgramContext, ...]:
        """The attached programs."""
        return tuple(self._attached)

    def profiles(self, parameters: QpParameters) -> tuple[EvProfile, CcProfile]:
        """The profiles of a QP; raises StateError, ConnectError."""
        local = self._opened()
        try:
            evs = (
                self.requests.evs[parameters.ev_profile].profile if parameters.ev_profile else None
            )
            cc = self.requests.cc[parameters.cc_profile] if parameters.cc_profile else None
        except RequestError as error:
            raise StateError(str(error)) from error
        return local.ev_profiles.find(evs), local.cc_profiles.find(cc)

    async def __aenter__(self) -> Self:
        await self._open()
        local = self._opened()
        self.rdma_cm = RdmaCm(self)
        self.requests = Requests(local, self._connected)
        return self

    async def _connected(self, host: str) -> QP:
        """A QP of the agent itself, for probes."""
        return await self._connect(host, self.port, self._terms(None, None, None), _PROBE_SECONDS)

    def rows(self) -> AgentProfiles:
        """The profiles, for `mrc agent profiles`."""
        local = self._opened()
        evs = islice(local.ev_profiles.values(), _MOST_ROWS)
        ccs = islice(local.cc_profiles.values(), _MOST_ROWS)
        return AgentProfiles(
            ev_profiles=tuple(
                EvProfileRow(
                    name=each.name, state=each.state.name, qps=each.qps,
                    paths=each.settings.paths[:_MOST_PATHS], denied=each.denied[:_MOST_PATHS],
                )
                for each in evs
            ),
            cc_profiles=tuple(
                CcProfileRow(
                    name=each.name, state=each.state.name, qps=each.qps,
                    kind=each.settings.kind.name,
                )
                for each in ccs
            ),
            rdma_cm=self.rdma_cm.rows(_MOST_ROWS),
            options=self.options,
        )  # fmt: skip

    # ---- Serving --------------------------------------------------------------------------

    async def serve(self, opened: socket.socket, host: str | None = None) -> None:
        """Attaches the programs that connect to the socket `opened`, and listens for the agents of
        other hosts at the address `host`, None: at all. Raises InUseError.
        """
        local = self._opened()
        terms = self._terms(None, None, None)
        listener = AgentListener(local, terms, self._adopt, self._observer.viewers())
        listener.agent = self
        await listener._open(host, self.port)
        self.port = listener.port
        growing = asyncio.get_running_loop().create_task(listener.grow_old())
        try:
            async with listener:
                while True:
                    self._admit(await agent_socket.accept(opened))
        finally:
            await cancelled(growing, *self._attached.values(), *self._probed)
            await self.rdma_cm.close()

    def keep_probed(self, qp: QP) -> None:
        """Keeps a QP over which another host probes, until that closes it."""

        async def until_gone() -> None:
            async with qp:
                await qp.until_closed()

        task = asyncio.get_running_loop().create_task(until_gone())
        self._probed.add(task)
        task.add_done_callback(self._probed.discard)

    def _admit(self, connection: socket.socket) -> None:
        credentials = agent_socket.credentials_of(connection)
        steering.prepare(connection)
        if not agent_socket.may_attach(credentials, self._group):
            user = f"user {credentials.uid} may not use this agent: it is another user's"
            _refuse(connection, f"{user}; --group lets the members of a group in")
            return
        if len(self._attached) >= _MOST_PROGRAMS:
            _refuse(connection, f"{_MOST_PROGRAMS} programs are attached, the most allowed")
            return
        if sum(each.credentials.uid == credentials.uid for each in self._attached) >= _MOST_OF_USER:
            most = f"{_MOST_OF_USER} programs of user {credentials.uid}"
            _refuse(connection, f"{most} are attached, the most of one user")
            return
        program = ProgramContext(self, connection, credentials)
        task = asyncio.get_running_loop().create_task(
            self._attach(program, connection, credentials)
        )
        self._attached[program] = task
        task.add_done_callback(functools.partial(self._forget, program))

    async def _attach(
        self, program: ProgramContext, connection: socket.socket, credentials: Credentials
    ) -> None:
        """Serves a program until it ends."""
        try:
            first = await receive(connection)
            if first.kind is AgentKind.REQUEST and first.value == AgentFunction.PROFILES:
                body = msgspec.json.encode(self.rows())
                connection.send(steering.pack(AgentKind.ANSWER, 0, first.cookie, body))
                connection.close()
                return
            if first.kind is AgentKind.CM_ATTACH:
                if first.value != steering.VERSION:
                    what = "libmrc-cm and the agent are of different versions of mrc"
                    raise ProtocolError(what)
                session = CmSession(self.rdma_cm, connection, credentials)
                with connection:
                    await session.serve()
                    session.end_all()
                return
            program.first = first
            await program._open()
        except (MrcError, OSError) as error:
            if isinstance(error, ConnectionError):
                connection.close()
                return  # it asked only whether an agent is there
            logger.warning("process %d: %s", credentials.pid, error)
            _refuse(connection, str(error))
            return
        except asyncio.CancelledError:
            connection.close()
            return
        logger.info("%s is attached", program)
        try:
            program.start()
            await program.gone.wait()
            logger.info("%s has ended", program)
            await program.detach(ended=True)
        except asyncio.CancelledError:
            # The agent ends: programs go on, and the next agent takes them up.
            took_cancellation()
            await program.detach(ended=False)
        finally:
            connection.close()

    def _forget(self, program: ProgramContext, task: asyncio.Task[None]) -> None:
        self._attached.pop(program, None)
        self.left = task.get_loop().time()
        self.requests.forget(program)
        self.numbers.forget(program)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("bug while serving %s: %s: %s", program, type(error).__name__, error)


def _refuse(connection: socket.socket, reason: str) -> None:
    with suppress(OSError):
        text = steering.line_of(reason)
        connection.send(steering.pack(AgentKind.REFUSED, body=text))
    connection.close()
