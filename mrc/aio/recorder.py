# SPDX-License-Identifier: Apache-2.0
"""A running recording; see `Context.record`."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Self

from mrc.aio.qp import QP
from mrc.binding.recording import Recording, RecordingMemory
from mrc.datapath.dispatch import Dispatcher
from mrc.errors import ArgumentError, InUseError, MrcError, StateError

MIN_WIDTH_NS = 1000


class Recorder:
    """An async context manager that records arriving payload."""

    def __init__(
        self, dispatcher: Dispatcher, ports: int, qps: Sequence[QP] | None, width_ns: int
    ) -> None:
        """Records these QPs; None: every QP, on the planes of all ports."""
        if width_ns < MIN_WIDTH_NS:
            raise ArgumentError(f"width_ns: {width_ns} is below {MIN_WIDTH_NS}")
        if qps is not None and not qps:
            raise ArgumentError("qps: is empty: pass QPs, or None for all")
        self._dispatcher = dispatcher
        self._memory = RecordingMemory([qp.qpn for qp in qps or ()], ports, width_ns)
        self._planes: Sequence[int] = range(1, ports + 1)
        if qps is not None:
            self._planes = sorted({plane for qp in qps for plane in qp.planes})
        self._stopped: asyncio.Future[int] | None = None

    async def __aenter__(self) -> Self:
        if self._dispatcher.recording is not None:
            raise InUseError("the Context is already recording: run one recording at a time")
        self._dispatcher.recording = self._memory
        try:
            await self._dispatcher.call(self._memory.start(), "start of a recording")
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

    def _stop(self) -> asyncio.Future[int]:
        if self._stopped is None:
            self._stopped = self._dispatcher.call(self._memory.stop(), "end of a recording")
            self._stopped.add_done_callback(self._let_go)
        return self._stopped

    def _let_go(self, stopped: asyncio.Future[int]) -> None:
        if not stopped.cancelled():
            stopped.exception()  # ignored: nothing was recording, or the Context is closed
        self._dispatcher.recording = None

    async def stop(self) -> Recording:
        """Ends the recording if it still runs, and returns it. Raises StateError when the Context
        is closed."""
        await asyncio.shield(self._stop())
        return self._memory.read(self._planes)
