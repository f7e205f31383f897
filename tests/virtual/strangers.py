# SPDX-License-Identifier: Apache-2.0
"""Strangers flood a host in virtual time, at one step of the exchange each.

Meanwhile honest peers connect, first as sources that nobody knows, and one peer writes all the
time. A seed names step and round trip: seeds 1 to 15 have all of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

import mrc
from mrc.config import Sockets
from mrc.connect import tls
from mrc.connect.admission import Admission
from mrc.connect.oob import Channel, encode_frame
from mrc.connect.security import Security
from mrc.connect.tls import TLS, Guard, TlsStream
from mrc.errors import MrcError
from virtual.host import Host, Program
from virtual.loop import PROGRAM
from virtual.world import Audit, World

logger = logging.getLogger("virtual.strangers")

STEPS = ("connection", "first frame", "ClientHello", "TLS", "wrong proof")
TRIPS_MS = (0.1, 50, 200)
_PORT = 4791
_END_SECONDS = 30
_LIMIT_SECONDS = 3.0  # of each honest connect
_TLS_NS = 1_100_000  # of the host's processor, measured
_ARRIVAL_NS = 250_000
_MEASURED_SECONDS = 2.0
_RATE_KEPT = 0.9
_WISH = encode_frame({"type": TLS})


@dataclass
class Scenario:
    """What a seed draws."""

    step: str
    trip_ms: float
    sources: int
    per_second: int
    near: bool
    """the strangers are in the network of the honest hosts"""

    @classmethod
    def drawn(cls, seed: int, rng: Random) -> Scenario:
        """As many sources as a host has places are enough to hold them all."""
        turn, trip = divmod(seed - 1, len(TRIPS_MS))
        near = rng.random() < 0.5
        sources, per_second = (50, 300) if near else (5000, 300)
        return cls(STEPS[turn % len(STEPS)], TRIPS_MS[trip], sources, per_second, near)

    def source(self, number: int) -> str:
        """The address of a connection."""
        number %= self.sources
        return f"10.{1 if self.near else 9}.{1 + (number >> 8)}.{number & 0xFF}"


class _Holder(asyncio.Protocol):
    """Says one thing after each answer, and holds its place."""

    def __init__(self, says: tuple[bytes, ...], held: dict[Any, None]) -> None:
        self._says, self._held = list(says), held

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        self._held[transport] = None
        self.data_received(b"")

    def connection_lost(self, exc: Exception | None) -> None:
        self._held.pop(self._transport, None)

    def data_received(self, data: bytes) -> None:
        if self._says:
            self._transport.write(self._says.pop(0))


def _tls_hello() -> bytes:
    """The first message of TLS."""
    out = ssl.MemoryBIO()
    client = tls.client_context(None, check_hostname=False).context()
    with contextlib.suppress(ssl.SSLWantReadError):
        client.wrap_bio(ssl.MemoryBIO(), out, server_hostname="b").do_handshake()
    return out.read()


class _Flood:
    """The program of the strangers."""

    def __init__(self, scenario: Scenario, target: str, rng: Random) -> None:
        self._scenario, self._target = scenario, target
        self._guard = Guard(Security(secret=rng.randbytes(32)))
        self._hello = _tls_hello()
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._held: dict[Any, None] = {}
        self._begun = 0

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        start = loop.time()
        try:
            while True:
                task = loop.create_task(self._attack(self._scenario.source(self._begun)))
                self._tasks[task] = None
                task.add_done_callback(self._tasks.pop)
                self._begun += 1
                await asyncio.sleep(start + self._begun / self._scenario.per_second - loop.time())
        finally:
            for task in list(self._tasks):
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            for transport in list(self._held):
                transport.abort()

    async def _attack(self, source: str) -> None:
        says: dict[str, tuple[bytes, ...]] = {
            "connection": (),
            "first frame": (_WISH,),
            "ClientHello": (_WISH, self._hello),
        }
        local = (source, 0)
        if (said := says.get(self._scenario.step)) is not None:
            loop = asyncio.get_running_loop()
            await loop.create_connection(
                lambda: _Holder(said, self._held), self._target, _PORT, local_addr=local
            )
            return
        streams = await asyncio.open_connection(self._target, _PORT, local_addr=local)
        with contextlib.suppress(MrcError, OSError):
            channel = Channel(*streams, called="b")
            try:
                await self._speak(channel)
            finally:
                channel.abort()

    async def _speak(self, channel: Channel) -> None:
        if self._scenario.step == "wrong proof":
            await self._guard.connect(channel)
            return
        await channel.send(TLS)
        await channel.expect(TLS)
        await channel.start_tls(self._guard.connects.context(), "b")
        await channel.receive()
        await asyncio.get_running_loop().create_future()


def _stall(ns: int) -> None:
    """The running program does nothing for so long."""
    program = PROGRAM.get()
    assert isinstance(program, Program)
    program.stall(ns)


def _arriving(enter: Callable[..., Any]) -> Callable[..., Any]:
    """Arrivals that take a listening program's time."""

    def entered(*args: Any, **named: Any) -> Any:
        _stall(_ARRIVAL_NS)
        return enter(*args, **named)

    return entered


def _costly(start: Callable[[TlsStream], Any]) -> Callable[[TlsStream], Any]:
    """TLS that takes a listening program's time."""

    async def started(stream: TlsStream) -> None:
        tls: Any = stream.tls
        shake = tls.do_handshake

        def do_handshake() -> None:
            if tls.server_side and stream._arrived.pending:
                _stall(_TLS_NS)
            shake()

        tls.do_handshake = do_handshake
        await start(stream)

    return started


@dataclass
class _Honest:
    """What the honest programs have seen."""

    security: Security
    took: list[float] = field(default_factory=list)
    written_bytes: int = 0

    async def serve(self) -> None:
        """Accepts whoever comes; all may write into one region."""
        inbox = bytearray(1 << 16)
        config = mrc.ContextConfig(sockets=Sockets(polled=True), security=self.security)
        async with (
            mrc.open(config) as ctx,
            ctx.register(inbox, writable=True) as region,
            ctx.listen(None, _PORT, private=region.handle.to_dict()) as listener,
            asyncio.TaskGroup() as group,
        ):
            while True:
                group.create_task(self._keep(await listener.accept()))

    async def _keep(self, qp: mrc.QP) -> None:
        async with qp:
            await qp.until_closed()

    async def write(self) -> None:
        """Writes without an end."""
        config = mrc.ContextConfig(sockets=Sockets(polled=True), security=self.security)
        async with (
            mrc.open(config) as ctx,
            ctx.register(bytes(1 << 14)) as data,
            ctx.connect("b", _PORT) as qp,
        ):
            remote = mrc.RemoteMemory.from_dict(qp.peer.private)
            futures = [qp.post(data, remote) for _ in range(16)]
            try:
                while True:
                    await futures.pop(0)
                    self.written_bytes += data.length
                    futures.append(qp.post(data, remote))
            finally:
                await asyncio.gather(*futures, return_exceptions=True)

    async def connect_twice(self) -> None:
        """As a stranger, then as one that is known."""
        loop = asyncio.get_running_loop()
        for _ in range(2):
            config = mrc.ContextConfig(sockets=Sockets(polled=True), security=self.security)
            async with mrc.open(config) as ctx:
                start = loop.time()
                try:
                    async with ctx.connect("b", _PORT, timeout=_LIMIT_SECONDS):
                        self.took.append(loop.time() - start)
                except MrcError as error:
                    self.took.append(loop.time() - start)
                    raise RuntimeError(f"after {self.took[-1]:.2f} s: {error}") from error


def run(world: World, audit: Audit) -> None:
    """A transfer, a flood, and honest peers that connect meanwhile."""
    scenario = Scenario.drawn(world.seed, world.rng)
    audit.describe(scenario)
    audit.repeats = False
    b, x, c, *hosts = (world.host(name, 1, mtu=9000) for name in "bxc" + "de")
    for host in (x, c, *hosts):
        trip_ms = scenario.trip_ms if host is not x else TRIPS_MS[0]
        world.join(host, b, bits_per_second=1e7, delay_ms=trip_ms / 2, loss=0)
    world.replace(TlsStream, "start", _costly(TlsStream.start))
    world.replace(Admission, "enter", _arriving(Admission.enter))
    security = Security(secret=world.rng.randbytes(32), identity=world.folder / "key")
    honest = _Honest(security)
    programs = [b.start(honest.serve())]
    world.run(0.1)
    programs.append(c.start(honest.write()))
    world.run(3)  # until it writes at its full rate
    before = _written_per_second(world, honest, _MEASURED_SECONDS)
    flood = _Flood(scenario, str(b.interfaces[0].addresses[0].ip), world.rng)
    programs.insert(0, x.start(flood.run()))
    world.run(1)  # until all places are taken
    began, written = world.now, honest.written_bytes
    _connect(world, audit, honest, hosts)
    world.run(max(0.0, began + _MEASURED_SECONDS - world.now))
    during = (honest.written_bytes - written) / (world.now - began)
    logger.info("%.2f of %.0f bytes/s", during / before, before)
    audit.check(during > _RATE_KEPT * before, f"{during:.0f} bytes/s, {before:.0f} before")
    _end(world, audit, programs)


def _written_per_second(world: World, honest: _Honest, seconds: float) -> float:
    written = honest.written_bytes
    world.run(seconds)
    return (honest.written_bytes - written) / seconds


def _connect(world: World, audit: Audit, honest: _Honest, hosts: list[Host]) -> None:
    for task in [host.start(honest.connect_twice()) for host in hosts]:
        audit.check(world.run_until(task, 60), "an honest connect has not ended")
        error = task.exception() if task.done() else None
        audit.check(error is None, f"an honest connect: {error}")
    logger.info("connects took %s s", ", ".join(f"{each:.2f}" for each in honest.took))
    audit.check(max(honest.took) <= _LIMIT_SECONDS, f"a connect took {max(honest.took):.1f} s")


def _end(world: World, audit: Audit, programs: list[asyncio.Task[None]]) -> None:
    """The flood ends first."""
    for task in programs:
        task.cancel()
        audit.check(world.run_until(task, _END_SECONDS), "a program does not end")
        failed = task.done() and not task.cancelled() and task.exception()
        audit.check(not failed, f"a program failed: {failed!r}")
    audit.nothing_left(world)
