# SPDX-License-Identifier: Apache-2.0
"""The connections of a server that only answers."""

from __future__ import annotations

import asyncio
import socket

import pytest
from endpoints import BUDGET_SECONDS

from mrc.observe import server as module
from mrc.observe.server import MAX_REQUESTS, PATIENCE_SECONDS, MetricsServer, Visits


async def test_visits__a_connection_that_came_just_before_the_end_gets_no_answer() -> None:
    answered = []

    async def answer(reader: asyncio.StreamReader, *_: object) -> None:
        answered.append(await reader.readline())

    visits = Visits(1, answer)
    ours, theirs = socket.socketpair()
    with ours:
        reader, writer = await asyncio.open_connection(sock=theirs)
        await visits.close(None)
        ours.shutdown(socket.SHUT_WR)
        await visits.on_connection(reader, writer)
        ours.setblocking(False)
        assert await asyncio.get_running_loop().sock_recv(ours, 1) == b"" and answered == []


async def test_visits__silent_connections_keep_nobody_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_GRACE_SECONDS", 0.0)

    async def page(_: str) -> tuple[bytes, str]:
        return b"x 1\n", "text/plain"

    server = MetricsServer(page)
    async with asyncio.timeout(BUDGET_SECONDS):
        await server.open("127.0.0.1", 0)
        idle = [
            await asyncio.open_connection("127.0.0.1", server.port) for _ in range(2 * MAX_REQUESTS)
        ]
        idle[-1][1].write(b"GET /metrics HT")  # half a request is none
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(b"GET /metrics HTTP/1.1\r\n\r\n")
        assert (await reader.read()).endswith(b"x 1\n")
        for _, each in (*idle, (reader, writer)):
            each.close()
        await server.close()


@pytest.mark.parametrize(
    ("held", "newcomer", "gone"),
    [
        # source, whether it has asked, seconds since
        ([("10.0.0.1", True, 1), ("10.0.0.2", True, 2)], "10.0.0.3", None),
        ([("10.0.0.1", True, 1), ("10.0.0.1", True, 2)], "10.0.0.1", None),
        ([("10.0.0.1", True, 1), ("10.0.0.1", True, 2)], "10.0.0.3", 1),
        ([("10.0.0.1", True, 5), ("10.0.0.2", False, 1000)], "10.0.0.3", 1),
        ([("10.0.0.1", True, 5), ("10.0.0.2", False, 0)], "10.0.0.3", None),
        ([("10.0.0.1", True, 5), ("10.0.0.1", True, PATIENCE_SECONDS + 1)], "10.0.0.1", 1),
        ([("fd00::1", True, 1), ("fd00::2", True, 2)], "fd01::1", 1),  # one /64
    ],
)
async def test_visits__who_gives_its_place(
    held: list[tuple[str, bool, float]], newcomer: str, gone: int | None
) -> None:
    visits = Visits(len(held))
    now = asyncio.get_running_loop().time()
    tasks = [asyncio.create_task(asyncio.sleep(BUDGET_SECONDS)) for _ in held]
    for task, (address, has_asked, seconds) in zip(tasks, held, strict=True):
        visit = visits.admit(address)
        assert visit is not None
        visits.start(visit, task)
        if has_asked:
            visit.ask()
        visit.since = now - seconds
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_GRACE_SECONDS", 500.0)
        assert (visits.admit(newcomer) is None) == (gone is None)
    await asyncio.sleep(0)
    assert [task.cancelled() for task in tasks] == [i == gone for i in range(len(held))]
    await visits.close(None)
