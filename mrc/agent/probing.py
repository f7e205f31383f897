# SPDX-License-Identifier: Apache-2.0
"""Probes of EVs towards hosts whose agents run, over QPs of the agent itself."""

from __future__ import annotations

import asyncio
import errno
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable

from msgspec import Struct

from mrc.agent.ev_values import Ev, ev_of
from mrc.agent.formats import RefusedError
from mrc.agent.reach import worded
from mrc.aio.qp import QP
from mrc.errors import MrcError

_MOST_QPS = 64  # one for each host that was probed lately


class Probe(Struct, frozen=True):
    """One EV towards a host."""

    number: int
    host: str
    ev: Ev


class Answer(Struct, frozen=True):
    """The answer to a probe."""

    number: int
    plane: int
    rtt_ns: int


class Probing:
    """Keeps a QP to each host that was probed. `connect` makes one."""

    def __init__(self, connect: Callable[[str], Awaitable[QP]]) -> None:
        self._connect = connect
        self._qps: OrderedDict[str, asyncio.Future[QP]] = OrderedDict()

    async def probe(self, probes: Iterable[Probe], timeout: float) -> list[Answer]:
        """The answers that came within the time, in order of arrival. Raises RefusedError."""
        by_host: dict[str, list[Probe]] = {}
        for each in probes:
            by_host.setdefault(each.host, []).append(each)
        answers: list[Answer] = []

        async def one(qp: QP, index: int, probe: Probe) -> None:
            (result,) = await qp.probe_evs([index], timeout=timeout)
            if result.rtt_ns is not None:
                answers.append(Answer(probe.number, probe.ev.plane, result.rtt_ns))

        async def all_to(host: str, wanted: list[Probe]) -> None:
            qp = await self._qp(host)
            places = {
                ev_of(each.plane, each.usids, each.ev >> 16): each.index for each in await qp.evs()
            }
            for each in wanted:
                if each.ev not in places:
                    raise RefusedError(errno.EINVAL, f"no path to {host} has EV {each.ev}")
            await asyncio.gather(*(one(qp, places[each.ev], each) for each in wanted))

        try:
            await asyncio.gather(*(all_to(host, wanted) for host, wanted in by_host.items()))
        finally:
            await self._close_oldest()
        return answers

    async def _qp(self, host: str) -> QP:
        """The QP to a host, which is connected if there is none."""
        found = self._qps.get(host)
        if found is not None and found.done() and (found.exception() or found.result().closed):
            found = None
        if found is None:
            found = self._qps[host] = asyncio.ensure_future(self._connect(host))
        self._qps.move_to_end(host)
        try:
            return await asyncio.shield(found)
        except (MrcError, OSError) as error:
            self._qps.pop(host, None)
            raise RefusedError(errno.EHOSTUNREACH, worded(error)) from error

    async def _close_oldest(self) -> None:
        """Closes the QPs to hosts that were not probed lately."""
        done = [host for host, qp in self._qps.items() if qp.done() and not qp.exception()]
        oldest = [self._qps.pop(host) for host in done[: max(0, len(done) - _MOST_QPS)]]
        await asyncio.gather(*(qp.result().close() for qp in oldest))
