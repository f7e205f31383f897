# SPDX-License-Identifier: Apache-2.0
"""A process of the demo: `mrc send` or `mrc recv` inside a host of the test bed."""

from __future__ import annotations

import asyncio
import json
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mrc.children import tied
from mrc.errors import MrcError
from mrc.observe import local
from mrc.tasks import cancelled
from mrc.testbed.bed import Testbed

LISTENING = "listening on"
LOOK_SECONDS = 0.02  # between two queries of its counters
STOP_SECONDS = 3.0


class DemoError(MrcError):
    """The demo failed before its end."""


class Child:
    """One mrc process inside a host: its counters, its result and its errors."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.listening = asyncio.Event()
        self._socket: Path | None = None
        self._lines: list[str] = []
        self._readers: list[asyncio.Task[Any]] = []

    async def start(self, bed: Testbed, host: str, arguments: Sequence[str]) -> None:
        command = [sys.executable, "-P", "-m", "mrc", *arguments, "--json"]
        argv, environment = bed.host_command(host, command)
        self._process = await asyncio.create_subprocess_exec(
            *tied(argv),  # with a session of its own: ^C reaches only the demo, which ends it
            env=environment,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        assert self._process.stdout is not None and self._process.stderr is not None
        self._readers = [
            asyncio.create_task(self._read_lines(self._process.stderr)),
            asyncio.create_task(self._process.stdout.read()),
        ]

    async def _read_lines(self, stream: asyncio.StreamReader) -> None:
        async for line in stream:
            self._lines.append(line.decode(errors="replace").rstrip())
            if LISTENING in self._lines[-1]:
                self.listening.set()

    async def look(self) -> dict[str, Any] | None:
        """Its counters now, as in `mrc top --local`; None if it has ended with success.

        Raises the error of `result` if it has failed.
        """
        while self._process.returncode is None:
            try:
                self._socket = self._socket or next(iter(local.sockets_of(self._process.pid)), None)
                if self._socket is not None:
                    return await local.look(self._socket)
            except (OSError, MrcError):
                pass  # the process is ending, or has no socket yet: retry
            await asyncio.sleep(LOOK_SECONDS)
        await self.result()
        return None

    async def until(self, count: int) -> None:
        """Waits until it has received `count` payload bytes."""
        while True:
            seen = await self.look()
            if seen is None or seen["counters"].get("RX_BYTES", 0) >= count:
                return
            await asyncio.sleep(LOOK_SECONDS)

    async def plane_bytes(self) -> dict[int, int]:
        """Payload that it has sent on each plane."""
        seen, sent = await self.look(), Counter[int]()
        for qp in seen["qps"] if seen is not None else ():
            sent.update({each["plane"]: each["sent_bytes"] for each in qp["planes"]})
        if not sent:  # its QPs are closed
            sent.update(
                {each["plane"]: each["sent_bytes"] for each in (await self.result())["planes"]}
            )
        return sent

    async def result(self) -> dict[str, Any]:
        """Waits for its end, and returns the JSON that it printed."""
        # Cancelling this wait must not cancel the readers.
        *_, output = await asyncio.gather(*(asyncio.shield(each) for each in self._readers))
        code = await self._process.wait()
        if code != 0:
            said = "; ".join(self._lines[-3:]) or "no message"
            raise DemoError(f"{self.name} failed with exit code {code}: {said}")
        result: dict[str, Any] = json.loads(output)
        return result

    async def stop(self) -> None:
        """Ends the process if it still runs, and waits for its end."""
        if not hasattr(self, "_process"):
            return
        if self._process.returncode is None:
            self._process.terminate()
            try:
                async with asyncio.timeout(STOP_SECONDS):
                    await self._process.wait()
            except TimeoutError:
                self._process.kill()
        await self._process.wait()
        await cancelled(*self._readers)
