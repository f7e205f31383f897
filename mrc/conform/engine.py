# SPDX-License-Identifier: Apache-2.0
"""The judge and mrc's own engine and exchange: the adapter of the engine, a Context whose QPs are
connected by values; and a device without an adapter, a program that listens with mrc's own exchange
of attributes.

Any such program keeps a QP for some seconds. `mrc perf --server` also gives it memory, which the
judge's own engine asks for in a session beside the QP that is judged.
"""

from __future__ import annotations

import asyncio
import secrets
import socket
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from ipaddress import ip_address, ip_interface
from typing import Any, TypeVar

import msgspec

import mrc
from mrc import limits
from mrc.aio.context import Context
from mrc.config import Queues
from mrc.conform.adapter import (
    AdapterAnswer,
    AdapterError,
    Ask,
    Attach,
    Detach,
    Memory,
    QpAttributes,
    QpPort,
    Wait,
    WriteRequest,
)
from mrc.conform.packets import JudgePeer
from mrc.connect.dial import dial
from mrc.connect.oob import (
    Attributes,
    Channel,
    Hello,
)
from mrc.engine import paths
from mrc.engine.engine import Notice
from mrc.engine.memory import Region, RemoteMemory
from mrc.engine.paths import LocalPort, RemotePort
from mrc.engine.queue_pair import QueuePair
from mrc.enums import CcKind, EventType, Integrity, PlaneShares, QpState, Reading, WcStatus
from mrc.errors import BusyError, CompletionError, MrcError, ProtocolError
from mrc.events import Immediate
from mrc.mailbox import WrongServiceError
from mrc.perf.session import served_memory
from mrc.tasks import took_cancellation, within
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
            async with within(ask.seconds), self._changed:
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
        self._target = await self._context.register(self._memory, writable=True)
        self._sources: dict[int, Region] = {}
        narrow = Reading.S1_A in self._context.config.readings
        sizes = Queues(
            sq_depth=SQ_DEPTH,
            mpr=limits.MPR_UNIT if narrow else MPR,
            max_wimm=MAX_WIMM,
            dynamic_mpr=True,
        )
        queue = self._queue = QueuePair.sized(sizes)
        call = self._local.dispatcher.call
        await call(queue.create(), "create QP")
        self._local.dispatcher.attach(queue, self)
        await call(queue.to_init(), "QP to INIT")
        ports = self._ports(peer)
        evs = self._evs(ports, peer, NSCC_EVS if ask.nscc else None)
        await call(queue.set_evs([ev.attr for ev in evs]), "set EVs")
        sources = paths.peer_sources(
            (ip_address(port.address), port.source_ports) for port in peer.ports
        )
        await call(queue.set_peer(sources), "set the peer's addresses")
        receive = queue.to_rtr(
            dest_qpn=peer.qpn, rq_psn=peer.first_psn, integrity=Integrity.ICRC,
            dynamic_mpr=peer.dynamic_mpr,
        )  # fmt: skip
        await call(receive, "QP to RTR")
        first_psn = secrets.randbits(24) if ask.first_psn is None else ask.first_psn
        cc = self._local.cc_profiles.find(None).settings
        send = queue.to_rts(
            sq_psn=first_psn, path_mtu=PATH_MTU, peer_mpr=peer.mpr, peer_max_wimm=peer.max_wimm,
            timeout=ask.timeout,
            retry_linear=LINEAR, retry_exp=EXPONENTIAL,
            cc=CcKind.NSCC if ask.nscc else cc.kind, cc_profile=ask.nscc, spray=1,
            plane_shares=PlaneShares.EQUAL if ask.nscc else cc.plane_shares,
        )  # fmt: skip
        await call(send, "QP to RTS")
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
        pairs = {
            ours.plane: paths.PortPair(ours, other)
            for ours, other in zip(ports, theirs, strict=False)
        }
        return paths.pair_evs(
            pairs, self._local.links.sports, peer.udp_port,
            each or self._context.config.spraying.evs_per_pair, self._local.rng,
        )  # fmt: skip

    def _end(self, ports: list[LocalPort], queue: QueuePair, first_psn: int) -> QpAttributes:
        sports = self._local.links.sports
        return QpAttributes(
            qpn=queue.qpn, first_psn=first_psn, path_mtu=PATH_MTU, mpr=queue.mpr,
            max_wimm=queue.max_wimm, udp_port=self._local.dispatcher.engine.udp_port,
            ports=tuple(QpPort(str(port.address.ip), sports[port.plane]) for port in ports),
            va=self._target.address, rkey=self._target._key, memory_bytes=len(self._memory),
            dynamic_mpr=True,
        )  # fmt: skip

    async def detach(self) -> None:
        """Ends the QP and its memory; nothing without one."""
        if self._queue is None:
            return
        queue, self._queue = self._queue, None
        await self._local.dispatcher.call(queue.destroy(), "destroy QP")
        await queue.sends.until_idle()
        self._local.dispatcher.detach(queue)
        if self._tasks:  # the flushed writes
            await asyncio.wait(self._tasks)
        for region in (self._target, *self._sources.values()):
            await region.close()

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _written(self, queue: QueuePair, ask: WriteRequest) -> None:
        """Posts the writes and records how they end."""
        if ask.fill not in self._sources:
            filled = bytes([ask.fill]) * max(1, self._remote.length)
            self._sources[ask.fill] = await self._context.register(filled)
        source = self._sources[ask.fill][: ask.bytes] if ask.bytes else None
        remote = self._remote[ask.at :] if ask.bytes else None
        done = [queue.sends.post(source, remote, ask.imm, False) for _ in range(ask.count)]
        assert queue.sends.taken <= SQ_DEPTH, "a case posts more writes than the send queue holds"
        for each in done:
            status = WcStatus.SUCCESS
            try:
                await each
            except CompletionError as error:
                status = error.status
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
    async with mrc.open(interfaces=addresses, readings=readings) as context:
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


# ---- A program with mrc's exchange ---------------------------------------------------------------


T = TypeVar("T")
_PATIENCE_SECONDS = 30.0  # until a QP is connected
_PAUSE_SECONDS = 0.05  # until a busy device is asked again
_NO_REQUESTER = "the program decides what it writes: only an adapter can ask a device to write"
_UNSEEN = "a device without an adapter cannot be asked"


class OobDevice:
    """Connects as mrc's programs do. Raises MrcError until the first QP is connected, and
    AdapterError from then on.
    """

    def __init__(self, host: str, port: int, own: Reading) -> None:
        self._host, self._port, self._readings = host, port, own
        self._loop = asyncio.new_event_loop()
        self._held = AsyncExitStack()  # what ends with the QP of a case
        self._peer: JudgePeer | None = None
        self._context: Context | None = None
        self._has_memory = True
        self._connected = False
        try:
            self._first: Channel | None = self._run(dial(None, host, port))
        except BaseException:
            self._loop.close()
            raise
        self.local_address = self._first.local
        """Of this host, towards the device."""

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return self._loop.run_until_complete(work)

    def play_with(self, peer: JudgePeer) -> None:
        """The judge's sockets, at which the device proves its paths."""
        self._peer = peer

    def ask(self, what: Ask) -> AdapterAnswer:
        if isinstance(what, Detach):
            return AdapterAnswer()
        if isinstance(what, WriteRequest) or (isinstance(what, Attach) and what.nscc):
            return AdapterAnswer(cannot=_NO_REQUESTER)
        if not isinstance(what, Attach):
            return AdapterAnswer(cannot=_UNSEEN)
        try:
            end = self._run(self._attach(what))
        except (MrcError, OSError, TimeoutError) as error:
            if not self._connected and isinstance(error, MrcError):
                raise
            raise AdapterError(f"{self._host}: {error or 'no QP in time'}") from error
        self._connected = True
        return AdapterAnswer(end=end)

    def close(self) -> None:
        self._run(self._close())
        self._loop.close()

    async def _close(self) -> None:
        await self._held.aclose()
        if self._first is not None:
            self._first.abort()
        if self._context is not None:
            await self._context.close()

    # ---- A QP -----------------------------------------------------------------------------

    async def _attach(self, what: Attach) -> QpAttributes:
        await self._held.aclose()
        async with within(_PATIENCE_SECONDS):
            private, memory = await self._memory(what.memory_bytes)
            while True:
                channel, self._first = self._first, None
                channel = channel or await dial(None, self._host, self._port)
                try:
                    return await self._connect(channel, what.peer, private, memory)
                except BusyError:
                    channel.abort()
                    await asyncio.sleep(_PAUSE_SECONDS)
                except BaseException:
                    channel.abort()
                    raise

    async def _memory(self, size: int) -> tuple[dict[str, Any], RemoteMemory]:
        """What the judged QP says of itself, and the memory that it may write to."""
        nothing: dict[str, Any] = {}
        if not self._has_memory:
            return nothing, RemoteMemory(0, 0, 0)
        if self._context is None:
            self._context = await mrc.open(readings=self._readings)
        opening = served_memory(
            self._context, self._host, self._port, size, timeout=_PATIENCE_SECONDS
        )
        try:
            return await self._held.enter_async_context(opening)
        except WrongServiceError:
            self._has_memory = False
            return nothing, RemoteMemory(0, 0, 0)

    async def _connect(
        self, channel: Channel, own: QpAttributes, private: dict[str, Any], memory: RemoteMemory
    ) -> QpAttributes:
        """The connecting side of mrc/connect/oob.py."""
        assert self._peer is not None
        await channel.send_hello(_hello(own, private, self._readings))
        device = (await Hello.receive(channel)).attributes
        ports = _facing([port.address for port in own.ports], device.ports)
        self._peer.aim([port.address for port in ports], device.udp_port)
        with self._answering(self._peer):
            await _turn(channel, "rtr")
            told = (await _turn(channel, "proved", mtu=own.path_mtu)).get("mtu")
            await _turn(channel, "rts")
        if type(told) is not int or not limits.MIN_MTU <= told <= limits.MAX_MTU:
            raise ProtocolError(
                f"the peer sent a proved.mtu outside of {limits.MIN_MTU}..{limits.MAX_MTU}"
            )
        self._held.push_async_callback(_say_bye, channel)
        return QpAttributes(
            qpn=device.qpn, first_psn=device.first_psn, path_mtu=min(told, own.path_mtu),
            mpr=device.mpr, max_wimm=device.max_wimm, udp_port=device.udp_port, ports=ports,
            va=memory.address, rkey=memory.rkey, memory_bytes=memory.length,
            dynamic_mpr=device.dynamic_mpr,
        )  # fmt: skip

    @contextmanager
    def _answering(self, peer: JudgePeer) -> Iterator[None]:
        """Meanwhile the device probes the judge's addresses."""

        def answer() -> None:
            seen = peer.receive(0)
            if seen is not None:
                peer.answer(seen, self._readings)

        for each in peer.receivers:
            self._loop.add_reader(each, answer)
        try:
            yield
        finally:
            for each in peer.receivers:
                self._loop.remove_reader(each)


def _hello(own: QpAttributes, private: dict[str, Any], followed: Reading) -> Hello:
    # Prefixes of length 0: the device pairs its ports with the judge's by its own networks.
    ports = tuple(
        RemotePort(f"judge{n}", ip_interface(f"{port.address}/0"), port.source_ports, own.path_mtu)
        for n, port in enumerate(own.ports, 1)
    )
    attributes = Attributes(
        qpn=own.qpn, first_psn=own.first_psn, path_mtu=own.path_mtu, mpr=own.mpr,
        max_wimm=own.max_wimm, integrity="icrc", udp_port=own.udp_port,
        dynamic_mpr=own.dynamic_mpr, readings=followed.shared_names, ports=ports,
    )  # fmt: skip
    return Hello(host=socket.gethostname(), private=private, attributes=attributes)


def _facing(addresses: list[str], ports: tuple[RemotePort, ...]) -> tuple[QpPort, ...]:
    """The device's port for each address of the judge: one of its network, or else the next."""
    left, found = list(ports), []
    for text in addresses:
        address = ip_address(text)
        fit = [port for port in left if port.address.version == address.version]
        near = [port for port in fit if address in port.address.network]
        for port in (near or fit)[:1]:
            left.remove(port)
            found.append(QpPort(str(port.address.ip), port.source_ports))
    if not found:
        raise ProtocolError(f"the peer has no address of the IP version of {addresses[0]}")
    return tuple(found)


async def _turn(channel: Channel, kind: str, **fields: Any) -> dict[str, Any]:
    """Both sides send this message; the device may ask meanwhile whether this side lives."""
    await channel.during(channel.send(kind, **fields))
    return await channel.expect(kind)


async def _say_bye(channel: Channel) -> None:
    """Says goodbye; a device that has failed may have gone already."""
    try:
        await channel.send("bye")
    except (MrcError, OSError):
        channel.abort()
    else:
        await channel.close()
