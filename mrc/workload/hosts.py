# SPDX-License-Identifier: Apache-2.0
"""The processes in the hosts of a test bed, from outside: what they are told and say."""

from __future__ import annotations

import asyncio
import sys
from asyncio.subprocess import PIPE, Process
from contextlib import AsyncExitStack, suppress
from typing import TypeVar

import msgspec

from mrc.errors import StateError
from mrc.testbed.bed import Testbed
from mrc.workload.task import Answer, HostTask, Ready, Said

T = TypeVar("T", Ready, Answer)

_PROGRAM = ("-m", "mrc.workload.host")
_MOST_BYTES = 1 << 28  # of a line
_END_SECONDS = 10.0
_DECODER = msgspec.json.Decoder(Ready | Said | Answer)


class Host:
    """The process in one host. Its end before its answer is a StateError with its last words."""

    def __init__(self, name: str, process: Process) -> None:
        self.name = name
        self._process = process

    @classmethod
    async def start(cls, bed: Testbed, task: HostTask, stack: AsyncExitStack) -> Host:
        """Starts the process and tells it the task."""
        name = f"h{task.host}"
        argv, environment = bed.host_command(name, [sys.executable, *_PROGRAM])
        process = await asyncio.create_subprocess_exec(
            *argv, env=environment, stdin=PIPE, stdout=PIPE, stderr=PIPE, limit=_MOST_BYTES
        )
        host = cls(name, process)
        stack.push_async_callback(host.end)
        host._tell(msgspec.json.encode(task))
        return host

    def tell(self, *words: object) -> None:
        self._tell(" ".join(map(str, words)).encode())

    def _tell(self, line: bytes) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line + b"\n")

    async def hear(self) -> Ready | Said | Answer:
        assert self._process.stdout is not None
        line = await self._process.stdout.readline()
        if not line:
            raise StateError(f"{self.name}: {await self._last_words()}")
        told: Ready | Said | Answer = _DECODER.decode(line)
        return told

    async def until(self, kind: type[T]) -> T:
        """The next answer of this kind."""
        while not isinstance(told := await self.hear(), kind):
            pass
        return told

    async def _last_words(self) -> str:
        assert self._process.stderr is not None
        with suppress(TimeoutError):
            said = await asyncio.wait_for(self._process.stderr.read(), _END_SECONDS)
            if lines := said.decode(errors="replace").strip().splitlines():
                return lines[-1]
        return f"its process ended with exit code {await self._process.wait()}"

    async def end(self) -> None:
        """Ends the process: at once, unless it has answered."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        with suppress(ProcessLookupError):
            if self._process.returncode is None:
                self._process.terminate()
        try:
            await asyncio.wait_for(self._process.wait(), _END_SECONDS)
        except TimeoutError:
            with suppress(ProcessLookupError):
                self._process.kill()
            await self._process.wait()
