# SPDX-License-Identifier: Apache-2.0
"""The process in a host: it carries the flows that begin or end here (mrc/workload/task.py)."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Coroutine
from contextlib import AsyncExitStack
from typing import Any

import msgspec
import uvloop

from mrc.connect.admission import raise_descriptor_limit
from mrc.errors import MrcError
from mrc.workload import transports
from mrc.workload.task import HostAnswer, HostNews, HostTask, Ready, ReceivedFlow
from mrc.workload.transports import Writer, sleep_until


def say(told: object) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(told) + b"\n")
    sys.stdout.flush()


class TrafficHost:
    """The flows of one host."""

    def __init__(self, task: HostTask, stack: AsyncExitStack) -> None:
        self._task = task
        self._mrc = transports.MrcTransport(task, stack, self._on_arrival)
        self._tcp = transports.TcpTransport(task, stack, self._on_arrival)
        self._iperf3 = transports.Iperf3Transport(task, stack, self._on_arrival)
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
        self._run(self._write())
        self._run(self._sample())

    def _run(self, job: Coroutine[None, None, None]) -> None:
        self._jobs.append(asyncio.create_task(job))

    async def _write(self) -> None:
        finite = [each for each in self._writers.values() if not each.flow.is_endless]
        for endless in self._writers.values():
            if endless.flow.is_endless:
                self._run(endless.run(self._start_ns))
        await asyncio.gather(*(writer.run(self._start_ns) for writer in finite))
        say(HostNews(over=True))

    async def begin_step(self, number: int, at_ns: int) -> None:
        await sleep_until(at_ns)
        self._writers[number].begin_step()

    def step(self, number: int, at_ns: int) -> None:
        """Begins the next step of a flow at a time."""
        self._run(self.begin_step(number, at_ns))

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
    raise_descriptor_limit()
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
                    host.step(int(number), int(at_ns))
                case _:
                    say(await host.stop())
                    return


def main() -> int:
    """0; 1 after an error, whose line is on stderr."""
    try:
        uvloop.run(serve())
    except (OSError, MrcError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
