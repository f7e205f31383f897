# SPDX-License-Identifier: Apache-2.0
"""Flows by iperf3: a client and a server for each flow, which sends all of its bytes at once.

The server prints what arrived when it ends, so its samples count from the begin of the flow.
"""

from __future__ import annotations

import asyncio
import errno
import json
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any, Self

from mrc.child import Child
from mrc.linux import programs
from mrc.units import digits
from mrc.workload.task import Counts, FlowTask, HostTask

PROGRAM = "iperf3"
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
    """The clients and servers of a host."""

    def __init__(self, task: HostTask, stack: AsyncExitStack, _: Callable[[int, int], None]):
        self._sends = [flow for flow in task.sends if flow.over == "iperf3"]
        self._receives = [flow.number for flow in task.receives if flow.over == "iperf3"]
        self._stack = stack
        self._seconds = max(_LEAST_SECONDS, task.sample_ns / 1e9)
        self._servers: dict[int, Child] = {}

    async def open(self) -> Self:
        """Starts the servers, and waits until they listen. Raises StateError without iperf3."""
        if self._sends or self._receives:
            programs.require(PROGRAM)
        for number in self._receives:
            port = _FIRST_PORT + number
            words = ("-s", "-1", "-i", f"{digits(self._seconds)}", "-p", port)
            server = self._servers[number] = await _start(self._stack, *words)
            while not _listens(port):
                if server.exit_code is not None:
                    raise OSError(errno.EIO, f"iperf3: {(await _told(server)).get('error')}")
                await asyncio.sleep(0.01)
        return self

    async def connect(self) -> dict[int, Iperf3Link]:
        return {flow.number: Iperf3Link(flow, self._stack) for flow in self._sends}

    async def samples(self) -> dict[int, list[tuple[int, ...]]]:
        """Time since the begin of the flow, and bytes received, of each flow that ends here."""
        return {number: _samples(await _ended(each)) for number, each in self._servers.items()}


async def _start(stack: AsyncExitStack, *words: object) -> Child:
    child = await Child.start([PROGRAM, "-J", *map(str, words)], line_bytes=1 << 28)
    stack.push_async_callback(child.end)
    return child


async def _told(child: Child) -> dict[str, Any]:
    output = await child.output()
    try:
        told: dict[str, Any] = json.loads(output)
    except ValueError:
        return {"error": f"exit code {child.exit_code}"}
    return told


async def _ended(server: Child) -> dict[str, Any]:
    with suppress(TimeoutError):
        return await asyncio.wait_for(_told(server), _END_SECONDS)
    return {}


def _samples(told: dict[str, Any]) -> list[tuple[int, ...]]:
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
