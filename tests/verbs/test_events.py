# SPDX-License-Identifier: Apache-2.0
"""Events of EVs: one program has the QP, another one watches, an agent in this process denies."""

from __future__ import annotations

import asyncio
import ctypes
import os
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from attached import running_agent
from slowness import PATIENCE, until

from mrc.agent import socket as agent_socket
from mrc.agent.profiles import ev_of
from mrc.engine.native import lib

NAME = f"@mrc-test-events-{os.getpid()}"
ROOM = 4  # of the CQ
GOOD, DENIED = int(lib.MRC_API_EV_GOOD), int(lib.MRC_API_EV_DENIED)


@asynccontextmanager
async def started(*command: str | Path) -> AsyncIterator[Process]:
    environment = os.environ | {agent_socket.ENVIRONMENT: NAME}
    process = await asyncio.create_subprocess_exec(
        *command, env=environment, stdin=PIPE, stdout=PIPE
    )
    try:
        yield process
        assert process.stdin is not None
        process.stdin.close()
        assert await process.wait() == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def line_of(process: Process) -> str:
    assert process.stdout is not None
    return (await process.stdout.readline()).decode().rstrip("\n")


async def events_of(watcher: Process, count: int) -> list[str]:
    """Those in its CQ when `count` more have come."""
    assert watcher.stdin is not None
    watcher.stdin.write(f"{count}\n".encode())
    found = []
    while line := await line_of(watcher):
        found.append(line)
    return found


async def test_events__another_program_counts_what_its_cq_drops(programs: Path) -> None:
    command = (programs / "peers", "watcher")
    async with (
        asyncio.timeout(PATIENCE),
        running_agent(NAME) as agent,
        started(*command, "use") as user,
        started(*command, "look", str(ROOM)) as watcher,
    ):
        assert await line_of(watcher) == "watches"
        qpn = int(await line_of(user))
        (end,) = (each.connects.ends[qpn] for each in agent.programs if qpn in each.connects.ends)
        first = end._paths[0]
        ev = ev_of(first.attr.port, first.usids, first.attr.sport)
        profile = agent.requests.evs[7].profile

        def shown(state: int, dropped: int = 0) -> str:
            return f"7 {ev.plane} {ev.value[:2].hex()} {state} {dropped}"

        for _ in range(5):
            await profile.deny(first.name)
            await profile.allow(first.name)
        assert await events_of(watcher, 10) == [shown(DENIED), shown(GOOD)] * 2
        await profile.deny(first.name)
        assert await events_of(watcher, 1) == [shown(DENIED, dropped=10 - ROOM)]
        await profile.allow(first.name)
        assert await events_of(watcher, 1) == [shown(GOOD)]


class _Scheduling(ctypes.Structure):
    """`struct sched_attr` of the kernel, version 0."""

    _fields_ = (
        ("size", ctypes.c_uint32),
        ("policy", ctypes.c_uint32),
        ("flags", ctypes.c_uint64),
        ("nice", ctypes.c_int32),
        ("priority", ctypes.c_uint32),
        ("runtime_ns", ctypes.c_uint64),
        ("deadline_ns", ctypes.c_uint64),
        ("period_ns", ctypes.c_uint64),
    )


def slice_ns(thread: int) -> int:
    """The slice of a thread: the kernel prefers one with a shorter slice (Linux 6.12)."""
    number = {"x86_64": 315, "aarch64": 275}[os.uname().machine]  # sched_getattr
    found = _Scheduling()
    size = ctypes.sizeof(found)
    assert ctypes.CDLL(None).syscall(number, thread, ctypes.byref(found), size, 0) == 0
    return int(found.runtime_ns)


def slices_of(process: int) -> dict[str, int]:
    """Of each thread, by name."""
    tasks = Path(f"/proc/{process}/task").iterdir()
    return {(each / "comm").read_text().strip(): slice_ns(int(each.name)) for each in tasks}


async def test_helper__a_program_that_spins_does_not_keep_the_core_from_it(programs: Path) -> None:
    async with (
        asyncio.timeout(PATIENCE),
        running_agent(NAME),
        started(programs / "peers", "watcher", "use") as user,
    ):
        assert int(await line_of(user)) > 0
        # It sets its slice when it first runs. A kernel without slices has 0.
        wanted = 100_000 if slices_of(user.pid)["peers"] else 0
        until(lambda: slices_of(user.pid)["libmrc"] == wanted)
