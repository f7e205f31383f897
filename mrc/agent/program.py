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
from collections.abc import Coroutine
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from msgspec import structs

from mrc.agent import device, steering
from mrc.agent.connects import Connects
from mrc.agent.parameters import OpenEngine, adopt_engine, open_engine, ports_body, qp_parameters
from mrc.agent.peers import QpRequests, qp_request_of
from mrc.agent.socket import Credentials
from mrc.agent.steering import AgentFrame, ProgramEngine, read_struct, text_of
from mrc.aio.context import Context
from mrc.connect.connect import Local
from mrc.connect.parse import shown
from mrc.engine.dispatch import Dispatcher
from mrc.engine.ports import LocalPorts
from mrc.enums import AgentKind
from mrc.errors import Kind, MrcError, ProtocolError, StateError
from mrc.fabric.hostconfig import IpAddress
from mrc.tasks import cancelled

if TYPE_CHECKING:
    from mrc.agent.agent import Agent

logger = logging.getLogger("mrc.agent")


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
        self._steered.on_room = self._on_room
        links.take(self.engine.ports, self._steered)
        links.on_change = partial(self._tell_ports, links)
        return structs.replace(
            shared,
            config=self.config,
            links=links,
            dispatcher=Dispatcher(self._steered, steering.first_cookie()),
            rng=random.Random(secrets.randbits(64)),
        )

    def _on_room(self, wanted: bool) -> None:
        loop = asyncio.get_running_loop()
        if wanted:
            loop.add_writer(self._steered.fd, self._steered.flush)
        else:
            loop.remove_writer(self._steered.fd)

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
            self.send(AgentKind.GRANTED, body=steering.numbers_bytes(numbers))
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
        peer = device.peer_of(gid, self.engine.gids, local.host)
        source = device.source_of(gid, self.engine.gids, peer)
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
