# SPDX-License-Identifier: Apache-2.0
"""The connections of a server that only answers: so many at a time, and none once it closes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from mrc.errors import MrcError
from mrc.tasks import cancelled, took_cancellation

logger = logging.getLogger("mrc.observe")

Answer = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
"""Answers one visit. May raise MrcError, OSError or ValueError, which ends the visit."""


class Visits:
    """Answers at most `most` connections at a time; further ones are closed."""

    def __init__(self, most: int, answer: Answer) -> None:
        self._most = most
        self._answer = answer
        self._running: set[asyncio.Task[None]] = set()
        self._closed = False

    async def close(self, server: asyncio.Server | None) -> None:
        """Ends the server and every visit; safe to call twice."""
        self._closed = True
        if server is not None:
            server.close()
        await cancelled(*self._running)

    async def on_connection(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """A connection of the server. It may have come just before the server closed."""
        visit = asyncio.current_task()
        assert visit is not None
        if self._closed or len(self._running) >= self._most:
            writer.transport.abort()
            return
        self._running.add(visit)
        try:
            await self._answer(reader, writer)
        except (MrcError, OSError, ValueError, EOFError) as error:
            logger.debug("a connection ended: %s", error)
        except asyncio.CancelledError:
            took_cancellation()  # asyncio would print a traceback of a cancelled task
        finally:
            self._running.discard(visit)
            writer.transport.abort()
