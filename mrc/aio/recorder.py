# SPDX-License-Identifier: Apache-2.0
"""A running recording; see `Context.record`."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Self

from mrc.aio.qp import QP
from mrc.binding.recording import Recording, RecordingMemory, joined
from mrc.datapath.dispatch import Dispatcher
from mrc.errors import ArgumentError, InUseError, MrcError, StateError

MIN_WIDTH_NS = 1000


class Recorder:
    """An async context manager that records arriving payload."""

    def __init__(
        self,
        engines: Sequence[Dispatcher],
        ports: int,
        qps: Sequence[QP] | None,
        width_ns: int,
    ) -> None:
        """Records these QPs; None: every QP of all engines, on the planes of all ports."""
        if width_ns < MIN_WIDTH_NS:
            raise ArgumentError(f"width_ns: {width_ns} is below {MIN_WIDTH_NS}")
        if qps is not None and not qps:
            raise ArgumentError("qps: is empty: pass QPs, or None for all")
        planes: Sequence[int] = range(1, ports + 1)
        if qps is not None:
            planes = sorted({plane for qp in qps for plane in qp.planes})
        if any(qp._engine not in engines for qp in qps or ()):
            raise ArgumentError("qps: has a QP of another Context")
        self._parts = []
        for engine in engines:
            own = [qp.qpn for qp in qps or () if qp._engine is engine]
            if own or qps is None:
                memory = RecordingMemory(own, ports, width_ns)
                self._parts.append(_Part(engine, memory, planes))

    async def __aenter__(self) -> Self:
        if any(part.engine.recording is not None for part in self._parts):
            raise InUseError("the Context is already recording: run one recording at a time")
        try:
            for part in self._parts:
                await part.start()
        except MrcError:
            await self.__aexit__(None, None, None)
            raise
        except asyncio.CancelledError:
            self._stop()
            raise
        return self

    async def __aexit__(self, *exc_info: object) -> None:
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


class _Part:
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
