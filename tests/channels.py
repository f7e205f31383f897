# SPDX-License-Identifier: Apache-2.0
"""Both ends of a TCP connection of the exchange, over loopback."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from mrc.connect.oob import FRAME_BYTES, Channel


@contextlib.asynccontextmanager
async def channels() -> AsyncIterator[tuple[Channel, Channel]]:
    """The connecting and the listening end of one TCP connection."""
    arrived: asyncio.Future[Channel] = asyncio.get_running_loop().create_future()

    def on_peer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        arrived.set_result(Channel(reader, writer))

    server = await asyncio.start_server(on_peer, "127.0.0.1", 0, limit=FRAME_BYTES)
    port = server.sockets[0].getsockname()[1]
    one = Channel(*await asyncio.open_connection("127.0.0.1", port), called="host")
    try:
        yield one, await arrived
    finally:
        one.abort()
        (await arrived).abort()
        server.close()
