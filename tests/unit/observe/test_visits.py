# SPDX-License-Identifier: Apache-2.0
"""The connections of a server that only answers."""

from __future__ import annotations

import asyncio
import socket

from mrc.observe.visits import Visits


async def test_visits__a_connection_that_came_just_before_the_end_gets_no_answer() -> None:
    answered = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
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
