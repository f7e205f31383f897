# SPDX-License-Identifier: Apache-2.0
"""The connections of a server that only answers: so many at a time, and none once it closes."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable

from msgspec import Struct

from mrc.connect.admission import network_of, source_of, victim
from mrc.errors import MrcError
from mrc.tasks import cancelled, took_cancellation

logger = logging.getLogger("mrc.observe")

PATIENCE_SECONDS = 60.0
"""A connection that asks nothing for so long gives its place to another."""
_GRACE_SECONDS = 0.1  # for the first request; a flood of connections is slower


class Visit(Struct, eq=False):
    """A connection that has a place."""

    source: str
    network: str
    since: float
    """when it came, or asked last"""
    silent: bool = True
    """it has asked nothing yet"""
    task: asyncio.Task[None] | None = None
    """answers it"""

    def ask(self) -> None:
        """It has asked: to be called for each whole request."""
        self.silent, self.since = False, asyncio.get_running_loop().time()


Answer = Callable[[asyncio.StreamReader, asyncio.StreamWriter, Visit], Awaitable[None]]
"""Answers one visit. May raise MrcError, OSError or ValueError, which ends the visit."""


class Visits:
    """At most `most` connections at a time. When all places are taken, a newcomer gets that of a
    connection that asks nothing, or of a source that has more places than its own will have. If
    there is none, the newcomer is turned away.
    """

    def __init__(self, most: int, answer: Answer | None = None) -> None:
        self._most = most
        self._answer = answer
        self._running: set[Visit] = set()
        self._closed = False

    async def close(self, server: asyncio.Server | None) -> None:
        """Ends the server and every visit; safe to call twice."""
        self._closed = True
        if server is not None:
            server.close()
        await cancelled(*(visit.task for visit in self._running if visit.task is not None))

    def admit(self, address: str) -> Visit | None:
        """A place for a connection from this address ("" if all are of one user of this machine);
        `start` has to follow at once. None: there is no place.
        """
        source, network = (source_of(address), network_of(address)) if address else ("", "")
        now = asyncio.get_running_loop().time()
        if self._closed or not self._has_room(source, now):
            return None
        return Visit(source, network, now)

    def start(self, visit: Visit, task: asyncio.Task[None]) -> None:
        """The task answers the visit, which has its place until the task ends. It may be cancelled,
        for a newcomer.
        """
        visit.task = task
        self._running.add(visit)
        task.add_done_callback(lambda _: self._running.discard(visit))

    def _has_room(self, source: str, now: float) -> bool:
        """Takes a place away if that is needed and possible."""
        if len(self._running) < self._most:
            return True
        places = Counter(visit.source for visit in self._running)
        least = places[source] + 1
        loose = [
            visit
            for visit in self._running
            if now - visit.since > (_GRACE_SECONDS if visit.silent else PATIENCE_SECONDS)
            or places[visit.source] > least
        ]
        if loose:
            gone = victim(loose, now)
            self._running.discard(gone)
            assert gone.task is not None
            gone.task.cancel()
        return bool(loose)

    async def on_connection(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """A connection of the server. It may have come just before the server closed."""
        task = asyncio.current_task()
        assert task is not None and self._answer is not None
        peer = writer.get_extra_info("peername")
        visit = self.admit(peer[0] if isinstance(peer, tuple) else "")
        if visit is None:
            writer.transport.abort()
            return
        self.start(visit, task)
        try:
            await self._answer(reader, writer, visit)
        except (MrcError, OSError, ValueError, EOFError) as error:
            logger.debug("a connection ended: %s", error)
        except asyncio.CancelledError:
            took_cancellation()  # asyncio would print a traceback of a cancelled task
        finally:
            writer.transport.abort()
