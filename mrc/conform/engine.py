# SPDX-License-Identifier: Apache-2.0
"""The adapter of mrc's own engine: a Context whose QPs are connected by values."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from ipaddress import ip_address, ip_interface
from typing import Any

import msgspec

from mrc.aio.context import Context
from mrc.config import ContextConfig, Queues
from mrc.conform.adapter import (
    AdapterAnswer,
    Ask,
    Attach,
    Detach,
    Memory,
    QpAttributes,
    QpPort,
    Wait,
    WriteRequest,
)
from mrc.engine.engine import Notice
from mrc.engine.memory import MR, RemoteMemory
from mrc.engine.queue_pair import QueuePair, RtrAttributes, RtsAttributes, Writes, random_psn
from mrc.engine.queue_pair import Write as Posted
from mrc.enums import Access, CcKind, EventType, Integrity, PlaneShares, QpState, Reading, WcStatus
from mrc.errors import CompletionError, MrcError
from mrc.events import Completion, Immediate
from mrc.fabric import paths
from mrc.fabric.paths import LocalPort, RemotePort
from mrc.limits import MPR_UNIT
from mrc.tasks import took_cancellation
from mrc.units import counted

PATH_MTU = 1024
MPR = 1024
MAX_WIMM = 32
SQ_DEPTH = 1024
LINEAR, EXPONENTIAL = 3, 2  # timeouts of one length, and timeouts that double
NSCC_EVS = 64  # per plane: a new EV carries one packet until it is answered


class EngineDevice:
    """Answers what a judge asks about one QP at a time."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._local = context._opened()
        self._queue: QueuePair | None = None
        self._memory = bytearray()
        self._changed = asyncio.Condition()
        self._tasks: set[asyncio.Task[None]] = set()

    async def answer(self, ask: Ask) -> AdapterAnswer:
        """The answer to one question. An error of this host is an answer, too."""
        try:
            return await self._answer(ask)
        except (MrcError, OSError) as error:
            return AdapterAnswer(cannot=str(error))

    async def _answer(self, ask: Ask) -> AdapterAnswer:
        match ask:
            case Attach():
                await self.detach()
                return AdapterAnswer(end=await self._attach(ask))
            case WriteRequest():
                assert self._queue is not None
                self._start(self._written(self._queue, ask))
            case Memory(at, count):
                return AdapterAnswer(data=self._memory[at : at + count].hex())
            case Wait():
                return await self._seen(ask)
            case Detach():
                await self.detach()
        return AdapterAnswer()

    async def _seen(self, ask: Wait) -> AdapterAnswer:
        def is_all() -> bool:
            return (
                len(self._immediates) >= ask.immediates
                and len(self._completions) >= ask.completions
                and ask.state in ("", self._state())
            )

        self._local.dispatcher.drain()
        with suppress(TimeoutError):  # the answer shows what there is
            async with asyncio.timeout(ask.seconds), self._changed:
                await self._changed.wait_for(is_all)
        immediates = tuple((each.imm, each.bytes) for each in self._immediates)
        return AdapterAnswer(
            immediates=immediates, completions=tuple(self._completions), state=self._state()
        )

    def _state(self) -> str:
        assert self._queue is not None
        return self._queue.state.name

    # ---- The QP ---------------------------------------------------------------------------

    async def _attach(self, ask: Attach) -> QpAttributes:
        peer = ask.peer
        self._immediates: list[Immediate] = []
        self._completions: list[str] = []
        self._remote = RemoteMemory(peer.va, peer.rkey, peer.memory_bytes)
        self._memory = bytearray(ask.memory_bytes)
        self._target = await self._context.register(self._memory, access=Access.REMOTE_WRITE)
        self._sources: dict[int, MR] = {}
        narrow = Reading.S1_A in self._context.config.readings
        sizes = Queues(
            sq_depth=SQ_DEPTH, mpr=MPR_UNIT if narrow else MPR, max_wimm=MAX_WIMM, dynamic_mpr=True
        )
        queue = self._queue = QueuePair.sized(sizes)
        call = self._local.dispatcher.call
        await call(queue.create(), "create QP")
        self._local.dispatcher.attach(queue.qpn, self)
        await call(queue.to_init(), "QP to INIT")
        ports = self._ports(peer)
        evs = self._evs(ports, peer, NSCC_EVS if ask.nscc else None)
        await call(queue.set_evs([ev.attr for ev in evs]), "set EVs")
        sources = paths.peer_sources(
            (ip_address(port.address), port.source_ports) for port in peer.ports
        )
        await call(queue.set_peer(sources), "set the peer's addresses")
        receive = RtrAttributes(peer.qpn, peer.first_psn, Integrity.ICRC, peer.dynamic_mpr)
        await call(queue.to_rtr(receive), "QP to RTR")
        first_psn = random_psn() if ask.first_psn is None else ask.first_psn
        await call(queue.to_rts(self._rts(ask, first_psn)), "QP to RTS")
        return self._end(ports, queue, first_psn)

    def _ports(self, peer: QpAttributes) -> list[LocalPort]:
        """Those that can reach the judge."""
        addresses = [ip_address(port.address) for port in peer.ports]
        loopback = addresses[0].is_loopback
        return [
            port for port in self._local.links.ports
            if port.loopback is loopback and port.address.version == addresses[0].version
        ]  # fmt: skip

    def _evs(
        self, ports: list[LocalPort], peer: QpAttributes, each: int | None
    ) -> list[paths.PathEv]:
        """The n-th port sends to the n-th address of the judge."""
        theirs = [
            RemotePort(f"judge{n}", ip_interface(port.address), port.source_ports, 0)
            for n, port in enumerate(peer.ports)
        ]
        pairs = list(zip(ports, theirs, strict=False))
        return paths.pair_evs(
            pairs, self._local.links.sports, peer.udp_port,
            each or self._context.config.spraying.evs_per_pair, self._local.rng,
        )  # fmt: skip

    def _rts(self, ask: Attach, first_psn: int) -> RtsAttributes:
        cc, peer = self._local.cc_profiles.find(None).settings, ask.peer
        return RtsAttributes(
            sq_psn=first_psn, path_mtu=PATH_MTU, peer_mpr=peer.mpr, peer_max_wimm=peer.max_wimm,
            timeout=ask.timeout,
            retry_linear=LINEAR, retry_exp=EXPONENTIAL,
            cc=CcKind.NSCC if ask.nscc else cc.kind, cc_profile=ask.nscc, spray=1,
            plane_shares=PlaneShares.EQUAL if ask.nscc else cc.plane_shares,
        )  # fmt: skip

    def _end(self, ports: list[LocalPort], queue: QueuePair, first_psn: int) -> QpAttributes:
        sports = self._local.links.sports.of
        return QpAttributes(
            qpn=queue.qpn, first_psn=first_psn, path_mtu=PATH_MTU, mpr=queue.mpr,
            max_wimm=queue.max_wimm, udp_port=self._local.dispatcher.engine.udp_port,
            ports=tuple(QpPort(str(port.address.ip), sports[port.plane]) for port in ports),
            va=self._target.address, rkey=self._target.rkey, memory_bytes=len(self._memory),
            dynamic_mpr=True,
        )  # fmt: skip

    async def detach(self) -> None:
        """Ends the QP and its memory; nothing without one."""
        if self._queue is None:
            return
        queue, self._queue = self._queue, None
        await self._local.dispatcher.call(queue.destroy(), "destroy QP")
        self._local.dispatcher.detach(queue.qpn)
        if self._tasks:  # the flushed writes
            await asyncio.wait(self._tasks)
        for mr in (self._target, *self._sources.values()):
            await self._context.deregister(mr)

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _written(self, queue: QueuePair, ask: WriteRequest) -> None:
        """Posts the writes and records how they end."""
        if ask.fill not in self._sources:
            filled = bytes([ask.fill]) * max(1, self._remote.length)
            self._sources[ask.fill] = await self._context.register(filled)
        source = self._sources[ask.fill] if ask.bytes else None
        remote = self._remote if ask.bytes else None
        posted = Posted(source, remote, ask.imm, ask.bytes, 0, ask.at if ask.bytes else 0)
        dispatcher = self._local.dispatcher
        done: list[asyncio.Future[Completion]] = []
        for _ in range(ask.count):
            writes = Writes.of(queue, dispatcher.next_id(), [posted])
            assert queue.places.take_free(1), "a case posts more writes than the send queue holds"
            done.append(dispatcher.post(writes))
        for each in done:
            try:
                status = (await each).status
            except CompletionError as error:
                status = error.status
            await self._add(queue, status)

    async def _add(self, queue: QueuePair, status: WcStatus) -> None:
        if queue is self._queue:
            self._completions.append(status.name)
            await self._tell()

    async def _tell(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    # ---- For the dispatcher ---------------------------------------------------------------

    def _on_immediate(self, immediate: Immediate) -> None:
        """The peer's next immediate."""
        self._immediates.append(immediate)
        self._start(self._tell())

    def _on_notice(self, notice: Notice) -> None:
        """A change of state; only the end of the QP counts."""
        if notice.type is EventType.QP_ERROR and self._queue is not None:
            self._queue.state = QpState.ERROR
            self._start(self._tell())

    def _on_events_lost(self, count: int) -> None:
        """The engine lost events: with one QP there is always room for them."""
        raise AssertionError(f"lost {counted(count, 'event')}")


@asynccontextmanager
async def opened(
    addresses: tuple[str, ...], readings: Reading = Reading.OURS
) -> AsyncIterator[EngineDevice]:
    """An engine at these addresses, with these readings in place of its own."""
    async with Context(ContextConfig(interfaces=addresses, readings=readings)) as context:
        device = EngineDevice(context)
        try:
            yield device
        finally:
            await device.detach()


async def serve(
    device: EngineDevice, reader: asyncio.StreamReader, write: Callable[[bytes], None]
) -> None:
    """Answers each line until the end of the stream."""
    while line := await reader.readline():
        try:
            ask = msgspec.json.decode(line, type=Ask)
        except msgspec.MsgspecError as error:
            answer = AdapterAnswer(cannot=f"not understood: {error}")
        else:
            answer = await device.answer(ask)
        write(msgspec.json.encode(answer) + b"\n")


async def serve_standard_streams(device: EngineDevice) -> None:
    """Serves the judge that has started this program."""
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)

    def write(line: bytes) -> None:
        sys.stdout.buffer.write(line)
        sys.stdout.buffer.flush()

    await serve(device, reader, write)


async def listen(device: EngineDevice, port: int, ready: Callable[[], None]) -> None:
    """Serves judges over TCP, one after the other, until it is cancelled."""
    turn = asyncio.Lock()

    async def one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with turn:
                with suppress(OSError):
                    await serve(device, reader, writer.write)
                await device.detach()
                writer.close()
        except asyncio.CancelledError:
            took_cancellation()  # asyncio would print a traceback of a cancelled task

    async with await asyncio.start_server(one, None, port) as server:
        ready()
        await server.serve_forever()
