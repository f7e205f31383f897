# SPDX-License-Identifier: Apache-2.0
"""The agent: it attaches the programs of a host, and connects their QPs with those of peers."""

from __future__ import annotations

import asyncio
import functools
import logging
import socket
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from typing import Self

import msgspec

from mrc.agent import socket as agent_socket
from mrc.agent.cm_session import CmSession
from mrc.agent.formats import RefusedError
from mrc.agent.listener import AgentListener
from mrc.agent.numbers import Numbers
from mrc.agent.opening import receive
from mrc.agent.parameters import Wanted
from mrc.agent.program import Program
from mrc.agent.rdma_cm import Switchboard
from mrc.agent.requests import Control
from mrc.agent.results import CcProfileRow, EvProfileRow
from mrc.agent.results import Profiles as ProfileRows
from mrc.agent.socket import Visitor
from mrc.aio.context import OOB_PORT, Context
from mrc.aio.local import Local
from mrc.aio.qp import QP
from mrc.config import ContextConfig
from mrc.control.profiles import CcProfile, EvProfile
from mrc.engine.queue_pair import random_qpn
from mrc.enums import AgentFunction, AgentKind
from mrc.errors import MrcError, ProtocolError, StateError
from mrc.tasks import cancelled, took_cancellation

logger = logging.getLogger("mrc.agent")

EXCHANGE_SECONDS = 30.0  # for a program to move its QP to RTR after its peer has
_PROBE_SECONDS = 3.0  # to connect to another agent
_DIALLING = 32  # exchanges that this host begins and that run at one time
_MOST_PROGRAMS = 256
_MOST_OF_USER = _MOST_PROGRAMS - 32  # so that no user takes the last place from the others
_MOST_ROWS, _MOST_PATHS = 256, 16  # in one answer


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

    def __init__(self, config: ContextConfig, *, port: int = OOB_PORT, group: int | None) -> None:
        super().__init__(configured(config))
        self.port = port
        self.numbers: Numbers[Program] = Numbers(random_qpn)
        self.dialling = asyncio.Semaphore(_DIALLING)
        self._group = group
        self._attached: dict[Program, asyncio.Task[None]] = {}
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
    def programs(self) -> tuple[Program, ...]:
        """The attached programs."""
        return tuple(self._attached)

    def profiles(self, wanted: Wanted) -> tuple[EvProfile, CcProfile]:
        """The profiles of a QP; raises StateError, ConnectError."""
        local = self._opened()
        try:
            evs = self.control.evs[wanted.ev_profile].profile if wanted.ev_profile else None
            cc = self.control.cc[wanted.cc_profile] if wanted.cc_profile else None
        except RefusedError as error:
            raise StateError(str(error)) from error
        return local.ev_profiles.find(evs), local.cc_profiles.find(cc)

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        local = self._opened()
        self._switchboard = Switchboard(self)
        self.control = Control(local.ev_profiles, local.cc_profiles, local.host, self._connected)
        return self

    async def _connected(self, host: str) -> QP:
        """A QP of the agent itself, for probes."""
        return await self._connect(host, self.port, self._terms(None, None, None), _PROBE_SECONDS)

    def rows(self) -> ProfileRows:
        """The profiles, for `mrc agent profiles`."""
        local = self._opened()
        evs = islice(local.ev_profiles.values(), _MOST_ROWS)
        ccs = islice(local.cc_profiles.values(), _MOST_ROWS)
        return ProfileRows(
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
            rdma_cm=self._switchboard.rows(_MOST_ROWS),
            options=self.options,
        )  # fmt: skip

    # ---- Serving --------------------------------------------------------------------------

    async def serve(self, opened: socket.socket, host: str | None = None) -> None:
        """Attaches the programs that connect to the socket of `agent_socket.listen`, and listens for the
        agents of other hosts at the address `host`, None: at all. Raises InUseError.
        """
        local = self._opened()
        terms = self._terms(None, None, None)
        listener = AgentListener(
            local, terms, self._adopt, self._observer.viewers(), self._admission
        )
        listener.program_of = self.numbers.owner
        listener.has_ended = self.numbers.has_ended
        listener.keep = self._keep
        listener.switchboard = self._switchboard
        listener.since = asyncio.get_running_loop().time()
        await listener.open(host, self.port)
        self.port = listener.port
        try:
            async with listener:
                while True:
                    self._admit(await agent_socket.accept(opened))
        finally:
            await cancelled(*self._attached.values(), *self._probed)
            await self._switchboard.close()

    def _keep(self, qp: QP) -> None:
        """Keeps a QP over which another host probes, until that closes it."""

        async def until_gone() -> None:
            async with qp:
                with suppress(StateError):  # it failed here
                    await qp.until_peer_gone()

        task = asyncio.get_running_loop().create_task(until_gone())
        self._probed.add(task)
        task.add_done_callback(self._probed.discard)

    def _admit(self, connection: socket.socket) -> None:
        visitor = agent_socket.visitor_of(connection)
        steering.prepare(connection)
        if not agent_socket.may_attach(visitor, self._group):
            user = f"user {visitor.uid} may not use this agent: it is another user's"
            _refuse(connection, f"{user}; --group lets the members of a group in")
            return
        if len(self._attached) >= _MOST_PROGRAMS:
            _refuse(connection, f"{_MOST_PROGRAMS} programs are attached, the most allowed")
            return
        if sum(each.visitor.uid == visitor.uid for each in self._attached) >= _MOST_OF_USER:
            most = f"{_MOST_OF_USER} programs of user {visitor.uid}"
            _refuse(connection, f"{most} are attached, the most of one user")
            return
        program = Program(self, connection, visitor)
        task = asyncio.get_running_loop().create_task(self._attach(program, connection, visitor))
        self._attached[program] = task
        task.add_done_callback(functools.partial(self._forget, program))

    async def _attach(self, program: Program, connection: socket.socket, visitor: Visitor) -> None:
        """Serves a program until it ends."""
        try:
            first = await receive(connection)
            if first.kind is AgentKind.REQUEST and first.value == AgentFunction.PROFILES:
                body = msgspec.json.encode(self.rows())
                connection.send(steering.pack(AgentKind.ANSWER, 0, first.cookie, body))
                connection.close()
                return
            if first.kind is AgentKind.CM_ATTACH:
                await self._serve_cm(first, connection, visitor)
                return
            program.first = first
            await program.__aenter__()
        except (MrcError, OSError) as error:
            if isinstance(error, ConnectionError):
                connection.close()
                return  # it asked only whether an agent is there
            logger.warning("process %d: %s", visitor.pid, error)
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
            await program.detach(told=True)
        except asyncio.CancelledError:
            # The agent ends: programs go on, and the next agent takes them up.
            took_cancellation()
            await program.detach(told=False)
        finally:
            connection.close()

    async def _serve_cm(
        self, first: AgentFrame, connection: socket.socket, visitor: Visitor
    ) -> None:
        """Serves the rdma_cm of a program until it ends; raises ProtocolError."""
        if first.value != steering.VERSION:
            raise ProtocolError("libmrc-cm and the agent are of different versions of mrc")
        session = CmSession(self._switchboard, connection, visitor)
        with connection:
            await session.serve()
            session.end_all()

    def _forget(self, program: Program, task: asyncio.Task[None]) -> None:
        self._attached.pop(program, None)
        self.left = task.get_loop().time()
        self.control.forget(program)
        self.numbers.forget(program)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("bug while serving %s: %s: %s", program, type(error).__name__, error)


def _refuse(connection: socket.socket, reason: str) -> None:
    with suppress(OSError):
        text = steering.line_of(reason)
        connection.send(steering.pack(AgentKind.REFUSED, body=text))
    connection.close()
