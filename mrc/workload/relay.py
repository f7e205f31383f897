# SPDX-License-Identifier: Apache-2.0
"""The processes in the hosts of this machine, for a command on another one
(`mrc testbed part --traffic`; mrc/workload/task.py has the lines).

They end with their answers, or when this one's input does.
"""

from __future__ import annotations

import asyncio
import sys
import time
from contextlib import AsyncExitStack

import msgspec
import uvloop

from mrc.errors import MrcError
from mrc.testbed import bed as beds
from mrc.testbed.bed import Testbed
from mrc.workload.hosts import LocalHost
from mrc.workload.task import CLOCK, GREETING, HostEnd

_MOST_BYTES = 1 << 26  # of a line that tells something


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
    bed = beds.existing(name)
    reader = asyncio.StreamReader(limit=_MOST_BYTES)
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    _say(GREETING)
    async with AsyncExitStack() as stack:
        relay = _RelayServer(bed, stack)
        while line := await reader.readline():
            host, _, rest = line.rstrip(b"\n").partition(b" ")
            await relay.take(host.decode(), rest)


def serve(name: str) -> None:
    """Serves a test bed until the input ends. Raises StateError if it is not up."""
    uvloop.run(_serve(name))
