# SPDX-License-Identifier: Apache-2.0
"""The endpoints of this machine, look after look, also those whose process does not answer; and
their rates, from two snapshots.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, Self

from msgspec import Struct

from mrc.connect.parse import shown
from mrc.errors import MrcError, ProtocolError
from mrc.linux.processes import process
from mrc.observe import local
from mrc.observe.results import Endpoint, PlaneRates, Qp, QpPlane, QpRates, Snapshot, Unanswered
from mrc.results import SCHEMA, like, names_of
from mrc.tasks import cancelled
from mrc.typed import take
from mrc.units import digits

_TURNS = 8  # concurrent requests: each answer may have a megabyte


class LocalEndpoints(Struct, frozen=True):
    """What one look found."""

    endpoints: dict[str, Snapshot]
    """by a name that stays the same"""
    unanswered: tuple[Unanswered, ...] = ()


Look = Callable[[], Awaitable[LocalEndpoints]]


class EndpointWatch:
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

    async def look(self) -> LocalEndpoints:
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
        return LocalEndpoints(
            endpoints, tuple(_unanswered(path, self._late[path]) for path in late)
        )

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


# ---- Snapshots of other processes, and rates -----------------------------------------------------


_MAX_TEXT = 128


def checked(found: Mapping[str, Any]) -> Snapshot:
    """The snapshot without control characters; raises ProtocolError if it is invalid."""
    if (schema := found.get("schema")) != SCHEMA:
        other = f"the snapshot has schema {shown(schema, 20)}, this mrc supports {SCHEMA}"
        raise ProtocolError(other)
    try:
        return take(_clean(found), Snapshot)
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"the snapshot is invalid: {error}") from None


def _clean(value: Any) -> Any:
    """The value with control characters in its texts escaped, and long texts cut."""
    if isinstance(value, str):
        return shown(value, _MAX_TEXT)
    if isinstance(value, list):
        return [_clean(each) for each in value]
    if isinstance(value, Mapping):
        return {_clean(name): _clean(each) for name, each in value.items()}
    return value


def with_rates(before: Snapshot | None, now: Snapshot) -> Endpoint:
    """`now` with the rates since `before`, a snapshot of the same endpoint.

    A QP that is missing in `before` has rates of 0.
    """
    seconds = (now.monotonic_ns - before.monotonic_ns) / 1e9 if before is not None else 0.0
    earlier = {_name(qp): qp for qp in before.qps} if before is not None else {}
    qps = (_qp(earlier.get(_name(qp), qp), qp, seconds) for qp in now.qps)
    first = now if before is None else before
    return like(
        Endpoint,
        now,
        qps=tuple(qps),
        counters_per_second=_growth(first.counters, now.counters, seconds),
        drops_per_second=_growth(first.drops, now.drops, seconds),
    )


def _growth(old: Mapping[str, int], new: Mapping[str, int], seconds: float) -> dict[str, float]:
    if seconds <= 0:
        return {}
    grown = {name: count - old.get(name, 0) for name, count in new.items()}
    return {name: count / seconds for name, count in grown.items() if count > 0}


def _name(qp: Qp) -> int | str | None:
    """The QPN, or in a remote snapshot the `id`, which identifies the QP."""
    return qp.id if qp.qpn is None else qp.qpn


def _qp(old: Qp, new: Qp, seconds: float) -> QpRates:
    before = {plane.plane: plane for plane in old.planes}
    planes = (
        like(
            PlaneRates,
            plane,
            **_rates(PlaneRates, before.get(plane.plane, plane), plane, seconds),
        )
        for plane in new.planes
    )
    return like(QpRates, new, planes=tuple(planes), **_rates(QpRates, old, new, seconds))


def _rates(kind: type, old: Qp | QpPlane, new: Qp | QpPlane, seconds: float) -> dict[str, float]:
    """The rates that `kind` declares; the name of each rate begins with its counter."""
    rates = {}
    for name in (each for each in names_of(kind) if each.endswith("_per_second")):
        counter, scale = name.removesuffix("_per_second"), 1
        if counter.endswith("_bits"):
            counter, scale = counter.removesuffix("_bits") + "_bytes", 8
        moved = max(0, getattr(new, counter) - getattr(old, counter)) * scale
        rates[name] = moved / seconds if seconds > 0 else 0.0
    return rates
