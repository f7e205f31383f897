# SPDX-License-Identifier: Apache-2.0
"""Flows by mrc: one Context in each host, a QP for each flow."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack, suppress
from typing import Any, Self

from mrc.aio.context import Context
from mrc.aio.listener import Listener
from mrc.aio.qp import QP
from mrc.config import CcParameters, ContextConfig, Limits, Queues, Retries, Spraying, Timeouts
from mrc.engine.memory import MR, RemoteMemory
from mrc.enums import Access, Integrity
from mrc.errors import MrcError
from mrc.events import EvEvent, PlaneEvent
from mrc.workload.task import Counts, FlowTask, HostTask, PathChange
from mrc.workload.writer import sleep_until

_PORT = 4792  # the default one is for `mrc recv`
_CONNECT_SECONDS = 60.0  # of a host that is busy with many
_MANY = 16384


class MrcLink:
    """A QP, for the writes of one flow."""

    def __init__(self, flow: FlowTask, qp: QP, memory: MR) -> None:
        self._flow, self._qp, self._memory = flow, qp, memory
        self._remote = RemoteMemory(**qp.private)

    async def write(self) -> None:
        length, remote = self._flow.bytes, self._remote
        if self._flow.notify:
            await self._qp.write_imm(self._memory, remote, imm=0, length=length)
        else:
            await self._qp.write(self._memory, remote, length=length)

    async def counts(self) -> Counts:
        info = await self._qp.query()
        return Counts(
            sent_packets=info.sent_packets,
            retransmitted_packets=info.retransmitted_packets,
            spurious_packets=info.spurious_packets,
            lost_packets=sum(plane.lost_packets for plane in info.planes),
            rtt_ns=info.rtt_ns,
        )


class MrcTransport:
    """The QPs of a host, and its memory: every flow reads and writes the same."""

    def __init__(
        self, task: HostTask, stack: AsyncExitStack, on_arrival: Callable[[int, int], None]
    ) -> None:
        self._task, self._stack, self._on_arrival = task, stack, on_arrival
        self._sends = [flow for flow in task.sends if flow.over == "mrc"]
        self._receives = {flow.number: flow for flow in task.receives if flow.over == "mrc"}
        self._out: dict[int, QP] = {}
        self._in: dict[int, QP] = {}
        self.changes: deque[PathChange] = deque(maxlen=_MANY)
        """the last ones, with times of the monotonic clock"""
        self._all_here = asyncio.Event()
        self._jobs: list[asyncio.Task[None]] = []
        self._context: Context
        self._memory: MR

    async def open(self) -> Self:
        """Listens."""
        self._context = await self._stack.enter_async_context(Context(_config(self._task)))
        access = Access.LOCAL_READ | Access.REMOTE_WRITE
        # Not zeros: the kernel would have one page for all of them.
        memory = bytearray(b"\1" * self._task.memory_bytes)
        opening = self._context.register(memory, access=access)
        self._memory = await self._stack.enter_async_context(opening)
        listener = await self._stack.enter_async_context(
            await self._context.listen(port=_PORT, private=self._memory.remote.to_dict())
        )
        self._start(self._accept(listener))
        return self

    def _start(self, job: Coroutine[None, None, None]) -> None:
        self._jobs.append(asyncio.create_task(job))

    async def _accept(self, listener: Listener) -> None:
        if not self._receives:
            self._all_here.set()
        async for qp in listener:
            number = qp.private["flow"]
            self._in[number] = qp
            if self._receives[number].notify:
                self._start(self._count(number, qp))
            if len(self._in) == len(self._receives):
                self._all_here.set()

    async def connect(self) -> dict[int, MrcLink]:
        """The links of the flows that begin here, when those that end here have come too."""
        for flow in self._sends:
            private = {"flow": flow.number}
            qp = await self._context.connect(
                flow.peer, _PORT, private=private, timeout=_CONNECT_SECONDS
            )
            self._out[flow.number] = qp
            self._start(self._watch(flow.number, qp))
        await self._all_here.wait()
        flows = {flow.number: flow for flow in self._task.sends + self._task.receives}
        for number, qp in (*self._out.items(), *self._in.items()):
            if flows[number].denied:
                await qp.deny(*flows[number].denied)
        return {f.number: MrcLink(f, self._out[f.number], self._memory) for f in self._sends}

    def start(self, start_ns: int) -> None:
        """Allows paths at their times."""
        for flow in (*self._sends, *self._receives.values()):
            if flow.allow_ns:
                for qps in (self._out, self._in):
                    if qp := qps.get(flow.number):
                        self._start(_allow(flow, qp, start_ns + flow.allow_ns))

    async def _count(self, number: int, qp: QP) -> None:
        """Counts the writes that arrived."""
        with suppress(MrcError):  # of a QP that failed: its sender reports it
            count = 0
            async for _ in qp.immediates():
                count += 1
                self._on_arrival(number, count)

    async def _watch(self, number: int, qp: QP) -> None:
        async for event in qp.events():
            if isinstance(event, EvEvent):
                path = int(event.path.rpartition(".")[2])
                where: dict[str, Any] = {"path": path, "state": int(event.state)}
            elif isinstance(event, PlaneEvent):
                where = {"path": None, "state": int(not event.suspended)}
            else:
                continue
            now_ns = event.at_ns or time.monotonic_ns()
            self.changes.append(PathChange(now_ns=now_ns, flow=number, plane=event.plane, **where))

    async def received(self) -> list[tuple[int, list[int]]]:
        """Each flow that ends here: bytes received, and bytes of each plane."""
        found = []
        for number, qp in self._in.items():
            info = await qp.query()
            got = {plane.plane: plane.received_bytes for plane in info.planes}
            planes = [got.get(plane, 0) for plane in range(1, self._task.planes + 1)]
            found.append((number, [info.received_bytes, *planes]))
        return found

    async def close(self) -> None:
        """Ends the QPs. Outstanding writes would otherwise hold the memory until they fail."""
        for job in self._jobs:
            job.cancel()
        for qp in (*self._out.values(), *self._in.values()):
            await qp.abort()


async def _allow(flow: FlowTask, qp: QP, at_ns: int) -> None:
    await sleep_until(at_ns)
    await qp.allow(*flow.denied)


def _config(task: HostTask) -> ContextConfig:
    transport, n = task.transport, len(task.sends) + len(task.receives)
    return ContextConfig(
        cc=transport.cc,
        cc_parameters=CcParameters(link_bps=task.link_bps, base_rtt_ns=task.base_rtt_ns),
        plane_shares=transport.plane_shares,
        integrity=Integrity.UDP,
        queues=Queues(mpr=transport.mpr),
        retries=Retries(
            ack_timeout_exponent=transport.timeout,
            linear=transport.retry_linear,
            exponential=transport.retry_exp,
        ),
        spraying=Spraying(
            burst_packets=transport.spray,
            evs_active_per_plane=transport.ev_active_per_plane,
            mtu_limit=transport.path_mtu,
        ),
        limits=Limits(
            max_qps=max(n, 1),
            max_qps_per_source=max(n, 1),
            max_pending=max(n, 64),
            max_pending_per_source=64,
        ),
        timeouts=Timeouts(linger=0.0, hello=_CONNECT_SECONDS, exchange=_CONNECT_SECONDS),
    )
