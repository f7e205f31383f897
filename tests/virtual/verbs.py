# SPDX-License-Identifier: Apache-2.0
"""A program in C as its agent sees it, with QPs: what csrc/agent and csrc/verbs do, in Python."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from attached import AttachedProgram, connect_body

from mrc.agent.steering import AgentFrame, read_struct, struct_bytes
from mrc.enums import AgentKind, CommandOp, EventType, QpState, WcOpcode, WcStatus, WrOpcode

NAME = "@mrc-agent"
_ATTACH_SECONDS = 8.0  # ANSWER_MS of csrc/agent/process.c
_AGAIN_SECONDS = 0.2  # AGAIN_NS
_LINGER_SECONDS = 0.5  # LINGER_NS
_GONE_SECONDS = 0.2  # GONE_NS of csrc/verbs/qp.c
_OWN = 1 << 62  # cookie of the program's own commands


@dataclass(eq=False)
class Qp:
    """A QP of a program, from its creation until the program has forgotten it."""

    program: VerbsProgram
    qpn: int
    dest_qpn: int = 0
    dest_gid: bytes = b""
    rtr: bool = False
    ready: bool = False
    resume: bytes = b""
    exists: bool = False
    """in the engine"""
    ended: str = ""
    """why it cannot go on"""
    posted: list[Callable[[], None] | None] = field(default_factory=list)
    """of each work request: what its success means; None: it has completed"""
    succeeded: int = 0
    received: int = 0
    """immediates of the peer"""

    def connect_body(self) -> bytes:
        """A struct mrc_agent_connect, and the resume state if it is ready."""
        fields = {"ready": int(self.ready)}
        gid = self.program.gids[0]
        return connect_body(self.qpn, self.dest_qpn, gid, self.dest_gid, **fields) + self.resume

    def connect(self, dest_qpn: int, dest_gid: bytes) -> None:
        """Moves it to RTR."""
        self.dest_qpn, self.dest_gid, self.rtr = dest_qpn, dest_gid, True
        self.program.say(AgentKind.CONNECT, body=self.connect_body())

    async def until(self, condition: Callable[[], bool]) -> bool:
        """Waits; False: the QP has ended before."""
        while not (condition() or self.ended):
            await self.program.until_changed()
        return condition()

    def write(self, *, on_success: Callable[[], None], imm: bool, **fields: Any) -> None:
        """Posts a write; its success is noticed at once."""
        opcode = WrOpcode.WRITE_IMM if imm else WrOpcode.WRITE
        wr = {"wr_id": len(self.posted), "opcode": int(opcode), **fields}
        self.posted.append(on_success)
        self.program.command(op=CommandOp.QP_POST, qpn=self.qpn, wr=wr, cookie=_OWN)

    @property
    def outstanding(self) -> int:
        """Work requests without a completion."""
        return sum(each is not None for each in self.posted)

    def on_wc(self, wc: Any) -> None:
        if wc.opcode == WcOpcode.RECV_IMM:
            self.received += 1
        elif wc.status == WcStatus.SUCCESS:
            act = self.posted[wc.wr_id]
            assert act is not None, f"work request {wc.wr_id} completed twice"
            self.posted[wc.wr_id] = None
            self.succeeded += 1
            act()
        else:
            self.end(WcStatus(wc.status).name)

    def end(self, why: str) -> None:
        """It cannot go on; what happens first is the reason."""
        self.ended = self.ended or why

    async def on_gone(self, reason: str) -> None:
        """The peer has ended: what is on its way from there may still arrive."""
        if self.outstanding:
            await asyncio.sleep(_GONE_SECONDS)
        self.end(f"GONE: {reason}" if reason else "GONE")
        self.program.changed.set()

    def release(self) -> None:
        """Destroys it."""
        if self.outstanding and self.exists:
            self.program.command(op=CommandOp.QP_MODIFY, qpn=self.qpn, value=int(QpState.ERROR))
        self.rtr = False
        self.program.say(AgentKind.RELEASE, self.qpn, 1)


@dataclass(eq=False)
class VerbsProgram(AttachedProgram):
    """Attaches to the next agent when the one that it had has gone."""

    qps: dict[int, Qp] = field(default_factory=dict)
    on_request: Callable[[Any], int] = lambda request: -2
    """an endpoint asks for a QP: its number, or -errno"""
    endpoint: int = 0
    """the number of the endpoint, if it has one"""
    _creating: dict[int, tuple[int, int]] = field(default_factory=dict)  # by cookie: op and QPN
    _requests: dict[int, bytes] = field(default_factory=dict)  # by QPN
    _tasks: list[asyncio.Task[None]] = field(default_factory=list)
    _waiters: list[asyncio.Event] = field(default_factory=list)

    @classmethod
    async def begin(cls, name: str) -> VerbsProgram:
        """Attaches; raises OSError, TimeoutError, AssertionError, MrcError as a program would."""
        async with asyncio.timeout(_ATTACH_SECONDS):
            made = await cls.attach(NAME, name)
        assert isinstance(made, cls)
        made._tasks.append(asyncio.create_task(made._tend()))
        return made

    async def leave(self) -> None:
        """Ends in order: its QPs are released, and their ends waited for a little."""
        for qp in self.qps.values():
            if qp.rtr:
                qp.release()
        try:
            async with asyncio.timeout(_LINGER_SECONDS):
                while self.attached and any(qp.exists for qp in self.qps.values()):
                    await self.until_changed()
        except TimeoutError:
            pass
        for task in self._tasks:
            task.cancel()
        await self.end()

    def new_qp(self) -> Qp:
        """A QP with a number that the agent has granted."""
        number = self.numbers.pop()
        made = self.qps[number] = Qp(self, number)
        return made

    def request_qp(self, qp: Qp, body: bytes) -> None:
        """Asks an endpoint for the other QP."""
        self._requests[qp.qpn] = body
        self.say(AgentKind.QP_REQUEST, body=body)

    async def until_changed(self) -> None:
        """Waits for news of the agent or the engine."""
        event = asyncio.Event()
        self._waiters.append(event)
        try:
            await event.wait()
        finally:
            self._waiters.remove(event)

    async def _tend(self) -> None:
        """Finds the next agent when the former one has gone, and passes the news on."""
        while True:
            if self.attached:
                self.changed.clear()
                await self.changed.wait()
                for waiter in self._waiters:
                    waiter.set()
                continue
            await asyncio.sleep(_AGAIN_SECONDS)
            for qp in self.qps.values():
                if qp.rtr and qp.exists and not qp.ready:
                    self.command(op=CommandOp.QP_DESTROY, qpn=qp.qpn)
                    qp.exists = False
            try:
                await self.attach_again(NAME, self._resumed)
            except OSError:
                continue
            if self.endpoint:
                self.say(AgentKind.KEEP, self.endpoint)
            for number, body in self._requests.items():
                if not self.qps[number].rtr and not self.qps[number].ended:
                    self.say(AgentKind.QP_REQUEST, body=body)

    def _resumed(self) -> list[bytes]:
        return [qp.connect_body() for qp in self.qps.values() if qp.rtr]

    # ---- News -----------------------------------------------------------------------------

    def _take(self, frame: AgentFrame) -> None:
        qp = self.qps.get(frame.value)
        match frame.kind:
            case AgentKind.COMMAND:
                command, _ = read_struct("mrc_command", frame.body)
                self._creating[int(command.cookie)] = int(command.op), int(command.qpn)
            case AgentKind.READY:
                ready, state = read_struct("mrc_agent_ready", frame.body)
                found = self.qps[int(ready.qpn)]
                found.ready, found.resume = True, state
            case AgentKind.FAILED if qp:
                qp.end(f"FAILED: {frame.body.decode()}")
            case AgentKind.GONE if qp:
                self._tasks.append(asyncio.create_task(qp.on_gone(frame.body.decode())))
            case AgentKind.REFUSED:
                self._lose_agent()
                return
            case AgentKind.PEER_REQUEST:
                request, _ = read_struct("mrc_agent_qp_request", frame.body)
                self._admit(request, frame.cookie)
            case AgentKind.ADMITTED if qp and not qp.rtr and not qp.ended:
                request, _ = read_struct("mrc_agent_qp_request", self._requests[qp.qpn])
                qp.connect(int.from_bytes(frame.body[:4], "little"), bytes(request.to.gid))
        super()._take(frame)

    def _admit(self, request: Any, cookie: int) -> None:
        number = self.on_request(request)
        self.say(AgentKind.ADMIT, number, cookie)
        if number > 0 and not self.qps[number].rtr:
            self.qps[number].connect(int(request.qpn), bytes(getattr(request, "from").gid))

    def _publish(self, event: Any) -> None:
        qp = self.qps.get(int(event.qpn))
        self.changed.set()
        if event.type == EventType.WC:
            if (found := self.qps.get(int(event.wc.qpn))) is not None:
                found.on_wc(event.wc)
            return
        if event.type == EventType.REPLY and event.cookie == _OWN:
            if event.result < 0 and qp is not None:
                qp.end(f"refused: {event.result}")
            return
        if event.type == EventType.REPLY:
            op, qpn = self._creating.pop(int(event.cookie), (-1, 0))
            target = self.qps.get(qpn) or qp
            if event.result >= 0 and target is not None:
                if op == CommandOp.QP_CREATE:
                    target.exists = True
                elif op == CommandOp.QP_DESTROY:
                    target.exists = False
        if event.type == EventType.QP_ERROR and qp is not None:
            qp.end(WcStatus(event.status).name)
        super()._publish(event)


def endpoint_body(gid: bytes, number: int) -> dict[str, Any]:
    """A struct mrc_agent_endpoint."""
    return {"gid": gid, "token": bytes(16), "number": number}


def qp_request_body(to: dict[str, Any], by: dict[str, Any], qpn: int) -> bytes:
    """A struct mrc_agent_qp_request."""
    return struct_bytes("mrc_agent_qp_request", {"to": to, "from": by, "qpn": qpn})
