# SPDX-License-Identifier: Apache-2.0
"""Connects in virtual time: one host dials another over drawn paths, hosts and faults.

The auditor knows what the paths are, so it knows what the exchange has to find.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

import mrc
from mrc.config import Sockets
from mrc.connect import proofs
from mrc.connect.proof import NEAR_BYTES
from mrc.connect.security import Security
from mrc.engine.paths import SEAL_OVERHEAD, payload_mtu
from virtual.host import Host
from virtual.network import Path
from virtual.world import Audit, World

_MS = 1_000_000
_TIMEOUT = 30.0  # of the connect, in seconds: long enough for every path that is drawn
_KINDS = ("open", "open", "open", "open", "udp blocked", "tcp blocked", "nobody listens", "no host")


@dataclass
class Scenario:
    """What a seed draws."""

    kind: str
    planes: int
    version: int
    interface_mtu: int
    security: str
    paths: list[list[Path]] = field(default_factory=list)
    """by plane; the same in both directions"""
    bits_per_second: float = 1e9
    stalls: str = "idle"
    stopped: str = ""
    """the host whose program is stopped for `stop_seconds`, `stop_after` seconds after the dial"""
    stop_after: float = 0.0
    stop_seconds: float = 0.0
    cut: tuple[int, ...] = ()
    """planes that carry nothing for `cut_seconds`, `cut_after` seconds after the dial"""
    cut_after: float = 0.0
    cut_seconds: float = 0.0

    @classmethod
    def drawn(cls, rng: Random) -> Scenario:
        """A scenario; each fault is rare enough that most seeds have some that work."""
        made = cls(
            rng.choice(_KINDS),
            rng.choice((1, 1, 2, 2, 4)),
            rng.choice((4, 6)),
            rng.choice((1500, 1500, 9000)),
            rng.choice(("plain", "plain", "secret", "code")),
            bits_per_second=10 ** rng.uniform(6.3, 10),
            stalls=rng.choice(("idle", "idle", "busy", "laden")),
        )
        delay_ms = 10 ** rng.uniform(-2, 2.5)
        for _ in range(made.planes):
            made.paths.append([made._path(rng, delay_ms) for _ in range(rng.choice((1, 1, 2, 4)))])
        if rng.random() < 0.3:
            made.stopped = rng.choice("ab")
            made.stop_after = rng.uniform(0, delay_ms / 50 + 0.2)
            made.stop_seconds = rng.choice((3, 20, 60))
        elif rng.random() < 0.3:
            made._cut(rng, delay_ms)
        return made

    def _cut(self, rng: Random, delay_ms: float) -> None:
        planes = range(1, self.planes + 1)
        self.cut = tuple(planes) if rng.random() < 0.5 else (rng.choice(planes),)
        self.cut_after = rng.uniform(0, delay_ms / 50 + 0.2)
        self.cut_seconds = rng.choice((3, 6, 10) if len(self.cut) == self.planes else (3, 10, 100))

    def _path(self, rng: Random, delay_ms: float) -> Path:
        least = 1280
        return Path(
            delay_ns=int(delay_ms * rng.uniform(1, 1.5) * _MS),
            jitter_ns=int(delay_ms * rng.choice((0, 0, 0.1, 0.5)) * _MS),
            loss=rng.choice((0, 0, 0, 0.001, 0.01)),
            mtu=rng.choice((self.interface_mtu, self.interface_mtu, least, rng.randrange(
                least, self.interface_mtu + 1))),
            icmp=rng.random() < 0.5,
            up=rng.random() < 0.95,
            udp=self.kind != "udp blocked",
            tcp=True,
        )  # fmt: skip

    def install(self, world: World, a: Host, b: Host) -> None:
        """Gives the network between two hosts these paths."""
        for plane, paths in enumerate(self.paths, 1):
            for link in world.plane(a, b, plane):
                link.paths = [Path(**vars(path)) for path in paths]
                link.bits_per_second = self.bits_per_second
                # TCP runs beside it: the first path, as long as that is up.
                link.paths[0].tcp = self.kind != "tcp blocked"
        for host in (a, b):
            host.stall_of = stalls(self.stalls, Random(world.rng.random()))

    def strike(self, world: World, a: Host, b: Host) -> None:
        """Stops a program, or cuts planes, for a while, soon."""
        links = [link for plane in self.cut for link in world.plane(a, b, plane)]
        downs = [path for link in links for path in link.paths if path.up]
        world.agenda.after(self.cut_after * 1e9, lambda: world.cut(downs, self.cut_seconds))
        if self.stopped:
            stopped = a if self.stopped == "a" else b
            ns = int(self.stop_seconds * 1e9)
            world.agenda.after(self.stop_after * 1e9, lambda: stopped.stall(ns))

    def usable(self) -> bool:
        """Whether TCP reaches the peer on any plane: the dialler tries all its addresses."""
        return any(paths[0].up for paths in self.paths)

    def payload(self, plane: int) -> list[int]:
        """What each living path of a plane carries."""
        overhead = 0 if self.security == "plain" else SEAL_OVERHEAD
        return [
            payload_mtu(path.mtu, self.version) - overhead
            for path in self.paths[plane - 1]
            if path.up
        ]


def stalls(kind: str, rng: Random) -> Callable[[], int]:
    """How long a host does nothing after a step: a busy one often, a laden one also for long."""
    if kind == "idle":
        return lambda: 0
    often, longest_ms = {"busy": (0.05, 20), "laden": (0.02, 300)}[kind]

    def drawn() -> int:
        return int(rng.random() ** 3 * longest_ms * _MS) if rng.random() < often else 0

    return drawn


def run(world: World, audit: Audit) -> None:
    """One connect, a moment of life, and an orderly end."""
    scenario = Scenario.drawn(world.rng)
    audit.describe(scenario)
    audit.repeats = scenario.security == "plain"
    a = world.host("a", scenario.planes, mtu=scenario.interface_mtu, version=scenario.version)
    b = world.host("b", scenario.planes, mtu=scenario.interface_mtu, version=scenario.version)
    scenario.install(world, a, b)
    security = _security(scenario.security, world)
    accepted: list[Any] = []
    connected: list[Any] = []
    gone: list[str] = []

    async def serve() -> None:
        config = mrc.ContextConfig(sockets=Sockets(polled=True), security=security)
        async with mrc.open(config) as ctx, ctx.listen() as listener:
            while True:
                async with listener.accept() as qp:
                    accepted.append(qp.path_mtu)
                    await _serve(qp, gone)

    async def call() -> None:
        config = mrc.ContextConfig(sockets=Sockets(polled=True), security=security)
        async with (
            mrc.open(config) as ctx,
            ctx.connect("nowhere" if scenario.kind == "no host" else "b", timeout=_TIMEOUT) as qp,
        ):
            connected.append(qp.path_mtu)
            await qp.write(imm=1)

    server = b.start(serve()) if scenario.kind != "nobody listens" else None
    client = a.start(call())
    scenario.strike(world, a, b)
    ended = world.run_until(client, _TIMEOUT + 30 + scenario.stop_seconds)
    audit.check(ended, f"the connect has not ended after {world.now:.0f} s")
    error = client.exception() if client.done() else None
    audit.result(f"{type(error).__name__}: {error}" if error else f"path MTU {connected[0]}")
    _judge(scenario, audit, error, connected)
    for host in (a, b):
        host.stall_of = lambda: 0
    if server is not None:
        world.run(5)
        missing = len(accepted) < len(connected)
        audit.check(not missing, "the listener does not have what the dialler has")
        # If the last message of an exchange is cut off, only the listener has its QP.
        unmet = len(accepted) - len(connected) if scenario.cut else 0
        audit.check(len(gone) <= unmet, f"QPs ended, beside {unmet} of cut exchanges: {gone}")
        _end(world, audit, server, 30 + scenario.stop_seconds)
    audit.nothing_left(world)


async def _serve(qp: mrc.QP, gone: list[str]) -> None:
    try:
        async for _ in qp.immediates():
            pass
    except mrc.PeerGoneError as error:
        gone.append(str(error))


def _end(world: World, audit: Audit, server: asyncio.Task[None], seconds: float) -> None:
    server.cancel()
    audit.check(world.run_until(server, seconds), "the listener does not end")
    failed = not server.cancelled() and server.done() and server.exception()
    audit.check(not failed, f"the listener failed: {failed}")


def _security(kind: str, world: World) -> Security | None:
    match kind:
        case "secret":
            return Security(secret=world.rng.randbytes(32), identity=world.folder / "key")
        case "code":
            code = "-".join(world.rng.choice(proofs.WORDS) for _ in range(proofs.CODE_WORDS))
            return Security(code=code, identity=world.folder / "key")
    return None


def _judge(
    scenario: Scenario, audit: Audit, error: BaseException | None, connected: list[int]
) -> None:
    text = str(error)
    silent = scenario.stopped == "b" and scenario.stop_seconds > _TIMEOUT - 5
    if silent and isinstance(error, mrc.ConnectTimeoutError):
        return
    if scenario.kind == "no host":
        audit.check(isinstance(error, mrc.ResolveError), f"no such host, but: {text}")
    elif scenario.kind == "nobody listens":
        every = all(paths[0].up for paths in scenario.paths) and not scenario.cut
        audit.check("no program listens" in text or not every, f"no listener: {text}")
    elif scenario.kind == "tcp blocked" or not scenario.usable():
        audit.check(isinstance(error, mrc.ConnectError), f"TCP is blocked, but: {text}")
    elif scenario.kind == "udp blocked":
        found = isinstance(error, (mrc.PathError, mrc.ConnectRefusedError))  # by either end
        audit.check(found and "is UDP blocked?" in text, f"UDP is blocked, but: {text}")
    else:
        lives = [
            each for plane in range(1, scenario.planes + 1) for each in scenario.payload(plane)
        ]
        all_up = all(path.up for paths in scenario.paths for path in paths)
        if all_up:
            audit.check(error is None, f"every path works, but: {text}")
        if scenario.stopped or scenario.cut:
            audit.check("is UDP blocked?" not in text or not lives, f"UDP passes, but: {text}")
        if error is None and lives:
            path_mtu, right = connected[0], min(lives)
            audit.check(path_mtu <= max(lives), f"path MTU {path_mtu}, but no path carries that")
            if all_up and not scenario.cut and all(len(paths) == 1 for paths in scenario.paths):
                audit.check(
                    right - NEAR_BYTES <= path_mtu <= right,
                    f"path MTU {path_mtu}, the paths carry {right}",
                )
