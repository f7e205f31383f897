# SPDX-License-Identifier: Apache-2.0
"""The QPs of a program: how they connect, stay with the agents of their peers, and end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from msgspec import structs

from mrc import running
from mrc.agent import device
from mrc.agent.attached import Attached
from mrc.agent.end import ProgramEnd, taken_up
from mrc.agent.host import Host
from mrc.agent.parameters import Wanted
from mrc.agent.reach import QpGoneError, ask, patiently, resume, worded
from mrc.aio.connecting import connect
from mrc.aio.end import End
from mrc.aio.establish import establish
from mrc.aio.local import Local, Terms
from mrc.enums import AgentKind
from mrc.errors import ArgumentError, ConnectError, Kind, MrcError, ProtocolError
from mrc.exchange.oob import Channel
from mrc.tasks import cancelled
from mrc.units import digits

logger = logging.getLogger("mrc.agent")

_MOST_CALLS = 1024  # of peers for QPs that the program has not moved to RTR
_FIRST_PAUSE_SECONDS = 0.1  # between attempts to find a peer's agent again
_LONGEST_PAUSE_SECONDS = 15.0
_DIALLER_SECONDS = 1.0  # in which the agent that had dialled a QP dials again
_ASK_SECONDS = 1.0  # in which a peer's agent dials, usually; then this one asks, ever more seldom
_ASKED_SECONDS = 5.0  # for the answer
_ASKING = 4  # questions of a program at one time: they must not keep connects waiting


@contextmanager
def _of_program(qpn: int) -> Iterator[None]:
    """A program may move its QP to ERR meanwhile; its engine then refuses the next step."""
    try:
        yield
    except ArgumentError as error:
        raise ConnectError(f"QP {qpn:#x} has failed before it was connected: {error}") from error


class Connects:
    """The QPs of one program, from RTR until they are released."""

    def __init__(self, program: Attached, host: Host, adopt: Callable[[End], object]) -> None:
        self._program = program
        self._host = host
        self._adopt = adopt
        self.ends: dict[int, ProgramEnd] = {}
        """the connected QPs"""
        self._wanted: dict[int, Wanted] = {}  # QPs in RTR or beyond
        self._refused: dict[int, str] = {}  # why a peer's agent was refused last
        self._failures: dict[int, str] = {}  # QPs that never connect, and why
        self._asking = asyncio.Semaphore(_ASKING)
        self._callers: list[tuple[int, asyncio.Future[Wanted]]] = []
        self._tasks: dict[int, asyncio.Task[None]] = {}  # the last connect of each

    # ---- Connecting -------------------------------------------------------------------------

    def want(self, wanted: Wanted) -> None:
        """The program has moved a QP to RTR; raises ProtocolError."""
        qpn = wanted.qpn
        task, end = self._tasks.get(qpn), self.ends.get(qpn)
        if (task is not None and not task.done()) or (end is not None and not end.closed):
            raise ProtocolError(f"QP {qpn:#x} is connected already")
        self._wanted[qpn] = wanted
        self._failures.pop(qpn, None)
        for called, caller in self._callers:
            if called == qpn and not caller.done():
                caller.set_result(wanted)
        work = self._dial(wanted) if wanted.dials else self._expect(wanted)
        self._tasks[qpn] = self._program.spawn(work)

    async def _dial(self, wanted: Wanted) -> None:
        try:
            local, host, terms = self._terms_of(wanted)
            seconds = local.config.timeouts.exchange
            attempt = partial(connect, local, terms, host, self._host.port, timeout=seconds)
            with _of_program(wanted.qpn):
                end = await patiently(attempt, seconds, self._host.dialling)
        except (MrcError, OSError) as error:
            self._fail(wanted.qpn, worded(error))
        else:
            self.connected(end)

    async def _expect(self, wanted: Wanted) -> None:
        """Waits for the peer's agent, which dials, or answers that it never will."""
        seconds = self._host.local.config.timeouts.exchange
        try:
            async with running.Limit(seconds):
                self._fail(wanted.qpn, await self._until_gone(wanted))
        except TimeoutError:
            late = f"its agent has not connected QP {wanted.dest_qpn:#x} in {digits(seconds)} s"
            why = self._refused.get(wanted.qpn, "does mrc agent run there?")
            self._fail(wanted.qpn, f"{wanted.dest_gid}: {late}: {why}")

    async def _until_gone(self, wanted: Wanted) -> str:
        """Asks the peer's agent until it answers that its QP never connects, and why."""
        pause = _ASK_SECONDS
        while True:
            await running.sleep(pause)
            pause *= 2
            try:
                async with self._asking, running.Limit(_ASKED_SECONDS):
                    await ask(*self._program.address_of(wanted.dest_gid), wanted)
            except QpGoneError as error:
                return str(error)
            except (MrcError, OSError) as error:  # it may start again
                logger.debug("QP %#x: %s", wanted.qpn, error)

    def _fail(self, qpn: int, reason: str) -> None:
        self._failures[qpn] = reason
        self._program.fail(qpn, reason)

    def fate(self, qpn: int, private: dict[str, Any]) -> str:
        """Why a QP never connects to the end that has sent this; empty: it may still do so."""
        try:
            if qpn in self._wanted:
                self._wanted[qpn].admit(private)
        except (ConnectError, ProtocolError) as error:
            return str(error)
        return self._failures.get(qpn, "")

    async def until_wanted(self, qpn: int) -> Wanted:
        """Waits until the program moves the QP to RTR: either side may do that first."""
        if qpn in self._wanted:
            return self._wanted[qpn]
        if len(self._callers) >= _MOST_CALLS:
            raise ConnectError("too many peers wait for QPs of this program")
        caller: asyncio.Future[Wanted] = asyncio.get_running_loop().create_future()
        self._callers.append((qpn, caller))
        try:
            return await caller
        finally:
            self._callers.remove((qpn, caller))

    async def accept(self, channel: Channel, wanted: Wanted) -> End:
        """The listening side of an exchange that the peer's agent has begun."""
        local, _, terms = self._terms_of(wanted)
        known = asyncio.Event()  # it is the peer that the program wants

        def check(*peer: Any) -> None:
            terms.check(*peer)
            known.set()

        try:
            with _of_program(wanted.qpn):
                return await establish(
                    local, channel, structs.replace(terms, check=check), first=False
                )
        except ConnectError as error:  # not yet the end: a stranger may have asked
            self._refused[wanted.qpn] = str(error)
            if known.is_set() and error.kind is Kind.ENDED:  # the engines may have talked already
                self._program.send(AgentKind.GONE, wanted.qpn)
            raise

    def _terms_of(self, wanted: Wanted) -> tuple[Local, str, Terms]:
        local, host, _ = self._program.address_of(wanted.dest_gid)
        config = wanted.config(local.config)
        ev_profile, cc_profile = self._host.profiles(wanted)
        terms = Terms(
            wanted.private, ev_profile, cc_profile, admit=wanted.admit,
            check=partial(device.check_host, wanted.dest_gid, self._program.told.gids, local.host),
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
            self._program.spawn(end.close(orderly=True))
            return
        self._keep(end)
        self._program.send(AgentKind.READY, body=end.ready())
        end.on_peer_gone(partial(self._tell_gone, qpn))

    def _keep(self, end: ProgramEnd) -> None:
        end.on_hangup = partial(self._look_for, end)
        end.on_failure = partial(self._program.fail, end.queue.qpn)
        self.ends[end.queue.qpn] = end
        self._adopt(end)
        self._program.spawn(self._host.control.watch(end))

    def _tell_gone(self, qpn: int, reason: str) -> None:
        self._program.send(AgentKind.GONE, qpn, body=line_of(reason))

    # ---- Agents that start again -------------------------------------------------------------

    async def take_up(self, wanted: Wanted, note: bytes) -> None:
        """A QP that was connected under a former agent."""
        try:
            local, _, terms = self._terms_of(wanted)
            end = await taken_up(wanted, local, terms, note)
        except (MrcError, OSError) as error:
            self._program.fail(wanted.qpn, f"cannot be taken up again: {error}")
            return
        self._wanted[wanted.qpn] = wanted
        self._keep(end)
        end.on_peer_gone(partial(self._tell_gone, wanted.qpn))

    def _look_for(self, end: ProgramEnd) -> None:
        """The agent that had dialled dials again; if its program has ended, the other one asks."""
        if not self._program.detached:
            self._program.spawn(self._redial(end, 0.0 if end.wanted.dials else _DIALLER_SECONDS))

    async def _redial(self, end: ProgramEnd, patience: float) -> None:
        """Dials until the agents are connected, or the peer's one says that the QP is gone."""
        wanted = end.wanted
        local, host, port = self._program.address_of(wanted.dest_gid)
        pause = _FIRST_PAUSE_SECONDS
        await asyncio.sleep(patience)
        while self.ends.get(wanted.qpn) is end and not (end.joined or end.peer_gone.is_set()):
            try:
                end.rejoin(await resume(local, host, port, wanted))
            except QpGoneError:
                end.on_qp_gone()
            except (MrcError, OSError) as error:
                logger.debug("QP %#x: %s", wanted.qpn, error)
                await asyncio.sleep(local.rng.uniform(pause / 2, pause))
                pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)

    # ---- End --------------------------------------------------------------------------------

    def release(self, qpn: int, *, forever: bool) -> None:
        """The program has moved a QP to RESET, or destroyed it `forever`."""
        self._refused.pop(qpn, None)
        self._failures.pop(qpn, None)
        task, end = self._tasks.get(qpn), self.ends.get(qpn)
        if task is None or not forever:
            self._wanted.pop(qpn, None)
            self._tasks.pop(qpn, None)
        self._program.spawn(self._end(qpn, task, end, forever=forever))

    async def _end(
        self, qpn: int, task: asyncio.Task[None] | None, end: End | None, *, forever: bool
    ) -> None:
        if task is not None and forever:  # the peer may wait for answers: first they are connected
            await asyncio.wait([task], timeout=self._host.local.config.timeouts.linger)
            end = self.ends.get(qpn)
            self._wanted.pop(qpn, None)
            self._tasks.pop(qpn, None)
        if task is not None:
            await cancelled(task)
        if end is not None:
            await end.close(orderly=True)
            if self.ends.get(qpn) is end:
                del self.ends[qpn]
        if forever:
            self._host.numbers.free(qpn)
