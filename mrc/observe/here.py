# SPDX-License-Identifier: Apache-2.0
"""The endpoints of this machine, look after look, also those whose process does not answer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Self

from msgspec import Struct

from mrc.connect.parse import shown
from mrc.errors import MrcError
from mrc.linux.processes import process
from mrc.observe import local
from mrc.observe.rates import checked
from mrc.results.snapshot import Snapshot
from mrc.results.top import Unanswered
from mrc.tasks import cancelled
from mrc.units import digits

_TURNS = 8  # concurrent requests: each answer may have a megabyte


class Seen(Struct, frozen=True):
    """What one look found."""

    endpoints: dict[str, Snapshot]
    """by a name that stays the same"""
    unanswered: tuple[Unanswered, ...] = ()


Look = Callable[[], Awaitable[Seen]]


class Here:
    """Looks at the endpoints of this machine. A context manager.

    An endpoint that does not answer holds up one look for `seconds`. Then others are shown without
    it, and it is asked again in the background until it answers.
    """

    def __init__(
        self,
        seconds: float = local.ANSWER_SECONDS,
        *,
        of_beds: Path | None = None,
        all_users: bool = False,
    ) -> None:
        self.seconds = seconds
        self._of_beds = of_beds
        self._all_users = all_users
        self._asked: dict[Path, asyncio.Task[Snapshot | str | None]] = {}
        self._late: dict[Path, str] = {}  # and what is wrong with each
        # Endpoints that do not answer take no turns of the others.
        self._turns, self._late_turns = asyncio.Semaphore(_TURNS), asyncio.Semaphore(_TURNS)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: Any) -> None:
        await cancelled(*self._asked.values())

    async def look(self) -> Seen:
        paths = self._sockets()
        await self._forget(set(paths))
        for path in paths:
            if path not in self._asked:
                self._asked[path] = asyncio.create_task(self._ask(path))
        if prompt := [self._asked[path] for path in paths if path not in self._late]:
            await asyncio.wait(prompt)
        endpoints = {}
        for path in paths:
            if self._asked[path].done():
                self._late.pop(path, None)
                found = self._asked.pop(path).result()
                if isinstance(found, Snapshot):
                    endpoints[str(path)] = found
                elif found is not None:
                    self._late[path] = found
        late = (path for path in paths if path in self._late)
        return Seen(endpoints, tuple(_unanswered(path, self._late[path]) for path in late))

    def _sockets(self) -> list[Path]:
        return local.sockets(self._of_beds, all_users=self._all_users)

    async def _forget(self, living: set[Path]) -> None:
        for path in [path for path in self._asked if path not in living]:
            await cancelled(self._asked.pop(path))
        self._late = {path: wrong for path, wrong in self._late.items() if path in living}

    async def _ask(self, path: Path) -> Snapshot | str | None:
        """A snapshot, or why there is none; None: the process has ended."""
        async with self._late_turns if path in self._late else self._turns:
            try:
                seconds = self.seconds
                return checked(await local.look(path, seconds, all_users=self._all_users))
            except TimeoutError:
                return f"no answer in {digits(seconds)} s"
            except (MrcError, OSError) as error:
                if path not in self._sockets():
                    return None
                # The kernel keeps the requests of earlier viewers for a process that is stopped.
                full = "too many viewers wait for an answer"
                return str(error) if isinstance(error, MrcError) else full


def _unanswered(path: Path, wrong: str) -> Unanswered:
    pid = int(number) if (number := path.name.partition("-")[0]).isascii() else 0
    found = process(pid)
    if found.is_stopped:
        wrong += f": the process is stopped (kill -CONT {pid})"
    elif found.is_traced:
        wrong += ": a debugger stopped it"
    return Unanswered(pid=pid, program=shown(found.name), error=wrong)
