# SPDX-License-Identifier: Apache-2.0
"""Reads the test bed and the endpoints while a page is open, and gives every page what is new."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING

from msgspec import Struct

from mrc.errors import MrcError
from mrc.observe.endpoints import Look
from mrc.results.plain import plain
from mrc.tasks import cancelled
from mrc.transfer.threads import in_thread
from mrc.view.frames import Endpoints, Problem, Transfers

if TYPE_CHECKING:  # `mrc top` needs no test beds
    from mrc.view.fabric import FabricChange, FabricView

MAX_PAGES = 8
_ENDPOINTS_SECONDS, _LINKS_SECONDS = 0.1, 0.25
_REST = 3  # after each look at least this many times as long as it took
_WAITING = 64  # messages for a page that reads slowly; then it loses the oldest


class PageFeed:
    """What the pages show. `view`: the test bed, if there is one."""

    def __init__(self, look: Look, view: FabricView | None) -> None:
        self._look = look
        self._view = view
        self._pages: set[asyncio.Queue[str]] = set()
        self._tasks: list[asyncio.Task[None]] = []
        self._lasting: dict[str, str] = {}  # for pages that open later
        self._problems: dict[str, str] = {}
        self._changed = asyncio.Event()

    @property
    def is_full(self) -> bool:
        return len(self._pages) >= MAX_PAGES

    @asynccontextmanager
    async def open(self) -> AsyncIterator[asyncio.Queue[str]]:
        """The messages for a page, until it closes."""
        page = asyncio.Queue[str](_WAITING)
        if not self._pages:
            self._lasting.clear()
            self._problems.clear()
            works = [self._endpoints()]
            works += [] if self._view is None else [self._links(self._view)]
            self._tasks = [asyncio.create_task(work) for work in works]
        for message in self._lasting.values():
            page.put_nowait(message)
        self._pages.add(page)
        try:
            yield page
        finally:
            self._pages.discard(page)
            if not self._pages:
                await cancelled(*self._tasks)

    async def change(self, change: FabricChange) -> None:
        """Changes the test bed and shows that soon. Raises an MrcError."""
        if self._view is None:
            raise MrcError("this page shows no test bed")
        await in_thread(self._view.change, change)
        self._changed.set()

    async def _endpoints(self) -> None:
        transfers, before_ns, longest_ns = Transfers(), time.monotonic_ns(), 0
        while True:
            async with _paced(_ENDPOINTS_SECONDS):
                try:
                    seen = await self._look()
                except (MrcError, OSError) as error:
                    self._tell_of("endpoints", str(error))
                    continue
                self._tell_of("endpoints", "; ".join(map(str, seen.unanswered)))
                now_ns = time.monotonic_ns()
                longest_ns, before_ns = max(longest_ns, now_ns - before_ns), now_ns
                shown = transfers.take(seen.endpoints)
                count = len(seen.endpoints)
                self._tell("endpoints", Endpoints(now_ns, longest_ns, count, shown))

    async def _links(self, view: FabricView) -> None:
        await in_thread(view.begin)
        drawn = None
        while True:
            self._changed.clear()
            async with _paced(_LINKS_SECONDS, self._changed):
                try:
                    now, links = await in_thread(view.read)
                except (MrcError, OSError) as error:
                    self._tell_of("links", str(error))
                    continue
                self._tell_of("links", view.trouble)
                if now is not drawn:
                    drawn = now
                    self._tell("bed", drawn, lasts="bed")
                self._tell("links", links)

    def _tell_of(self, source: str, problem: str) -> None:
        """Tells of a problem once, and when it is over."""
        if problem != self._problems.get(source, ""):
            self._problems[source] = problem
            self._tell("problem", Problem(source, problem), lasts=f"problem {source}")

    def _tell(self, event: str, what: Struct, *, lasts: str = "") -> None:
        """`lasts`: the message is for later pages, too, in place of an earlier one of this name."""
        message = f"event: {event}\ndata: {json.dumps(plain(what), separators=(',', ':'))}\n\n"
        if lasts:
            self._lasting[lasts] = message
        for page in self._pages:
            if page.full():
                page.get_nowait()
            page.put_nowait(message)


@asynccontextmanager
async def _paced(seconds: float, sooner: asyncio.Event | None = None) -> AsyncIterator[None]:
    """After the body, waits until the next look is due, or until `sooner`."""
    began = time.monotonic()
    yield
    took = time.monotonic() - began
    with suppress(TimeoutError):
        async with asyncio.timeout(max(seconds - took, _REST * took)):
            await (asyncio.Event() if sooner is None else sooner).wait()
