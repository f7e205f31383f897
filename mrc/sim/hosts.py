# SPDX-License-Identifier: Apache-2.0
"""The processes in the hosts of a test bed, from outside: what they are told and say.

Those on other machines are reached by one relay (`mrc.sim.hosts`) on each.
"""

from __future__ import annotations

import asyncio
import sys
import time
from contextlib import AsyncExitStack
from typing import Any, TypeVar

import msgspec
import uvloop

from mrc.errors import ConnectError, MrcError, StateError
from mrc.sim.task import CLOCK, GREETING, HostAnswer, HostEnd, HostNews, HostTask, Ready
from mrc.testbed.bed import Testbed
from mrc.testbed.child import Child

T = TypeVar("T", Ready, HostAnswer)

_PROGRAM = ("-P", "-m", "mrc.sim.host")
_MOST_BYTES = 1 << 28  # of a line
_CLOCKS = 5  # answers, of which the fastest counts
_DECODER = msgspec.json.Decoder(Ready | HostNews | HostAnswer | HostEnd)


class HostProcess:
    """The process in one host. Its end before its answer is a StateError with its last words."""

    def __init__(self, name: str) -> None:
        self.name = name

    def send(self, line: bytes) -> None:
        """Sends a line, without its end."""
        raise NotImplementedError

    async def line(self) -> bytes:
        """Its next line. Raises StateError if it has ended."""
        raise NotImplementedError

    def at(self, now_ns: int) -> int:
        """A time of this machine's monotonic clock as a time of the host's."""
        return now_ns

    def tell(self, *words: object) -> None:
        self.send(" ".join(map(str, words)).encode())

    async def hear(self) -> Ready | HostNews | HostAnswer:
        told: Ready | HostNews | HostAnswer | HostEnd = _DECODER.decode(await self.line())
        if isinstance(told, HostEnd):
            raise StateError(f"{self.name}: {told.why}")
        return told

    async def until(self, kind: type[T]) -> T:
        """The next answer of this kind."""
        while not isinstance(told := await self.hear(), kind):
            pass
        return told


class LocalHost(HostProcess):
    """On this machine."""

    def __init__(self, name: str, child: Child) -> None:
        super().__init__(name)
        self._child = child

    @classmethod
    async def start(cls, bed: Testbed, name: str, stack: AsyncExitStack) -> LocalHost:
        argv, environment = bed.host_command(name, [sys.executable, *_PROGRAM])
        child = await Child.start(argv, environment, line_bytes=_MOST_BYTES)
        stack.push_async_callback(child.end)
        return cls(name, child)

    def send(self, line: bytes) -> None:
        self._child.send(line)

    async def line(self) -> bytes:
        if not (line := await self._child.line()):
            raise StateError(f"{self.name}: {await self._child.last_words()}")
        return line


class RemoteHost(HostProcess):
    """On another machine."""

    def __init__(self, name: str, relay: Relay) -> None:
        super().__init__(name)
        self._relay = relay
        self.lines: asyncio.Queue[bytes] = asyncio.Queue()
        """empty: the relay has ended"""

    def send(self, line: bytes) -> None:
        self._relay.send(self.name, line)

    async def line(self) -> bytes:
        line = await self.lines.get()
        if not line:
            self.lines.put_nowait(b"")
            raise ConnectError(f"{self.name}: {self._relay.lost}")
        return line

    def at(self, now_ns: int) -> int:
        return now_ns + self._relay.ahead_ns


class Relay:
    """`mrc testbed part --traffic` on another machine, with the processes in all its hosts."""

    def __init__(self, machine: str, child: Child) -> None:
        self._machine, self._child = machine, child
        self._hosts: dict[str, RemoteHost] = {}
        self.lost = ""
        """why it has ended"""
        self.ahead_ns = 0
        """the monotonic clock there, before ours"""

    @classmethod
    async def start(cls, bed: Testbed, machine: Any, stack: AsyncExitStack) -> Relay:
        """Raises ConnectError if the machine does not answer."""
        argv = machine.command(["part", "--name", bed.name, "--traffic"])
        # ssh may ask for a password at the terminal.
        child = await Child.start(argv, apart=False, line_bytes=_MOST_BYTES)
        stack.push_async_callback(child.end)
        relay = cls(machine.name, child)
        while await relay._line() != GREETING:  # what a login prints
            pass
        found = []
        for _ in range(_CLOCKS):
            asked_ns = time.monotonic_ns()
            relay.send(CLOCK, b"")
            there_ns, now_ns = int((await relay._line()).split()[1]), time.monotonic_ns()
            found.append((now_ns - asked_ns, there_ns - (asked_ns + now_ns) // 2))
        relay.ahead_ns = min(found)[1]
        hearing = asyncio.create_task(relay._hear())
        stack.callback(hearing.cancel)
        return relay

    def host(self, name: str) -> HostProcess:
        """The process in a host, which starts when it is told something."""
        host = self._hosts[name] = RemoteHost(name, self)
        if self.lost:
            host.lines.put_nowait(b"")
        return host

    def send(self, name: str, line: bytes) -> None:
        self._child.send(b"%s %s" % (name.encode(), line))

    async def _line(self) -> bytes:
        if not (line := await self._child.line()):
            why = await self._child.last_words()
            raise ConnectError(f"{self._machine} does not answer: {why}")
        return line

    async def _hear(self) -> None:
        try:
            while True:
                name, _, line = (await self._line()).partition(b" ")
                self._hosts[name.decode()].lines.put_nowait(line)
        except ConnectError as error:
            self.lost = str(error)
        for host in self._hosts.values():
            host.lines.put_nowait(b"")


class Hosts:
    """Starts the processes in the hosts of a test bed, and ends them with `stack`."""

    def __init__(self, bed: Testbed, stack: AsyncExitStack) -> None:
        self._bed = bed
        self._stack = stack
        self._relays: dict[str, Relay] = {}

    async def start(self, task: HostTask) -> HostProcess:
        """Starts the process in the host of a task, and tells it the task."""
        name = f"h{task.host}"
        machine = self._bed.elsewhere(name)
        if machine is None:
            host: HostProcess = await LocalHost.start(self._bed, name, self._stack)
        else:
            if machine.name not in self._relays:
                relay = await Relay.start(self._bed, machine, self._stack)
                self._relays[machine.name] = relay
            host = self._relays[machine.name].host(name)
        host.send(msgspec.json.encode(task))
        return host


# ---- The relay: the processes in the hosts of this machine, for a command on another one ---------


_RELAY_LINE_BYTES = 1 << 26  # of a line that tells something


def _say(line: bytes) -> None:
    sys.stdout.buffer.write(line)
    sys.stdout.flush()


class _RelayServer:
    def __init__(self, bed: Testbed, stack: AsyncExitStack) -> None:
        self._bed = bed
        self._stack = stack
        self._hosts: dict[str, LocalHost] = {}

    async def take(self, name: str, line: bytes) -> None:
        if name == CLOCK:
            _say(b"%s %d\n" % (CLOCK.encode(), time.monotonic_ns()))
            return
        if name not in self._hosts:
            host = self._hosts[name] = await LocalHost.start(self._bed, name, self._stack)
            self._stack.callback(asyncio.create_task(self._pass_on(host)).cancel)
        self._hosts[name].send(line)

    async def _pass_on(self, host: LocalHost) -> None:
        try:
            while True:
                _say(b"%s %s" % (host.name.encode(), await host.line()))
        except MrcError as error:
            why = str(error).removeprefix(f"{host.name}: ")
            _say(b"%s %s\n" % (host.name.encode(), msgspec.json.encode(HostEnd(why=why))))


async def _serve(name: str) -> None:
    bed = Testbed.existing(name)
    reader = asyncio.StreamReader(limit=_RELAY_LINE_BYTES)
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    _say(GREETING)
    async with AsyncExitStack() as stack:
        relay = _RelayServer(bed, stack)
        while line := await reader.readline():
            host, _, rest = line.rstrip(b"\n").partition(b" ")
            await relay.take(host.decode(), rest)


def serve_relay(name: str) -> None:
    """Serves a test bed until the input ends. Raises StateError if it is not up."""
    uvloop.run(_serve(name))
