# SPDX-License-Identifier: Apache-2.0
"""Recordings of arriving payload over time, in bins, made by the datapath: `Context.record`."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, Self

from msgspec import Struct
from msgspec.structs import replace

from mrc import limits
from mrc.aio.qp import QP
from mrc.engine import native
from mrc.engine.dispatch import Dispatcher
from mrc.engine.native import Command
from mrc.enums import CommandOp
from mrc.errors import ArgumentError, InUseError, MrcError, StateError
from mrc.typed import Positive, Whole


class Recording(Struct, frozen=True):
    """Payload bytes that arrived on each plane, by bins from the start.

    A delivery is the payload that the datapath placed in memory at one time. Times are ns since the
    start.
    """

    start_monotonic_ns: Whole
    """The start, on CLOCK_MONOTONIC: comparable only on this machine."""
    duration_ns: Whole
    """Time from the start to the end."""
    width_ns: Positive
    """Width of a bin."""
    planes: Mapping[int, tuple[int, ...]]
    """Payload bytes of each plane, by bins."""
    first_ns: Whole | None
    """When the first delivery came; None without any."""
    last_ns: Whole | None
    """When the last delivery came."""
    longest_gap_ns: Whole
    """The longest time between two successive deliveries; 0 with fewer than two."""
    longest_gap_at_ns: Whole | None
    """When that gap began."""

    @property
    def bytes(self) -> tuple[int, ...]:
        """Payload bytes of all planes together, by bins."""
        return tuple(sum(column) for column in zip(*self.planes.values(), strict=True))


def joined(parts: Sequence[Recording]) -> Recording:
    """The recordings of several engines as one, with the widest bins of them.

    Only empty bins show its gaps: it has none if no bin between two deliveries is empty.
    """
    if len(parts) == 1:
        return parts[0]
    start_ns = min(part.start_monotonic_ns for part in parts)
    duration_ns = max(part.start_monotonic_ns + part.duration_ns for part in parts) - start_ns
    width_ns = max(part.width_ns for part in parts)
    sums = {plane: [0] * (duration_ns // width_ns + 1) for plane in parts[0].planes}
    first: list[int] = []
    last: list[int] = []
    for part in parts:
        late_ns = part.start_monotonic_ns - start_ns
        for plane, row in part.planes.items():
            for i, count in enumerate(row):
                sums[plane][(late_ns + i * part.width_ns) // width_ns] += count
        if part.first_ns is not None and part.last_ns is not None:
            first.append(late_ns + part.first_ns)
            last.append(late_ns + part.last_ns)
    whole = Recording(
        start_monotonic_ns=start_ns,
        duration_ns=duration_ns,
        width_ns=width_ns,
        planes={plane: tuple(row) for plane, row in sums.items()},
        first_ns=min(first, default=None),
        last_ns=max(last, default=None),
        longest_gap_ns=0,
        longest_gap_at_ns=None,
    )
    full = [i for i, count in enumerate(whole.bytes) if count]
    gaps = ((before + 1, after - before - 1) for before, after in pairwise(full))
    begin, bins = max(gaps, key=lambda gap: gap[1], default=(0, 0))
    gap_at_ns = begin * width_ns if bins else None
    return replace(whole, longest_gap_ns=bins * width_ns, longest_gap_at_ns=gap_at_ns)


class RecordingMemory:
    """Memory that the datapath fills. It must live until the reply to the stop command."""

    def __init__(self, qpns: Sequence[int], ports: int, width_ns: int) -> None:
        """Empty `qpns`: records every QP."""
        self._ports = ports
        self._qpns = native.ffi.new("uint32_t[]", list(qpns))
        self._bytes = native.new_values(limits.MAX_BINS * ports)
        self._native: Any = native.new_struct("mrc_recording", width_ns=width_ns)
        self._native.qpns = self._qpns
        self._native.n_qps = len(qpns)
        self._native.bytes = self._bytes
        self._native.n_ports = ports
        self._native.n_bins = limits.MAX_BINS

    def start(self) -> Command:
        """The command that starts the recording."""
        return Command({"op": CommandOp.RECORD_START, "pointer": self._native}, self)

    def stop(self) -> Command:
        """The command that ends the recording. After its reply the datapath writes no more."""
        return Command({"op": CommandOp.RECORD_STOP}, self)

    def read(self, planes: Iterable[int]) -> Recording:
        """Returns the recording; call it after the reply to the stop command."""
        filled = self._native
        start_ns, duration_ns = filled.start_ns, filled.end_ns - filled.start_ns
        bins = min(duration_ns // filled.width_ns + 1, limits.MAX_BINS)
        rows = memoryview(native.ffi.buffer(self._bytes, bins * self._ports * 8)).cast("Q")
        joined = [n for n in range(1, self._ports + 1) if any(rows[n - 1 :: self._ports])]
        planes = sorted({*planes, *joined})
        came, gap_ns = filled.first_ns > 0, filled.longest_gap_ns
        return Recording(
            start_monotonic_ns=start_ns,
            duration_ns=duration_ns,
            width_ns=filled.width_ns,
            planes={plane: tuple(rows[plane - 1 :: self._ports]) for plane in planes},
            first_ns=filled.first_ns - start_ns if came else None,
            last_ns=filled.last_ns - start_ns if came else None,
            longest_gap_ns=gap_ns,
            longest_gap_at_ns=filled.longest_gap_at_ns - start_ns if gap_ns else None,
        )


class Recorder:
    """Records arriving payload, until `stop` or the end of `async with`."""

    def __init__(
        self,
        engines: Sequence[Dispatcher],
        ports: int,
        planes: Sequence[int],
        qps: Sequence[QP] | None,
        width_ns: int,
    ) -> None:
        """Records these QPs; None: every QP of all engines, on these planes. Planes that join are
        recorded too; there are as many as `ports`.
        """
        if width_ns < limits.MIN_BIN_NS:
            raise ArgumentError(f"width_ns: {width_ns} is below {limits.MIN_BIN_NS}")
        if qps is not None and not qps:
            raise ArgumentError("qps: is empty: pass QPs, or None for all")
        if qps is not None:
            planes = sorted({plane for qp in qps for plane in qp.planes})
        if any(qp._dispatcher not in engines for qp in qps or ()):
            raise ArgumentError("qps: has a QP of another Context")
        self._parts = []
        for engine in engines:
            own = [qp.qpn for qp in qps or () if qp._dispatcher is engine]
            if own or qps is None:
                memory = RecordingMemory(own, ports, width_ns)
                self._parts.append(_EngineRecording(engine, memory, planes))

    async def _open(self) -> Self:
        if any(part.engine.recording is not None for part in self._parts):
            raise InUseError("the Context is already recording: run one recording at a time")
        try:
            for part in self._parts:
                await part.start()
        except MrcError:
            await self.close()
            raise
        except asyncio.CancelledError:
            self._stop()
            raise
        return self

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Ends the recording if it still runs."""
        try:
            await asyncio.shield(self._stop())
        except StateError:
            pass  # the Context is already closed

    def _stop(self) -> asyncio.Future[list[int]]:
        return asyncio.gather(*(part.stop() for part in self._parts))

    async def stop(self) -> Recording:
        """Ends the recording if it still runs, and returns it. Raises StateError when the Context
        is closed."""
        await asyncio.shield(self._stop())
        return joined([part.memory.read(part.planes) for part in self._parts])


class _EngineRecording:
    """What one engine records."""

    def __init__(self, engine: Dispatcher, memory: RecordingMemory, planes: Sequence[int]) -> None:
        self.engine = engine
        self.memory = memory
        self.planes = planes
        self._stopped: asyncio.Future[int] | None = None

    async def start(self) -> None:
        self.engine.recording = self.memory
        await self.engine.call(self.memory.start(), "start of a recording")

    def stop(self) -> asyncio.Future[int]:
        """Also ends one that has not begun."""
        if self._stopped is None:
            self._stopped = self.engine.call(self.memory.stop(), "end of a recording")
            self._stopped.add_done_callback(self._let_go)
        return self._stopped

    def _let_go(self, stopped: asyncio.Future[int]) -> None:
        if not stopped.cancelled():
            stopped.exception()  # ignored: nothing was recording, or the Context is closed
        self.engine.recording = None
