# SPDX-License-Identifier: Apache-2.0
"""The engines of a Context: each has a datapath thread, sockets and QPs of its own.

They share the memory regions, the profiles and the limits, so a QP may belong to any of them. A
peer sees one host whose QPs receive on several UDP ports.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace

from msgspec import structs

from mrc.aio.qp import QP
from mrc.connect.connect import Local
from mrc.engine import engine
from mrc.engine.dispatch import Dispatcher
from mrc.engine.memory import MR
from mrc.engine.native import names_of
from mrc.engine.ports import LocalPorts, finder
from mrc.enums import CommandOp
from mrc.errors import MrcError, StateError
from mrc.events import TraceEntry
from mrc.tasks import cancelled

logger = logging.getLogger("mrc.context")


class Engines:
    """All engines of a Context, from its first one on."""

    def __init__(self, first: Local, qps: Callable[[], Iterable[QP]]) -> None:
        """`qps`: those of the Context."""
        self.first = first
        self._qps = qps
        self._all = [first]
        self._connecting: Counter[Dispatcher] = Counter()
        self._followers: list[asyncio.Task[None]] = []

    def open(self) -> None:
        """Opens the other engines of the configuration; each follows the interfaces. The UDP port
        of the n-th is n above a configured one.
        """
        config, host = self.first.config, self.first.host
        for number in range(1, config.sockets.engines):
            port = config.udp_port and config.udp_port + number
            links = LocalPorts(finder(config, host))
            dispatcher = Dispatcher(links.open(replace(config, udp_port=port)))
            self._all.append(structs.replace(self.first, links=links, dispatcher=dispatcher))
        loop = asyncio.get_running_loop()
        self._followers = [loop.create_task(_follow(local)) for local in self._all]

    def __iter__(self) -> Iterator[Dispatcher]:
        """Their dispatchers."""
        return (local.dispatcher for local in self._all)

    @contextmanager
    def choose(self, *, messages: bool) -> Iterator[Local]:
        """The engine of a QP that connects inside: the one with the fewest. Messages of all peers
        are matched by one engine, the first.
        """
        qps = self._connecting.copy()
        qps.update(qp._dispatcher for qp in self._qps() if not qp.closed)
        fewest = min(self._all, key=lambda local: qps[local.dispatcher])
        chosen = self.first if messages else fewest
        self._connecting[chosen.dispatcher] += 1
        try:
            yield chosen
        finally:
            self._connecting[chosen.dispatcher] -= 1

    # ---- Memory ---------------------------------------------------------------------------

    async def register(self, mr: MR) -> None:
        """Registers the region with each engine, under the same key."""
        done: list[Dispatcher] = []
        try:
            for dispatcher in self:
                await dispatcher.register(mr)
                done.append(dispatcher)
        except BaseException:
            for dispatcher in done:
                dispatcher.deregister(mr)
            raise

    async def deregister(self, mr: MR) -> None:
        """Waits until no work request uses the region, then ends it. Nothing happens when the
        Context is closed or belongs to the parent of a fork.
        """
        holders = [each for each in self if not each.gone and each.holds(mr)]
        if holders:
            await holders[0].until_idle(mr)
            ended = [each.deregister(mr) for each in holders]
            await asyncio.shield(asyncio.gather(*ended))

    async def end_use(self, mr: MR, *, within: float) -> None:
        """Waits these seconds until no work request uses the region. Then QPs that use it fail:
        only the end of its QP ends a work request that the engine has taken.
        """
        holders = [each for each in self if not each.gone and each.holds(mr)]
        with suppress(TimeoutError):
            async with asyncio.timeout(within):
                for each in holders[:1]:
                    await each.until_idle(mr)
        if mr.outstanding:
            using = {qpn for each in holders for qpn in each.users_of(mr)}
            for qp in list(self._qps()):
                if qp.qpn in using:
                    qp._fail(StateError(f"{qp._called}: the memory of a write was deregistered"))

    # ---- Queries --------------------------------------------------------------------------

    async def values(self, op: CommandOp, kind: str) -> dict[str, int]:
        """The sums of counters of all engines, by name."""
        names = names_of(kind)
        sums = dict.fromkeys(names, 0)
        for dispatcher in self:
            command, array = engine.values(op, len(names))
            count = await dispatcher.call(command, f"read {kind}s")
            for i, name in enumerate(names[:count]):
                sums[name] += array[i]
        return sums

    async def trace(self, count: int) -> list[TraceEntry]:
        """The newest entries of all traces, oldest first."""
        names = names_of("trace")
        traces: list[list[TraceEntry]] = []
        for dispatcher in self:
            command, array = engine.trace(count)
            found = await dispatcher.call(command, "read trace")
            entries = (array[i] for i in range(found))
            traces.append([TraceEntry(e.now_ns, names[e.point], e.qpn, e.a, e.b) for e in entries])
        return list(heapq.merge(*traces, key=lambda entry: entry.now_ns))[-count:]

    # ---- End ------------------------------------------------------------------------------

    async def stop_following(self) -> None:
        """The interfaces may change from now on: the QPs close."""
        await cancelled(*self._followers)

    async def close(self) -> None:
        """Stops the datapaths; their QPs are closed."""
        for dispatcher in self:
            await dispatcher.close()

    def end(self) -> None:
        """The same after the end of the event loop."""
        for dispatcher in self:
            dispatcher.end()


async def _follow(local: Local) -> None:
    try:
        await local.links.follow(local.dispatcher.call, local.dispatcher.engine)
    except (MrcError, OSError) as error:
        logger.warning("this Context stopped following changes of its interfaces: %s", error)
