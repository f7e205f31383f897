# SPDX-License-Identifier: Apache-2.0
"""A program as its agent sees it: an engine, and the frames of csrc/agent/protocol.h."""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from slowness import PATIENCE

from mrc.agent import socket as agent_socket
from mrc.agent import steering
from mrc.agent.agent import Agent
from mrc.agent.steering import AgentFrame, AgentKind, pack, read_struct, struct_bytes, unpack
from mrc.config import ContextConfig, Timeouts
from mrc.engine.native import ffi, lib
from mrc.engine.send_queue import WrOpcode
from mrc.enums import CommandOp, EventType


@dataclass(eq=False)
class AttachedProgram:
    """A program with a polled context, which one task runs whenever it has work."""

    connection: socket.socket
    frames: list[AgentFrame] = field(default_factory=list)
    """what the agent sent, except for commands"""
    completions: list[Any] = field(default_factory=list)
    numbers: list[int] = field(default_factory=list)
    gids: list[bytes] = field(default_factory=list)
    opened: bytes = b""
    cookies: set[int] = field(default_factory=set)
    """of the agent's commands"""
    destroyed: set[int] = field(default_factory=set)
    """QPs that the agent has removed from the engine"""
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    _ctx: Any = None
    _work: asyncio.Event = field(default_factory=asyncio.Event)
    _keys: int = 0
    _held: list[bytearray] = field(default_factory=list)
    _memory: dict[int, tuple[Any, int]] = field(default_factory=dict)
    _ending: dict[int, int] = field(default_factory=dict)
    """QPs of commands that destroy them"""
    _unheard: set[int] = field(default_factory=set)
    """commands of an agent that has gone"""
    _outgoing: deque[bytes] = field(default_factory=deque)
    _task: asyncio.Task[None] | None = None

    @classmethod
    async def attach(cls, name: str, program: str = "a program") -> AttachedProgram:
        found = cls(await connected(name))
        found.say(AgentKind.ATTACH, body=attach_body(program))
        try:
            frame = await found.receive()
        except BaseException:
            found.connection.close()
            raise
        assert frame.kind is AgentKind.OPEN, frame
        opening, _ = read_struct("mrc_agent_open", frame.body)
        found.numbers = list(opening.numbers[0 : opening.n_numbers])
        found.gids = [bytes(gid) for gid in opening.gids[0 : opening.n_gids]]
        error, cause = ffi.new("int *"), ffi.new("char[240]")
        found._ctx = lib.mrc_ctx_create(ffi.addressof(opening, "config"), error, cause, 240)
        assert found._ctx != ffi.NULL, ffi.string(cause)
        sports = [
            [lib.mrc_ctx_source_port(found._ctx, port + 1, i) for i in range(64)]
            for port in range(32)
        ]
        fields = {"udp_port": lib.mrc_ctx_udp_port(found._ctx), "sports": sports}
        found.opened = struct_bytes("mrc_agent_opened", fields)
        found.say(AgentKind.OPENED, body=found.opened)
        asyncio.get_running_loop().add_reader(lib.mrc_ctx_fd(found._ctx), found._work.set)
        found._listen()
        found._task = asyncio.create_task(found._run())
        return found

    def _listen(self) -> None:
        asyncio.get_running_loop().add_reader(self.connection, self._work.set)
        self._work.set()

    def _lose_agent(self) -> None:
        """The agent has gone, or refuses the program: its commands get no answer."""
        if self.attached:
            asyncio.get_running_loop().remove_reader(self.connection)
            asyncio.get_running_loop().remove_writer(self.connection)
            self.connection.close()
        self._outgoing.clear()
        self._unheard |= set(self._memory)
        self.changed.set()

    @property
    def attached(self) -> bool:
        """Whether an agent has it."""
        return self.connection.fileno() >= 0

    async def attach_again(self, name: str, resumed: Callable[[], list[bytes]]) -> None:
        """Attaches to the next agent; `resumed` returns bodies of CONNECT."""
        self._lose_agent()
        self.connection = await connected(name)
        qps = resumed()
        self._listen()
        self.say(AgentKind.ATTACH, body=attach_body("a program", resumed=1, n_qps=len(qps)))
        self.say(AgentKind.OPENED, body=self.opened)
        for qp in qps:
            self.say(AgentKind.CONNECT, body=qp)

    def say(self, kind: AgentKind, value: int = 0, cookie: int = 0, body: bytes = b"") -> None:
        """Sends a frame, or keeps it until the socket has room; without an agent, forgets it."""
        if self.attached:
            self._outgoing.append(pack(kind, value, cookie, body))
            if len(self._outgoing) == 1:
                self._flush()

    def _flush(self) -> None:
        loop = asyncio.get_running_loop()
        loop.remove_writer(self.connection)
        try:
            while self._outgoing:
                self.connection.send(self._outgoing[0])
                self._outgoing.popleft()
        except BlockingIOError:
            loop.add_writer(self.connection, self._flush)
        except OSError:
            self._outgoing.clear()  # the next receive finds it

    async def receive(self) -> AgentFrame:
        packet = await asyncio.get_running_loop().sock_recv(self.connection, steering.MAX_FRAME)
        # The other direction has the same form.
        return unpack(packet)

    async def connect(self, qpn: int, dest_qpn: int, gid: bytes, dest_gid: bytes) -> bytes:
        """Moves a QP to RTR. Returns the body of the frame."""
        body = connect_body(qpn, dest_qpn, gid, dest_gid)
        self.say(AgentKind.CONNECT, body=body)
        return body

    async def until(
        self, kind: AgentKind, where: Callable[[AgentFrame], bool] = lambda _: True
    ) -> AgentFrame:
        """The first frame of this kind."""
        while True:
            for frame in self.frames:
                if frame.kind is kind and where(frame):
                    return frame
            self.changed.clear()
            await self.changed.wait()

    async def completion(self) -> Any:
        """The next completion."""
        while not self.completions:
            self.changed.clear()
            await self.changed.wait()
        return self.completions.pop(0)

    def keys(self) -> int:
        """A key that was not used yet."""
        self._keys += 1
        return self._keys

    def register(self, memory: bytearray, key: int) -> None:
        self._held.append(memory)  # the engine may read and write it until the end
        address = int(ffi.cast("uintptr_t", ffi.from_buffer(memory)))
        self.command(
            op=CommandOp.MR_REGISTER, address=address, bytes=len(memory), key=key, access=3
        )

    def write(self, qpn: int, source: bytearray, lkey: int, va: int, rkey: int) -> None:
        wr = {
            "wr_id": 7, "local": int(ffi.cast("uintptr_t", ffi.from_buffer(source))), "va": va,
            "lkey": lkey, "rkey": rkey, "bytes": len(source), "opcode": int(WrOpcode.WRITE),
        }  # fmt: skip
        self.command(op=CommandOp.QP_POST, qpn=qpn, wr=wr, cookie=7)

    def command(self, **fields: Any) -> None:
        native = ffi.new("struct mrc_command *", {"cookie": 1 << 62, **fields})
        assert lib.mrc_ctx_submit(self._ctx, native, 1) == 1
        self._work.set()

    async def _run(self) -> None:
        events = ffi.new("struct mrc_event[64]")
        while True:
            self._work.clear()
            self._take_frames()
            lib.mrc_ctx_run(self._ctx, 0)
            found = lib.mrc_ctx_poll(self._ctx, events, 64)
            for event in events[0:found]:
                self._publish(event)
            if found or not lib.mrc_ctx_arm(self._ctx):
                await asyncio.sleep(0)
            else:
                await self._work.wait()

    def _take_frames(self) -> None:
        try:
            while self.attached:
                packet = self.connection.recv(steering.MAX_FRAME)
                if not packet:
                    self._lose_agent()
                    return
                self._take(unpack(packet))
        except BlockingIOError:
            pass
        except OSError:
            self._lose_agent()

    def _take(self, frame: AgentFrame) -> None:
        if frame.kind is not AgentKind.COMMAND:
            self.frames.append(frame)
            self.changed.set()
            return
        command, memory = read_struct("mrc_command", frame.body)
        copy = ffi.new("uint8_t[]", memory) if memory else ffi.NULL
        command.pointer = copy
        self.cookies.add(int(command.cookie))
        self._memory[command.cookie] = (copy, len(memory))
        if command.op == CommandOp.QP_DESTROY:
            self._ending[command.cookie] = command.qpn
        assert lib.mrc_ctx_submit(self._ctx, command, 1) == 1

    def _publish(self, event: Any) -> None:
        if event.type == EventType.WC:
            self.completions.append(ffi.new("struct mrc_wc *", event.wc)[0])
            self.changed.set()
            return
        memory = b""
        if event.type == EventType.REPLY:
            if event.cookie == 1 << 62:
                assert event.result >= 0, event.result
                return
            kept = self._memory.pop(event.cookie)
            if event.cookie in self._ending:
                self.destroyed.add(self._ending.pop(event.cookie))
            memory = bytes(ffi.buffer(kept[0], kept[1])) if kept[1] else b""
            if event.cookie in self._unheard:
                self._unheard.discard(event.cookie)
                return
        body = bytes(ffi.buffer(ffi.addressof(event))) + memory
        self.say(AgentKind.EVENT, body=body)

    def stop(self) -> None:
        """Its engine and its socket stand still, as after SIGSTOP."""
        assert self._task is not None
        self._task.cancel()

    def go_on(self) -> None:
        """After `stop`."""
        self._task = asyncio.create_task(self._run())

    async def end(self) -> None:
        """The program ends, without a word."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        self._lose_agent()
        if self._ctx is not None:
            asyncio.get_running_loop().remove_reader(lib.mrc_ctx_fd(self._ctx))
            lib.mrc_ctx_destroy(self._ctx)
            self._ctx = None


@asynccontextmanager
async def running_agent(name: str, port: int = 0, linger: float = 2.0) -> AsyncIterator[Agent]:
    with agent_socket.listen(name) as opened:
        timeouts = Timeouts(exchange=PATIENCE, linger=linger)
        config = ContextConfig(interfaces=("lo",), timeouts=timeouts)
        async with Agent(config, port=port, group=None) as agent:
            serving = asyncio.create_task(agent.serve(opened, "127.0.0.1"))
            try:
                yield agent
            finally:
                serving.cancel()
                await asyncio.wait([serving])


async def connected(name: str) -> socket.socket:
    opened = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    opened.setblocking(False)
    address: Any = agent_socket.address_of(name)
    await asyncio.get_running_loop().sock_connect(opened, address)
    return opened


def attach_body(program: str, **fields: int) -> bytes:
    command_bytes, event_bytes, config_bytes = steering.layout()
    sizes = {
        "version": steering.VERSION, "command_bytes": command_bytes, "event_bytes": event_bytes,
        "config_bytes": config_bytes, "program": program.encode(),
    }  # fmt: skip
    return struct_bytes("mrc_agent_attach", {**sizes, **fields})


def connect_body(qpn: int, dest_qpn: int, gid: bytes, dest_gid: bytes, **fields: int) -> bytes:
    ends = {"qpn": qpn, "dest_qpn": dest_qpn, "sgid": gid, "dgid": dest_gid, "sq_depth": 128}
    return struct_bytes("mrc_agent_connect", {**ends, **fields})
