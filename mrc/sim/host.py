# SPDX-License-Identifier: Apache-2.0
"""The process in a host: it carries the flows that begin or end here (mrc/sim/task.py). The
ends of flows, and when each write of a flow is due: by mrc, by TCP or MPTCP, and by iperf3.
"""

from __future__ import annotations

import asyncio
import errno
import json
import random
import socket
import struct
import sys
import time
from collections import deque
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any, Protocol

import msgspec
import uvloop

import mrc
from mrc.enums import Integrity
from mrc.linux import system
from mrc.sim.task import (
    IPERF3,
    Counts,
    FlowTask,
    HostAnswer,
    HostNews,
    HostTask,
    PathChange,
    Ready,
    ReceivedFlow,
    SentFlow,
)
from mrc.testbed.child import Child
from mrc.units import digits

# ---- Writes --------------------------------------------------------------------------------------


_EARLY_SECONDS = 0.001  # that a timer of uvloop may come before its time


class FlowLink(Protocol):
    """A connection that carries the writes of one flow."""

    async def write(self) -> None:
        """Writes once, and returns when the receiver has all bytes. Raises MrcError or OSError."""

    async def counts(self) -> Counts: ...


class Writer:
    """Writes a flow. `on_step` is called when a step has ended that another one follows."""

    def __init__(
        self, flow: FlowTask, link: FlowLink, seed: int, on_step: Callable[[int], None]
    ) -> None:
        self.flow = flow
        self._link = link
        self._on_step = on_step
        self._intervals = random.Random(f"intervals {flow.number} {seed}")
        self._numbers = iter(range(flow.writes))
        self._due = asyncio.Semaphore(0)
        self._wanted_ns: list[int] = []
        self._allowed = self._arrived = 0
        self._times: list[tuple[int, int]] = []
        self._first_ns = self._last_ns = 0
        self._posted = self._completed = self._failed = 0
        self._error = ""

    async def run(self, start_ns: int) -> None:
        """Ends when all writes have ended."""
        await sleep_until(start_ns + self.flow.start_ns)
        n = min(self.flow.depth, self.flow.writes)
        slots = [asyncio.create_task(self._slot()) for _ in range(n)]
        slots += [asyncio.create_task(self._open_loop())] if self.flow.interval_ns else []
        try:
            if not self.flow.interval_ns:
                self.begin_step()
            await asyncio.gather(*slots)
        except (mrc.MrcError, OSError) as error:
            self._error = str(error) or type(error).__name__
            self._failed = self.flow.writes - self._completed
            self._last_ns = time.monotonic_ns()
        finally:
            for slot in slots:
                slot.cancel()

    def begin_step(self) -> None:
        """Lets the writes of the next step, or all writes, become due."""
        self._allowed += self.flow.step_writes or self.flow.writes
        self._want(self.flow.writes if self.flow.after is None else self._arrived + 1)

    def on_arrival(self, arrived: int) -> None:
        """The flow that this one waits for has brought so many writes."""
        self._arrived = arrived
        if self._wanted_ns:
            self._want(arrived + 1)

    def _want(self, wanted: int) -> None:
        while len(self._wanted_ns) < min(wanted, self._allowed):
            self._wanted_ns.append(time.monotonic_ns())
            self._due.release()

    async def _open_loop(self) -> None:
        self._allowed = self.flow.writes
        at_ns = time.monotonic_ns()
        for wanted in range(1, self.flow.writes + 1):
            self._want(wanted)
            at_ns += round(self._intervals.expovariate(1 / self.flow.interval_ns))
            await sleep_until(at_ns)

    async def _slot(self) -> None:
        for number in self._numbers:
            await self._due.acquire()
            self._posted += 1
            self._first_ns = self._first_ns or time.monotonic_ns()
            await self._link.write()
            self._last_ns = time.monotonic_ns()
            self._completed += 1
            self._times.append((self._wanted_ns[number], self._last_ns))
            if self._completed == self._allowed < self.flow.writes and self.flow.step_writes:
                self._on_step(self.flow.number)

    async def sent(self, start_ns: int) -> SentFlow:
        """What became of the flow. Times count from `start_ns`."""
        return SentFlow(
            number=self.flow.number,
            first_ns=max(0, self._first_ns - start_ns),
            last_ns=max(0, self._last_ns - start_ns),
            posted=self._posted,
            completed=self._completed,
            failed=self._failed,
            counts=await self._link.counts(),
            times=tuple((due - start_ns, done - start_ns) for due, done in self._times),
            error=self._error,
        )


async def sleep_until(at_ns: int) -> None:
    """Until a time of the monotonic clock."""
    await asyncio.sleep(max(0, at_ns - time.monotonic_ns()) / 1e9)
    while time.monotonic_ns() < at_ns:  # noqa: ASYNC110 - each may come before its time
        await asyncio.sleep(_EARLY_SECONDS)


# ---- mrc -----------------------------------------------------------------------------------------


_MRC_PORT = 4792  # the default one is for `mrc recv`
_CONNECT_SECONDS = 60.0  # of a host that is busy with many
_MANY = 16384


class MrcLink:
    """A QP, for the writes of one flow."""

    def __init__(self, flow: FlowTask, qp: mrc.QP, memory: mrc.Region) -> None:
        self._flow, self._qp, self._memory = flow, qp, memory
        self._remote = mrc.RemoteMemory(**qp.peer.private)

    async def write(self) -> None:
        length, remote, twice = self._flow.bytes, self._remote, self._flow.redundant
        imm = 0 if self._flow.notify else None
        await self._qp.write(self._memory[:length], remote, imm=imm, redundant=twice)

    async def counts(self) -> Counts:
        info = await self._qp.info()
        return Counts(
            sent_packets=info.sent_packets,
            retransmitted_packets=info.retransmitted_packets,
            spurious_packets=info.spurious_packets,
            lost_packets=sum(plane.lost_packets for plane in info.planes),
            rtt_ns=info.rtt_ns,
        )


class MrcTransport:
    """The QPs of a host, and its memory: every flow reads and writes the same."""

    def __init__(
        self, task: HostTask, stack: AsyncExitStack, on_arrival: Callable[[int, int], None]
    ) -> None:
        self._task, self._stack, self._on_arrival = task, stack, on_arrival
        self._sends = [flow for flow in task.sends if flow.over == "mrc"]
        self._receives = {flow.number: flow for flow in task.receives if flow.over == "mrc"}
        self._out: dict[int, mrc.QP] = {}
        self._in: dict[int, mrc.QP] = {}
        self.changes: deque[PathChange] = deque(maxlen=_MANY)
        """the last ones, with times of the monotonic clock"""
        self._all_here = asyncio.Event()
        self._jobs: list[asyncio.Task[None]] = []
        self._context: mrc.Context
        self._memory: mrc.Region

    async def open(self) -> None:
        """Listens."""
        self._context = await self._stack.enter_async_context(mrc.open(_config(self._task)))
        # Not zeros: the kernel would have one page for all of them.
        memory = bytearray(b"\1" * self._task.memory_bytes)
        opening = self._context.register(memory, writable=True)
        self._memory = await self._stack.enter_async_context(opening)
        listener = await self._stack.enter_async_context(
            await self._context.listen(port=_MRC_PORT, private=self._memory.handle.to_dict())
        )
        self._start(self._accept(listener))

    def _start(self, job: Coroutine[None, None, None]) -> None:
        self._jobs.append(asyncio.create_task(job))

    async def _accept(self, listener: mrc.Listener) -> None:
        if not self._receives:
            self._all_here.set()
        async for qp in listener:
            number = qp.peer.private["flow"]
            self._in[number] = qp
            if self._receives[number].notify:
                self._start(self._count(number, qp))
            if len(self._in) == len(self._receives):
                self._all_here.set()

    async def connect(self) -> dict[int, MrcLink]:
        """The links of the flows that begin here, when those that end here have come too."""
        for flow in self._sends:
            private = {"flow": flow.number}
            qp = await self._context.connect(
                flow.peer, _MRC_PORT, private=private, timeout=_CONNECT_SECONDS
            )
            self._out[flow.number] = qp
            self._start(self._watch(flow.number, qp))
        await self._all_here.wait()
        flows = {flow.number: flow for flow in self._task.sends + self._task.receives}
        for number, qp in (*self._out.items(), *self._in.items()):
            if flows[number].denied:
                await qp.deny(*flows[number].denied)
        return {f.number: MrcLink(f, self._out[f.number], self._memory) for f in self._sends}

    def start(self, start_ns: int) -> None:
        """Allows paths at their times."""
        for flow in (*self._sends, *self._receives.values()):
            if flow.allow_ns:
                for qps in (self._out, self._in):
                    if qp := qps.get(flow.number):
                        self._start(self._allow(flow, qp, start_ns + flow.allow_ns))

    @staticmethod
    async def _allow(flow: FlowTask, qp: mrc.QP, at_ns: int) -> None:
        await sleep_until(at_ns)
        await qp.allow(*flow.denied)

    async def _count(self, number: int, qp: mrc.QP) -> None:
        """Counts the writes that arrived."""
        with suppress(mrc.MrcError):  # of a QP that failed: its sender reports it
            count = 0
            async for _ in qp.immediates():
                count += 1
                self._on_arrival(number, count)

    async def _watch(self, number: int, qp: mrc.QP) -> None:
        async for event in qp.events():
            if isinstance(event, mrc.EvEvent):
                path = int(event.path.rpartition(".")[2])
                where: dict[str, Any] = {"path": path, "state": int(event.state)}
            elif isinstance(event, mrc.PlaneEvent):
                where = {"path": None, "state": int(not event.suspended)}
            else:
                continue
            now_ns = event.at_ns or time.monotonic_ns()
            self.changes.append(PathChange(now_ns=now_ns, flow=number, plane=event.plane, **where))

    async def received(self) -> list[tuple[int, list[int]]]:
        """Each flow that ends here: bytes received, and bytes of each plane."""
        found = []
        for number, qp in self._in.items():
            info = await qp.info()
            got = {plane.plane: plane.received_bytes for plane in info.planes}
            planes = [got.get(plane, 0) for plane in range(1, self._task.planes + 1)]
            found.append((number, [info.received_bytes, *planes]))
        return found

    async def close(self) -> None:
        """Ends the QPs. Outstanding writes would otherwise hold the memory until they fail."""
        for job in self._jobs:
            job.cancel()
        for qp in (*self._out.values(), *self._in.values()):
            await qp.abort()


def _config(task: HostTask) -> mrc.ContextConfig:
    transport, n = task.transport, len(task.sends) + len(task.receives)
    return mrc.ContextConfig(
        cc=transport.cc,
        cc_parameters=mrc.config.CcParameters(link_bps=task.link_bps, base_rtt_ns=task.base_rtt_ns),
        plane_shares=transport.plane_shares,
        integrity=Integrity.UDP,
        queues=mrc.config.Queues(mpr=transport.mpr),
        retries=mrc.config.Retries(
            ack_timeout_exponent=transport.timeout,
            linear=transport.retry_linear,
            exponential=transport.retry_exp,
        ),
        spraying=mrc.config.Spraying(
            burst_packets=transport.spray,
            evs_active_per_plane=transport.ev_active_per_plane,
            mtu_limit=transport.path_mtu,
        ),
        limits=mrc.config.Limits(
            max_qps=max(n, 1),
            max_qps_per_source=max(n, 1),
            max_pending=max(n, 64),
            max_pending_per_source=64,
        ),
        timeouts=mrc.config.Timeouts(linger=0.0, hello=_CONNECT_SECONDS, exchange=_CONNECT_SECONDS),
    )


# ---- TCP and MPTCP -------------------------------------------------------------------------------


_TCP_PORT = 5301
_MPTCP_PORT = 5302
_IPPROTO_MPTCP = 262  # socket.IPPROTO_MPTCP, which uvloop's sockets pass on
_CHUNK = 256 << 10  # that one call takes, of Python's; the kernel makes segments of it
_NUMBER = struct.Struct("!I")
# of struct tcp_info, linux/tcp.h
_RTT_US, _TOTAL_RETRANS, _DATA_SEGS_OUT, _TCP_INFO_BYTES = 68, 100, 156, 160


def make_socket(over: str) -> socket.socket:
    """A socket that does not block. Raises OSError if the kernel has no MPTCP."""
    proto = _IPPROTO_MPTCP if over == "mptcp" else socket.IPPROTO_TCP
    made = socket.socket(socket.AF_INET6, socket.SOCK_STREAM, proto)
    made.setblocking(False)
    return made


class TcpLink:
    """The connection of a flow at its sender."""

    def __init__(self, flow: FlowTask, connection: socket.socket) -> None:
        self._flow, self._connection = flow, connection
        self._turn = asyncio.Lock()
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._answers = asyncio.create_task(self._hear())
        self._chunk = memoryview(b"\1" * min(_CHUNK, flow.bytes))

    async def write(self) -> None:
        loop = asyncio.get_running_loop()
        async with self._turn:
            done = loop.create_future()
            self._waiting.append(done)
            while self._flow.is_endless:
                await loop.sock_sendall(self._connection, self._chunk)
            for at in range(0, self._flow.bytes, _CHUNK):
                part = self._chunk[: self._flow.bytes - at]
                await loop.sock_sendall(self._connection, part)
        await done

    async def _hear(self) -> None:
        loop = asyncio.get_running_loop()
        gone = OSError(errno.ECONNRESET, "the receiver has closed the TCP connection")
        try:
            while answers := await loop.sock_recv(self._connection, 4096):
                for _ in answers:
                    self._waiting.popleft().set_result(None)
        except OSError as error:
            gone = error
        for done in self._waiting:
            if not done.done():
                done.set_exception(gone)

    async def counts(self) -> Counts:
        if self._flow.over == "mptcp":
            return Counts()  # the kernel tells those of one subflow
        told = self._connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_BYTES)

        def number(at: int) -> int:
            return int.from_bytes(told[at : at + 4], "little")

        return Counts(
            sent_packets=number(_DATA_SEGS_OUT),
            retransmitted_packets=number(_TOTAL_RETRANS),
            rtt_ns=number(_RTT_US) * 1000,
        )

    def close(self) -> None:
        self._answers.cancel()
        self._connection.close()


class TcpTransport:
    """The TCP or MPTCP connections of a host, one for each flow.

    A write is so many bytes of the stream. The receiver answers each one with a byte, so a write is
    done when the receiver has it, as a write of RDMA.
    """

    def __init__(
        self, task: HostTask, stack: AsyncExitStack, on_arrival: Callable[[int, int], None]
    ) -> None:
        overs = ("tcp", "mptcp")
        self._sends = [flow for flow in task.sends if flow.over in overs]
        self._receives = {flow.number: flow for flow in task.receives if flow.over in overs}
        self._planes = range(1, task.planes + 1)
        self._stack, self._on_arrival = stack, on_arrival
        self._got = dict.fromkeys(self._receives, 0)
        self._jobs: list[asyncio.Task[None]] = []

    async def open(self) -> None:
        """Listens."""
        for over, port in (("tcp", _TCP_PORT), ("mptcp", _MPTCP_PORT)):
            if any(flow.over == over for flow in self._receives.values()):
                listener = self._stack.enter_context(make_socket(over))
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                listener.bind(("::", port))
                listener.listen(len(self._receives))
                self._jobs.append(asyncio.create_task(self._accept(listener)))

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            connection, _ = await loop.sock_accept(listener)
            self._jobs.append(asyncio.create_task(self._take(connection)))

    async def _take(self, connection: socket.socket) -> None:
        """Counts the bytes of a flow, and answers its writes."""
        loop, buffer = asyncio.get_running_loop(), bytearray(_CHUNK)
        with connection:
            first = await loop.sock_recv(connection, _NUMBER.size)  # one segment, never in parts
            flow = self._receives[_NUMBER.unpack(first)[0]]
            arrived = 0
            while n := await loop.sock_recv_into(connection, buffer):
                self._got[flow.number] += n
                writes = 0 if flow.is_endless else self._got[flow.number] // flow.bytes
                if writes > arrived:
                    await loop.sock_sendall(connection, bytes(writes - arrived))
                    arrived = writes
                    self._on_arrival(flow.number, arrived)

    async def connect(self) -> dict[int, TcpLink]:
        """The links of the flows that begin here."""
        loop, links = asyncio.get_running_loop(), {}
        for flow in self._sends:
            source, address = flow.route
            connection = make_socket(flow.over)
            # Linux 6.1 puts all connections to one port on one path, unless they choose their own
            # port first.
            connection.bind((source or "::", 0))
            if flow.is_endless:  # the TCP of a scenario, which the simulator has too
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"cubic")
            port = _MPTCP_PORT if flow.over == "mptcp" else _TCP_PORT
            await loop.sock_connect(connection, (address, port))
            await loop.sock_sendall(connection, _NUMBER.pack(flow.number))
            links[flow.number] = TcpLink(flow, connection)
            self._stack.callback(links[flow.number].close)
        return links

    async def received(self) -> list[tuple[int, list[int]]]:
        """Each flow that ends here: bytes received, and bytes of each plane where it has one."""
        return [
            (number, [got, *(got * (plane == flow.plane) for plane in self._planes)])
            for number, flow in self._receives.items()
            for got in [self._got[number]]
        ]

    async def close(self) -> None:
        for job in self._jobs:
            job.cancel()


# ---- iperf3 --------------------------------------------------------------------------------------


_FIRST_PORT = 5400
_LISTENS = "0A"
_LEAST_SECONDS = 0.1  # between two samples of iperf3
_END_SECONDS = 5.0  # after the signal


class Iperf3Link:
    """The client of a flow, which ends with `stack`."""

    def __init__(self, flow: FlowTask, stack: AsyncExitStack) -> None:
        self._flow, self._stack = flow, stack
        self._retransmits: int | None = None

    async def write(self) -> None:
        """All of the flow."""
        source, address = self._flow.route
        words = ["-c", address, "-n", self._flow.bytes, "-p", _FIRST_PORT + self._flow.number]
        words += ["-B", source] if source else []
        told = await _told(await _start(self._stack, *words))
        if error := told.get("error"):
            raise OSError(errno.EIO, f"iperf3: {error}")
        self._retransmits = told["end"]["sum_sent"]["retransmits"]

    async def counts(self) -> Counts:
        return Counts(retransmitted_packets=self._retransmits)


class Iperf3Transport:
    """The clients and servers of a host: both for each flow, which sends all of its bytes at once.

    A server prints what arrived when it ends, so its samples count from the begin of the flow.
    """

    def __init__(self, task: HostTask, stack: AsyncExitStack, _: Callable[[int, int], None]):
        self._sends = [flow for flow in task.sends if flow.over == "iperf3"]
        self._receives = [flow.number for flow in task.receives if flow.over == "iperf3"]
        self._stack = stack
        self._seconds = max(_LEAST_SECONDS, task.sample_ns / 1e9)
        self._servers: dict[int, Child] = {}

    async def open(self) -> None:
        """Starts the servers, and waits until they listen. Raises StateError without iperf3."""
        if self._sends or self._receives:
            system.require(IPERF3)
        for number in self._receives:
            port = _FIRST_PORT + number
            words = ("-s", "-1", "-i", f"{digits(self._seconds)}", "-p", port)
            server = self._servers[number] = await _start(self._stack, *words)
            while not _listens(port):
                if server.exit_code is not None:
                    raise OSError(errno.EIO, f"iperf3: {(await _told(server)).get('error')}")
                await asyncio.sleep(0.01)

    async def connect(self) -> dict[int, Iperf3Link]:
        return {flow.number: Iperf3Link(flow, self._stack) for flow in self._sends}

    async def samples(self) -> dict[int, list[tuple[int, ...]]]:
        """Time since the begin of the flow, and bytes received, of each flow that ends here."""
        found = {}
        for number, server in self._servers.items():
            told: dict[str, Any] = {}
            with suppress(TimeoutError):
                told = await asyncio.wait_for(_told(server), _END_SECONDS)
            found[number] = _iperf3_samples(told)
        return found


async def _start(stack: AsyncExitStack, *words: object) -> Child:
    child = await Child.start([IPERF3, "-J", *map(str, words)], line_bytes=1 << 28)
    stack.push_async_callback(child.end)
    return child


async def _told(child: Child) -> dict[str, Any]:
    output = await child.output()
    try:
        told: dict[str, Any] = json.loads(output)
    except ValueError:
        return {"error": f"exit code {child.exit_code}"}
    return told


def _iperf3_samples(told: dict[str, Any]) -> list[tuple[int, ...]]:
    found, total = [(0, 0)], 0
    for interval in told.get("intervals", []):
        total += interval["sum"]["bytes"]
        found.append((round(interval["sum"]["end"] * 1e9), total))
    whole = told.get("end", {}).get("sum_received", {})
    if whole.get("bytes", 0) > total:  # what arrived after the last interval
        found.append((max(round(whole["seconds"] * 1e9), found[-1][0] + 1), whole["bytes"]))
    return [*found]


def _listens(port: int) -> bool:
    lines = Path("/proc/self/net/tcp6").read_text().splitlines()[1:]
    ends = (line.split()[1:4:2] for line in lines)
    return any(int(local[-4:], 16) == port and state == _LISTENS for local, state in ends)


# ---- The process ---------------------------------------------------------------------------------


def say(told: object) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(told) + b"\n")
    sys.stdout.flush()


class TrafficHost:
    """The flows of one host."""

    def __init__(self, task: HostTask, stack: AsyncExitStack) -> None:
        self._task = task
        self._mrc = MrcTransport(task, stack, self._on_arrival)
        self._tcp = TcpTransport(task, stack, self._on_arrival)
        self._iperf3 = Iperf3Transport(task, stack, self._on_arrival)
        self._writers: dict[int, Writer] = {}
        self._samples: dict[int, list[tuple[int, ...]]] = {}
        self._jobs: list[asyncio.Task[None]] = []
        self._start_ns = 0

    @property
    def _has_mrc(self) -> bool:
        return any(flow.over == "mrc" for flow in self._task.sends + self._task.receives)

    async def open(self) -> None:
        if self._has_mrc:
            await self._mrc.open()
        await self._tcp.open()
        await self._iperf3.open()

    async def connect(self) -> None:
        links: dict[int, Any] = {}
        if self._has_mrc:
            links |= await self._mrc.connect()
        links |= await self._tcp.connect() | await self._iperf3.connect()
        self._writers = {
            flow.number: Writer(
                flow, links[flow.number], self._task.seed, lambda step: say(HostNews(step=step))
            )
            for flow in self._task.sends
        }

    def start(self, start_ns: int) -> None:
        self._start_ns = start_ns
        self._mrc.start(start_ns)
        self.run(self._write())
        self.run(self._sample())

    def run(self, job: Coroutine[None, None, None]) -> None:
        self._jobs.append(asyncio.create_task(job))

    async def _write(self) -> None:
        finite = [each for each in self._writers.values() if not each.flow.is_endless]
        for endless in self._writers.values():
            if endless.flow.is_endless:
                self.run(endless.run(self._start_ns))
        await asyncio.gather(*(writer.run(self._start_ns) for writer in finite))
        say(HostNews(over=True))

    async def step(self, number: int, at_ns: int) -> None:
        """Begins the next step of a flow at a time."""
        await sleep_until(at_ns)
        self._writers[number].begin_step()

    def _on_arrival(self, number: int, arrived: int) -> None:
        for writer in self._writers.values():
            if writer.flow.after == number:
                writer.on_arrival(arrived)

    async def _sample(self) -> None:
        at_ns = self._start_ns
        while True:
            at_ns += self._task.sample_ns
            await sleep_until(at_ns)
            await self._take_sample()

    async def _take_sample(self) -> None:
        for end in (self._mrc, self._tcp):
            for number, counts in await end.received():
                now_ns = time.monotonic_ns() - self._start_ns
                self._samples.setdefault(number, []).append((now_ns, *counts))

    async def stop(self) -> HostAnswer:
        for job in self._jobs:
            job.cancel()
        await self._take_sample()
        sent = [await writer.sent(self._start_ns) for writer in self._writers.values()]
        samples = self._samples | await self._iperf3.samples()
        since = [
            msgspec.structs.replace(each, now_ns=each.now_ns - self._start_ns)
            for each in self._mrc.changes
        ]
        await self._mrc.close()
        await self._tcp.close()
        return HostAnswer(
            sent=tuple(sent),
            received=tuple(
                ReceivedFlow(number=number, samples=tuple(found))
                for number, found in samples.items()
            ),
            changes=tuple(since),
        )


async def serve() -> None:
    reader = asyncio.StreamReader(limit=1 << 26)
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    system.raise_descriptor_limit()
    async with AsyncExitStack() as stack:
        task = msgspec.json.decode(await reader.readline(), type=HostTask)
        host = TrafficHost(task, stack)
        await host.open()
        say(Ready())
        while words := (await reader.readline()).decode().split():
            match words:
                case ["connect"]:
                    await host.connect()
                    say(Ready())
                case ["start", start_ns]:
                    host.start(int(start_ns))
                case ["step", number, at_ns]:
                    host.run(host.step(int(number), int(at_ns)))
                case _:
                    say(await host.stop())
                    return


def main() -> int:
    """0; 1 after an error, whose line is on stderr."""
    try:
        uvloop.run(serve())
    except (OSError, mrc.MrcError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
