# SPDX-License-Identifier: Apache-2.0
"""`mrc agent` on two hosts, and programs in C that connect QPs through it, in virtual time.

What a program was told is done has arrived. When a program ends, the others learn it within a
bound, and name the cause that the seed drew. Agents may be killed and started again meanwhile: QPs
go on. Afterwards nothing is left in the agents, and they serve new programs.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from math import inf
from random import Random
from typing import Any

import attached
from attached import AttachedProgram, connect_body

import mrc.agent.agent
import mrc.agent.cli.agent
import mrc.agent.socket
from mrc.agent.agent import Agent
from mrc.agent.steering import AgentFrame, AgentKind, read_struct, struct_bytes
from mrc.engine.dispatch import Dispatcher
from mrc.engine.native import ffi, lib
from mrc.engine.send_queue import WrOpcode
from mrc.enums import CommandOp, EventType, QpState, WcOpcode, WcStatus
from mrc.errors import MrcError
from mrc.tasks import took_cancellation
from virtual.connect import stalls
from virtual.host import Program
from virtual.network import Path
from virtual.world import Audit, Command, World, start_command, use_commands

# ---- A program in C as its agent sees it: what csrc/agent and csrc/verbs do, in Python -----------


NAME = "@mrc-agent"
_ATTACH_SECONDS = 8.0  # ANSWER_MS of csrc/agent/process.c
_ATTACH_AGAIN_SECONDS = 0.2  # AGAIN_NS
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
            await asyncio.sleep(_ATTACH_AGAIN_SECONDS)
            for qp in self.qps.values():
                if qp.rtr and qp.exists and not qp.ready:
                    self.command(op=CommandOp.QP_DESTROY, qpn=qp.qpn)
                    qp.exists = False
            try:
                await self.attach_again(
                    NAME, lambda: [qp.connect_body() for qp in self.qps.values() if qp.rtr]
                )
            except OSError:
                continue
            if self.endpoint:
                self.say(AgentKind.KEEP, self.endpoint)
            for number, body in self._requests.items():
                if not self.qps[number].rtr and not self.qps[number].ended:
                    self.say(AgentKind.QP_REQUEST, body=body)

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


# ---- The scenario --------------------------------------------------------------------------------


_BOUND_SECONDS = 300  # in which every program ends, whatever happens
_SETTLE_SECONDS = 20  # for the agents, after the programs
_AGAIN_SECONDS = 0.5  # of a program whose user starts it again


FAULTS = (
    "program killed", "program killed", "program leaves", "program stalls", "agent killed",
    "agent killed", "agent stalls", "host stalls", "no power", "plane down", "all planes down",
    "TCP silent", "interface down", "smaller MTU", "smaller MTU of a plane",
)  # fmt: skip


@dataclass
class Pair:
    """Two QPs, of the programs `ends`."""

    ends: tuple[str, str]
    requests: bool
    """the first one knows only the endpoint of the second one"""
    there: list[int]
    """lengths of what the first one writes"""
    back: list[int]
    start_seconds: tuple[float, float]
    lazy_seconds: tuple[float, float]
    """what each end waits before it releases its QP"""


@dataclass
class Fault:
    """Something that happens."""

    seconds: float
    kind: str
    victim: str
    """a program or a host"""
    lasts_seconds: float


@dataclass
class Scenario:
    """What a seed draws."""

    planes: int
    mtu: int
    delay_ms: float
    bits_per_second: float
    loss: float
    stalls: str
    pairs: list[Pair] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)

    @classmethod
    def drawn(cls, rng: Random) -> Scenario:
        """A scenario of a second or a few of virtual time."""
        made = cls(
            rng.choice((1, 2, 2)), rng.choice((1500, 9000)), 10 ** rng.uniform(-1.5, 1.5),
            10 ** rng.uniform(7.7, 9.5), rng.choice((0, 0, 0.001, 0.01)),
            rng.choice(("idle", "idle", "busy")),
        )  # fmt: skip
        programs = rng.choice((["a0", "b0"], ["a0", "b0", "b1"], ["a0", "a1", "b0", "b1"]))
        for _ in range(rng.choice((1, 2, 3))):
            ends = [rng.choice([each for each in programs if each[0] == host]) for host in "ab"]
            rng.shuffle(ends)
            made.pairs.append(Pair(
                (ends[0], ends[1]), rng.random() < 0.5, _lengths(rng), _lengths(rng),
                (rng.choice((0, 0, 0.01, 2)), rng.choice((0, 0, 0.01, 2))),
                (rng.choice((0, 0, 0.001, 0.5)), rng.choice((0, 0, 0.001, 0.5))),
            ))  # fmt: skip
        for _ in range(rng.choice((0, 0, 1, 1, 2))):
            made.faults.append(made._fault(rng))
        return made

    def _fault(self, rng: Random) -> Fault:
        kind = rng.choice(FAULTS)
        programs = sorted({end for pair in self.pairs for end in pair.ends})
        victim = rng.choice(programs) if kind.startswith("program") else rng.choice("ab")
        if kind in ("agent killed", "no power"):
            lasts = rng.choice((0, 0.1, 1, 30))
        else:
            lasts = rng.choice((0.3, 3, 20, 60))
        return Fault(rng.uniform(0, self.delay_ms / 20 + 3), kind, victim, lasts)


def _lengths(rng: Random) -> list[int]:
    most = rng.choice((100, 30_000, 1_000_000))
    return [rng.randrange(1, most) for _ in range(rng.choice((1, 1, 3, 20)))]


@dataclass
class End:
    """One end of a pair."""

    pair: Pair
    at: int
    sends: list[bytes]
    target: bytearray
    qp: asyncio.Future[tuple[Qp, int] | None]
    """with the rkey of the target; None: its program ended before"""
    outcome: str = ""
    """"done", or why it ended before; empty: it has not ended"""
    seconds: float = 0.0
    """when"""
    ready_seconds: float = inf
    """when its QP was connected"""

    @property
    def name(self) -> str:
        """The program."""
        return self.pair.ends[self.at]


class Run:
    """One run: the hosts, their agents, and the programs."""

    def __init__(self, world: World, audit: Audit, scenario: Scenario) -> None:
        self.world, self.audit, self.scenario = world, audit, scenario
        self.hosts = {name: world.host(name, scenario.planes, mtu=scenario.mtu) for name in "ab"}
        self.agents: dict[str, Command] = {}
        self.agent_programs: dict[str, Program] = {}
        self.served: dict[str, Agent] = {}
        """the Agent of each host that runs now"""
        self.programs: dict[str, Program] = {}
        self.verbs: dict[str, VerbsProgram] = {}
        self.tasks: dict[str, asyncio.Task[None]] = {}
        self.ends: list[tuple[End, End]] = []

    def add(self, pair: Pair) -> None:
        """Two QPs more."""
        rng = self.world.rng
        sends = [[rng.randbytes(each) for each in lengths] for lengths in (pair.there, pair.back)]
        ours, theirs = (
            End(pair, at, sends[at], bytearray(sum(map(len, sends[1 - at])) + 1),
                self.world.loop.create_future())
            for at in (0, 1)
        )  # fmt: skip
        self.ends.append((ours, theirs))

    def finish(self, seconds: float) -> None:
        """Runs until all programs have ended."""
        until = self.world.now + seconds
        for name, task in self.tasks.items():
            while self.programs[name].alive and not task.done() and self.world.now < until:
                self.world.run_until(task, min(1, until - self.world.now))
            if task.done() and not task.cancelled() and (error := task.exception()) is not None:
                raise error
            ended = task.done() or not self.programs[name].alive
            self.audit.check(ended, f"{name} has not ended")

    def forget(self) -> None:
        """Frees the engines of programs that were killed, whose descriptors are closed."""
        for verbs in self.verbs.values():
            if verbs._ctx is not None:
                lib.mrc_ctx_destroy(verbs._ctx)

    # ---- Agents ---------------------------------------------------------------------------

    def start_agent(self, host: str) -> None:
        """Starts `mrc agent`."""
        if host not in self.agents or not self.agent_programs[host].alive:
            self.agents[host] = start_command(self.hosts[host], "agent --insecure --quiet")
            self.agent_programs[host] = self.hosts[host].programs[-1]

    def made_agent(self, *args: Any, **kwargs: Any) -> Agent:
        """As `Agent`."""
        made = Agent(*args, **kwargs)
        self.served[socket.gethostname()] = made
        return made

    # ---- Programs -------------------------------------------------------------------------

    def start_program(self, name: str) -> None:
        """Starts a program with its ends of all pairs."""
        program = self.programs[name] = self.hosts[name[0]].program()
        self.tasks[name] = program.start(self._program(name))

    async def _program(self, name: str) -> None:
        verbs = self.verbs[name] = await attach(name)
        verbs.on_request = lambda request: self._requested(name, request)
        mine = [end for pair in self.ends for end in pair if end.name == name]
        verbs.endpoint = verbs.numbers.pop()
        try:
            async with asyncio.TaskGroup() as group:
                for end in mine:
                    group.create_task(self._end(verbs, end))
        except asyncio.CancelledError:
            took_cancellation()
            self._lost(name, "left")
        await verbs.leave()

    def _lost(self, name: str, why: str) -> None:
        """A program has ended before its QPs."""
        for end in (end for pair in self.ends for end in pair if end.name == name):
            self._set(end, why)
            if not end.qp.done():
                end.qp.set_result(None)

    def _set(self, end: End, outcome: str) -> None:
        if not end.outcome:
            end.outcome, end.seconds = outcome, self.world.now
            for verbs in self.verbs.values():
                verbs.changed.set()

    # ---- Faults ---------------------------------------------------------------------------

    def strike(self, fault: Fault) -> None:
        """Lets it happen."""
        victim, ns = fault.victim, fault.lasts_seconds * 1e9
        program, host = self.programs.get(victim), self.hosts[victim[0]]
        match fault.kind:
            case "program killed" if program and program.alive and not self.tasks[victim].done():
                program.kill()
                self._lost(victim, "killed")
            case "program leaves":
                self.tasks[victim].cancel()
            case "program stalls" if program:
                program.stall(int(ns))
            case "agent stalls":
                self.agent_programs[victim].stall(int(ns))
            case "host stalls":
                host.stall(int(ns))
            case "agent killed" if self.agent_programs[victim].alive:
                self.agent_programs[victim].kill()
                self.world.agenda.after(ns, lambda: self.start_agent(victim))
            case "no power":
                host.kill(powered=False)
                for name in self.programs:
                    if name[0] == victim and not self.tasks[name].done():
                        self._lost(name, "killed")
                self.world.agenda.after(ns, lambda: self.start_agent(victim))
            case "plane down" | "all planes down" | "TCP silent":
                paths = self._paths(first=fault.kind == "plane down")
                what = "tcp" if fault.kind == "TCP silent" else "up"
                self.world.cut(paths, fault.lasts_seconds, what=what)
            case "smaller MTU" | "smaller MTU of a plane":  # from now on large packets vanish
                for path in self._paths(first=fault.kind.endswith("plane")):
                    path.mtu, path.icmp = 1280, False
            case "interface down":
                host.set_interface(1, up=False)
                self.world.agenda.after(ns, lambda: host.set_interface(1, up=True))

    def _paths(self, *, first: bool) -> list[Path]:
        """Those of the first plane, or all."""
        a, b = self.hosts.values()
        links = self.world.plane(a, b, 1)
        return [path for link in links for path in link.paths] if first else self.world.paths(a, b)

    def _requested(self, name: str, request: Any) -> int:
        """The QP for a request, whose number names the pair."""
        end = self.ends[request.to.token[0]][1]
        found = end.qp.result() if end.name == name and end.qp.done() else None
        return found[0].qpn if found else 0  # not yet

    async def _end(self, verbs: VerbsProgram, end: End) -> None:
        pair, other = end.pair, self._other(end)
        await asyncio.sleep(pair.start_seconds[end.at])
        qp, rkey = verbs.new_qp(), verbs.keys()
        verbs.register(end.target, rkey)
        end.qp.set_result((qp, rkey))
        if (met := await asyncio.shield(other.qp)) is None:
            self._set(end, "unmet")
            return
        theirs, their_rkey = met
        if not pair.requests:
            qp.connect(theirs.qpn, theirs.program.gids[0])
        elif end.at == 0:
            number = self.ends.index((end, other))
            to = {**endpoint_body(theirs.program.gids[0], theirs.program.endpoint),
                  "token": bytes([number]) + bytes(15)}  # fmt: skip
            verbs.request_qp(
                qp, qp_request_body(to, endpoint_body(verbs.gids[0], verbs.endpoint), qp.qpn)
            )

        def is_unmet() -> bool:
            """Nobody asks any more."""
            return pair.requests and end.at == 1 and other.outcome != "" and not qp.rtr

        if await qp.until(lambda: qp.ready or is_unmet()) and qp.ready:
            end.ready_seconds = self.world.now
            self._write(verbs, qp, end, other, their_rkey)
            done = len(end.sends)
            all_here = await qp.until(
                lambda: qp.succeeded == done and qp.received == len(other.sends)
            )
            if all_here:
                there = end.target[: sum(map(len, other.sends))] == b"".join(other.sends)
                self.audit.check(there, f"{end.name} has other bytes than {other.name} has sent")
                self._set(end, "done")
                await asyncio.sleep(pair.lazy_seconds[end.at])
        self._set(end, qp.ended or "unmet")
        qp.release()

    def _other(self, end: End) -> End:
        return next(
            other for pair in self.ends for this, other in (pair, pair[::-1]) if this is end
        )

    def _write(self, verbs: VerbsProgram, qp: Qp, end: End, other: End, rkey: int) -> None:
        source = bytearray(b"".join(end.sends))
        lkey, offset = verbs.keys(), 0
        verbs.register(source, lkey)
        local, va = (int(ffi.cast("uintptr_t", ffi.from_buffer(x))) for x in (source, other.target))

        for data in end.sends:
            qp.write(
                on_success=self._arrival(end, other, offset, data), imm=True,
                local=local + offset, va=va + offset, lkey=lkey, rkey=rkey, bytes=len(data),
            )  # fmt: skip
            offset += len(data)

    def _arrival(self, end: End, other: End, offset: int, data: bytes) -> Callable[[], None]:
        def check() -> None:
            there = other.target[offset : offset + len(data)] == data
            self.audit.check(there, f"{end.name}: told of bytes that are not at {other.name}")

        return check


async def attach(name: str) -> VerbsProgram:
    """Starts until there is an agent."""
    while True:
        try:
            return await VerbsProgram.begin(name)
        except (OSError, MrcError, AssertionError):
            await asyncio.sleep(_AGAIN_SECONDS)


def use(world: World, run: Run) -> None:
    """Lets the agent and the programs use the simulated host."""
    ports = iter(range(50_000, 60_000))
    use_commands(world, "agent")
    world.replace(mrc.agent.socket, "listen", world.sockets.listen)
    world.replace(attached, "connected", world.sockets.connect)
    world.replace(mrc.agent.agent, "_free_udp_port", lambda: next(ports))
    world.replace(mrc.agent.cli.agent, "Agent", run.made_agent)
    world.replace(Dispatcher, "_join", _join)


async def _join(dispatcher: Dispatcher) -> None:
    """As the original, without a thread."""
    dispatcher.engine.close()


def run(world: World, audit: Audit) -> None:
    """The programs, and what happens to them."""
    scenario = Scenario.drawn(world.rng)
    audit.describe(scenario)
    this = Run(world, audit, scenario)
    use(world, this)
    a, b = this.hosts.values()
    world.join(
        a, b, bits_per_second=scenario.bits_per_second, delay_ms=scenario.delay_ms,
        loss=scenario.loss,
    )  # fmt: skip
    for host in (a, b):
        host.stall_of = stalls(scenario.stalls, Random(world.rng.random()))
    for pair in scenario.pairs:
        this.add(pair)
    for name in this.hosts:
        this.start_agent(name)
    for name in sorted({end for pair in scenario.pairs for end in pair.ends}):
        this.start_program(name)
    for fault in scenario.faults:
        world.at(world.now + fault.seconds, partial(this.strike, fault))
    try:
        this.finish(_BOUND_SECONDS)
        for ends in this.ends:
            _judge(scenario, audit, ends)
        _end(world, audit, this)
    finally:
        this.forget()


def _judge(scenario: Scenario, audit: Audit, ends: tuple[End, End]) -> None:
    """What both ends were told fits what happened."""
    here = [
        fault
        for fault in scenario.faults
        if fault.victim in ends[0].pair.ends or not fault.kind.startswith("program")
    ]
    for end, other in (ends, ends[::-1]):
        audit.result(f"{end.name}: {end.outcome} at {end.seconds:.3f} s")
        audit.check(end.outcome, f"{end.name} waits for {other.name}: {other.outcome}")
        if all(_is_harmless(scenario, fault, end) for fault in here):
            audit.check(end.outcome == "done", f"nothing was wrong, but {end.name}: {end.outcome}")
        narrowed = [fault for fault in here if fault.kind.startswith("smaller MTU")]
        if narrowed == here and end.outcome != "done":
            fits = "smaller MTU" in end.outcome  # by either end, which tells the other one
            audit.check(fits, f"a smaller MTU, but {end.name}: {end.outcome}")
        died = [fault for fault in here if fault.kind in ("program killed", "program leaves")]
        if died and len(here) == 1 and end.name != died[0].victim:
            fits = end.outcome in ("done", "unmet") or end.outcome.startswith(("GONE", "FAILED"))
            audit.check(fits, f"{died[0].kind}: {other.name}, but {end.name}: {end.outcome}")
            late = end.seconds - max(died[0].seconds, *end.pair.start_seconds)
            most = 45 if end.outcome.startswith("FAILED") else 15
            audit.check(late < most, f"{end.name} was told after {late:.0f} s: {end.outcome}")


def _is_harmless(scenario: Scenario, fault: Fault, end: End) -> bool:
    """Whether QPs must get over it."""
    match fault.kind:
        case "plane down" | "interface down":
            # The agents talk over the address that the programs named, which is the first plane's.
            before = end.ready_seconds < fault.seconds
            return (scenario.planes > 1 and before) or fault.lasts_seconds < 5
        case "agent killed":
            return fault.lasts_seconds < 5
        case "smaller MTU of a plane":
            return scenario.planes > 1
        case "smaller MTU":
            return False
        case "program killed" | "program leaves" | "no power":
            return False
    return fault.lasts_seconds < 5


def _end(world: World, audit: Audit, this: Run) -> None:
    """The agents still serve, hold nothing, and end."""
    for host in this.hosts.values():
        host.stall_of = lambda: 0
    faults = this.scenario.faults
    over = max((fault.seconds + fault.lasts_seconds for fault in faults), default=0)
    world.run(max(over - world.now, 0) + _SETTLE_SECONDS)
    this.ends.clear()
    this.add(Pair(("a9", "b9"), True, [50_000], [100], (0, 0), (0, 0)))
    (pair,) = this.ends
    for end in pair:
        this.start_program(end.name)
    this.finish(60)
    for end in pair:
        audit.check(end.outcome == "done", f"afterwards, {end.name}: {end.outcome}")
    world.run(_SETTLE_SECONDS)
    for name, agent in this.served.items():
        audit.check(not agent.programs, f"agent {name} has programs left: {agent.programs}")
        audit.check(not agent.numbers._owners, f"agent {name} has {agent.numbers._owners}")
        audit.check(not agent.qps, f"agent {name} has QPs left: {agent.qps}")
    audit.check(not world.tcp.open, f"{len(world.tcp.open)} connections between agents are left")
    for ending in this.agents.values():
        ending.interrupt()
        audit.check(world.run_until(ending.task, 60), f"{ending} does not end")
        audit.check(not ending.crashed, ending.crashed)
        audit.check(ending.code == 130, f"interrupted, but: {ending}")
    audit.nothing_left(world)
