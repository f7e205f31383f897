# SPDX-License-Identifier: Apache-2.0
"""Connects the ids of rdma_cm of this host's programs with those of other hosts (csrc/cm)."""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import Coroutine
from contextlib import AsyncExitStack
from functools import partial
from itertools import islice
from typing import Any

from msgspec import Struct, structs

from mrc.agent import device
from mrc.agent.cm import CM, CM_END, Answer, Ended, Reason, Request, because, message_of, read
from mrc.agent.cm_end import CmEnd, Phase
from mrc.agent.cm_ports import Bound, CmPorts
from mrc.agent.cm_session import CmSession
from mrc.agent.host import Host
from mrc.agent.reach import patiently, reached, worded
from mrc.agent.results import CmPortRow
from mrc.aio.local import Local
from mrc.enums import CmEvent
from mrc.errors import MrcError
from mrc.exchange.oob import Channel
from mrc.fabric.hostconfig import IpAddress
from mrc.fabric.paths import LocalPort
from mrc.running import Limit
from mrc.tasks import cancelled
from mrc.units import digits

logger = logging.getLogger("mrc.agent")

# Programs such as perftest connect again when the other side is about to listen again.
_LISTEN_SECONDS = 2.0
_END_SECONDS = 5.0  # to tell the other side that a connection has ended


class _Listening(Struct, eq=False):
    """An id that listens."""

    end: CmEnd
    session: CmSession
    backlog: int
    waiting: int = 0


class Switchboard:
    """The rdma_cm of a host."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self.ports = CmPorts(host.local.rng)
        self._listening: dict[Bound, _Listening] = {}
        self._listened = asyncio.Event()  # somebody has begun to listen
        self._connected: dict[str, CmEnd] = {}  # by token
        self._calls: dict[CmEnd, asyncio.Task[None]] = {}
        self._others: set[asyncio.Task[None]] = set()

    async def close(self) -> None:
        """The agent ends: programs and their connections go on."""
        await cancelled(*self._calls.values(), *self._others)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._others.add(task)
        task.add_done_callback(self._others.discard)
        return task

    def _ports(self) -> list[LocalPort]:
        return [port for port in self._host.local.links.ports if port is not None]

    def _dial(self, gid: IpAddress) -> tuple[Local, str, int]:
        """What to dial for the agent of the host with this GID."""
        local = self._host.local
        own = device.gids_of(self._ports())
        peer = device.peer_of(gid, own, local.host)
        source = device.source_of(gid, own, peer)
        return structs.replace(local, source=source), peer, self._host.port

    # ---- Of this host's programs ------------------------------------------------------------

    def gid_for(self, called: IpAddress) -> IpAddress:
        """The GID by which a peer knows this host, which has called it at an address."""
        return device.gid_for(called, self._ports())

    def listen(self, end: CmEnd, session: CmSession) -> None:
        """Peers reach the id from now on."""
        assert end.bound is not None
        self._listening[end.bound] = _Listening(end, session, end.bound.backlog)
        self._listened.set()
        self._listened = asyncio.Event()

    def call(self, end: CmEnd, request: Request) -> None:
        """Asks for a connection."""
        task = self._calls[end] = self._spawn(self._call(end, request))
        task.add_done_callback(lambda done: self._calls.pop(end, None))

    async def _call(self, end: CmEnd, request: Request) -> None:
        local, host, port = self._dial(request.to)
        seconds = local.config.timeouts.exchange
        try:
            async with Limit(seconds), AsyncExitStack() as stack:
                enter = partial(self._enter, stack, local, host, port)
                channel = await patiently(enter, seconds, self._host.dialling)
                await self._ask(channel, end, request)
        except (MrcError, OSError) as error:  # TimeoutError is an OSError
            late = isinstance(error, TimeoutError) and not isinstance(error, MrcError)
            why = f"{request.to} port {request.port}: "
            why += f"no answer in {digits(seconds)} s" if late else worded(error)
            logger.info("rdma_cm: %s", why)
            end.fail(CmEvent.UNREACHABLE, -errno.ETIMEDOUT, because(why))

    async def _enter(self, stack: AsyncExitStack, local: Local, host: str, port: int) -> Channel:
        return await stack.enter_async_context(reached(local, host, port))

    async def _ask(self, channel: Channel, end: CmEnd, request: Request) -> None:
        await channel.send(CM, **message_of(request))
        answer = read(await channel.expect(CM), Answer)
        if answer.by is None:
            await channel.close()
            end.fail(CmEvent.REJECTED, answer.reason, answer.params)
            return
        end.peer, end.phase = answer.by, Phase.ANSWERED
        end.tell(CmEvent.CONNECT_RESPONSE, peer=answer.by, params=answer.params, token=end.token)
        self.keep(end)
        await channel.send(CM, **message_of(await channel.during(end.answered())))
        await channel.close()

    def keep(self, end: CmEnd) -> None:
        """The peer's agent may end the connection from now on."""
        self._connected[end.token] = end

    def hang_up(self, end: CmEnd) -> None:
        """Ends a connection, and tells the peer's agent."""
        if end.phase is not Phase.ENDED and end.peer is not None:
            self._spawn(self._hang_up(end))

    async def _hang_up(self, end: CmEnd) -> None:
        assert end.peer is not None
        local, host, port = self._dial(end.peer.gid)
        ended = message_of(Ended(end.peer.token))

        async def attempt() -> None:
            async with reached(local, host, port) as channel:
                await channel.send(CM_END, **ended)
                await channel.expect(CM_END)
                await channel.close()

        try:
            async with Limit(_END_SECONDS):
                await patiently(attempt, _END_SECONDS, self._host.dialling)
        except (MrcError, OSError) as error:  # the peer finds that the QP is gone
            logger.info("rdma_cm: %s was not told of an end: %s", end.peer.gid, error)
        end.disconnected()

    def forget(self, end: CmEnd) -> None:
        """The id is no more."""
        if (task := self._calls.pop(end, None)) is not None:
            task.cancel()
        if end.bound is not None:
            self._listening.pop(end.bound, None)
            self.ports.free(end.bound)
        self._connected.pop(end.token, None)

    def rows(self, most: int) -> tuple[CmPortRow, ...]:
        """Who listens, for `mrc agent profiles`."""
        return tuple(
            CmPortRow(port=bound.port, address=str(bound.gid or ""), pid=each.session.pid)
            for bound, each in islice(self._listening.items(), most)
        )

    # ---- Of other hosts ---------------------------------------------------------------------

    async def answer(self, channel: Channel) -> None:
        """Serves the request of a peer's agent, until the program and the peer have decided."""
        request = read(await channel.receive(), Request)
        children: list[CmEnd] = []
        try:
            answer = await channel.during(self._ask_program(request, children))
            await channel.send(CM, **message_of(answer))
            if answer.by is not None:
                (child,) = children
                self.keep(child)
                self._settle(child, read(await channel.expect(CM), Answer))
            await channel.close()
        finally:  # if the peer has gone, or took too long
            for child in children:
                if child.phase in (Phase.CALLED, Phase.ACCEPTED):
                    child.fail(CmEvent.UNREACHABLE, -errno.ETIMEDOUT)

    async def _ask_program(self, request: Request, children: list[CmEnd]) -> Answer:
        """What the program that listens says; appends the id that it gets."""
        found = await self._until_listening(request)
        if found is None:
            return Answer(reason=Reason.NO_LISTENER)
        full = found.waiting >= found.backlog
        child = None if full else found.session.ring(found.end, request)
        if child is None:
            return Answer(reason=Reason.NO_RESOURCES)
        children.append(child)
        found.waiting += 1
        try:
            return await child.answered()
        finally:
            found.waiting -= 1

    async def _until_listening(self, request: Request) -> _Listening | None:
        """Who listens there, or begins to soon."""
        try:
            async with Limit(_LISTEN_SECONDS):
                while (bound := self.ports.listener(request.to, request.port)) is None:
                    await self._listened.wait()
        except TimeoutError:
            return None
        return self._listening[bound]

    def _settle(self, child: CmEnd, final: Answer) -> None:
        if child.phase is not Phase.ACCEPTED:
            return  # ended meanwhile
        if final.reason:
            child.fail(CmEvent.REJECTED, final.reason, final.params)
        else:
            child.phase = Phase.CONNECTED
            child.tell(CmEvent.ESTABLISHED)

    async def end(self, channel: Channel) -> None:
        """The peer's program has disconnected."""
        token = read(await channel.receive(), Ended).token
        end = self._connected.get(token)
        if end is not None:
            end.disconnected()
        await channel.send(CM_END)
        await channel.close()
