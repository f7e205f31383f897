# SPDX-License-Identifier: Apache-2.0
"""The listening side of the exchange for all programs of a host."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from mrc.agent.cm import CM, CM_END
from mrc.agent.end import ProgramEnd
from mrc.agent.peers import KNOCK, knock_in
from mrc.agent.program import Program
from mrc.agent.rdma_cm import Switchboard
from mrc.agent.reach import ASK, RESUME
from mrc.aio.end import End
from mrc.aio.listener import Listener
from mrc.aio.qp import QP
from mrc.errors import BusyError, ConnectError
from mrc.exchange.admission import Place
from mrc.exchange.oob import Channel

_YOUNG_SECONDS = 1.0  # programs look for the next agent every 0.2 s
_OLD_SECONDS = 30.0  # programs that run, though seldom, have found the agent


class AgentListener(Listener):
    """Gives each connection to the program that has the QP."""

    program_of: Callable[[int], Program | None]
    """finds the program that has a QPN"""
    has_ended: Callable[[int], bool]
    """whether a QPN was in use here and is no more"""
    since: float
    """when the agent began to serve"""
    keep: Callable[[QP], None]
    """keeps a QP of the agent itself, over which another agent probes"""
    switchboard: Switchboard
    """the rdma_cm of this host"""

    async def _answer(self, channel: Channel) -> End | None:
        message = channel.peeked
        if message["type"] == KNOCK:
            await self._let_in(channel)
            return None
        if message["type"] == RESUME:
            return await self._resume(channel, message)
        if message["type"] == ASK:
            await self._tell_fate(channel)
            return None
        if message["type"] == CM:
            await self.switchboard.answer(channel)
            return None
        if message["type"] == CM_END:
            await self.switchboard.end(channel)
            return None
        private = message.get("private")
        if not isinstance(private, dict) or "to" not in private:
            return await super()._answer(channel)  # an agent's own, or mrc paths: for probes
        program, qpn = self._program(private)
        return await program.connects.accept(channel, await program.connects.until_wanted(qpn))

    async def _let_in(self, channel: Channel) -> None:
        """Brings a knock to its program, and the answer back."""
        asked = knock_in(await channel.receive())
        program = self.program_of(asked.to.number)
        try:
            if program is None:
                raise self._unknown("endpoint")
            qpn = await program.doorbell.visit(asked)
        except BusyError as error:
            await channel.refuse(str(error), error.kind)
        else:
            await channel.send(KNOCK, qpn=qpn)
            await channel.close()

    async def _resume(self, channel: Channel, message: dict[str, Any]) -> End | None:
        """Joins the connection to its QP; None: the QP is gone, and the peer's agent is told."""
        await channel.receive()
        asked = message.get("to")
        if type(asked) is int and (self.has_ended(asked) or self._ended_before(asked)):
            await channel.send(RESUME, gone=True)
            await channel.close()
            return None
        program, qpn = self._program(message)
        end = program.connects.ends.get(qpn)
        if end is None:
            raise ConnectError(f"QP {qpn:#x} is not connected here")
        end.wanted.admit(message)
        if channel.remote != end.channel.remote:
            raise ConnectError(f"QP {qpn:#x} is connected with {end.channel.remote}")
        await channel.send(RESUME, **end.wanted.private)
        end.rejoin(channel)
        return end

    async def _tell_fate(self, channel: Channel) -> None:
        """Tells an agent why the QP that one of its own waits for never connects to it."""
        gone = self._fate(await channel.receive())
        await channel.send(ASK, **({"gone": gone} if gone else {}))
        await channel.close()

    def _fate(self, private: dict[str, Any]) -> str:
        """Empty: it may still connect."""
        try:
            program, qpn = self._program(private)
        except BusyError:
            return ""
        except ConnectError as error:
            return str(error)
        return program.connects.fate(qpn, private)

    def _program(self, private: dict[str, Any]) -> tuple[Program, int]:
        """The program that a peer's agent means, and its QP; raises ConnectError."""
        qpn = private.get("to")
        program = self.program_of(qpn) if type(qpn) is int else None
        if program is None or type(qpn) is not int:
            raise self._unknown("QP")
        return program, qpn

    def _ended_before(self, qpn: int) -> bool:
        """Whether the program of this QP has not come to this agent, which started long ago."""
        return self._age() > _OLD_SECONDS and self.program_of(qpn) is None

    def _age(self) -> float:
        return asyncio.get_running_loop().time() - self.since

    def _unknown(self, what: str) -> ConnectError:
        if self._age() < _YOUNG_SECONDS:
            return BusyError("the agent has started just now: its programs may not have found it")
        return ConnectError(f"no program of this host has the {what}: has it ended?")

    async def _deliver(self, end: End, place: Place) -> None:
        place.accept()
        if not isinstance(end, ProgramEnd):
            self.keep(self._adopt(end))
            return
        program = self.program_of(end.queue.qpn)
        if program is None:
            await end.tell_gone("")
            await end.close(orderly=False)
        elif end not in program.connects.ends.values():  # otherwise it has joined again
            program.connects.connected(end)
