# SPDX-License-Identifier: Apache-2.0
"""The control of one QP's EVs: the denylist, and batches of probes."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase

from mrc.control.profiles import EvProfile
from mrc.engine.dispatch import Dispatcher
from mrc.engine.queue_pair import QueuePair
from mrc.enums import EvState
from mrc.errors import ArgumentError, QueueFullError, StateError
from mrc.events import ProbeResult
from mrc.fabric.paths import SEAL_OVERHEAD, TRANSPORT, PathEv
from mrc.limits import MAX_MTU
from mrc.units import counted

_MOST_SECONDS = 3600  # until the answer to a probe


class EvController:
    """The EVs of one QP. An EV is DENIED when its QP or its profile denies it, or when its
    destination address has never answered.
    """

    def __init__(
        self,
        dispatcher: Dispatcher,
        queue: QueuePair,
        evs: Sequence[PathEv],
        profile: EvProfile,
    ) -> None:
        self._dispatcher = dispatcher
        self._queue = queue
        self._evs = evs
        self._profile = profile
        self._own: set[int] = set()  # denied for this QP alone
        self._unproven: set[int] = set()  # to addresses that have not answered
        self._denied: frozenset[int] = frozenset()  # in the newest commands to the engine
        self._updating = asyncio.Lock()
        self._closed = False

    def named(self, *evs: int | str) -> tuple[int, ...]:
        """Indices of EVs, each once. `evs` holds indices, path names or patterns."""
        found: dict[int, None] = {}
        for ev in evs:
            if isinstance(ev, int):
                fits = [ev] if 0 <= ev < len(self._evs) else []
            else:
                fits = [i for i, path in enumerate(self._evs) if fnmatchcase(path.name, ev)]
            if not fits:
                raise ArgumentError(f"evs: QP {self._queue.qpn:#x} has no EV {ev}")
            found.update(dict.fromkeys(fits))
        return tuple(found)

    # ---- Denylist -------------------------------------------------------------------------

    async def start(self) -> tuple[int, ...]:
        """Applies the profile's denylist from now on. Returns the EVs that are not denied."""
        self._profile._attach(self)
        await self.follow_profile()
        return tuple(i for i in range(len(self._evs)) if i not in self._denied)

    def close(self) -> None:
        """Ends with the QP: later changes of the profile do not reach it."""
        self._closed = True
        self._profile._detach(self)

    async def deny(self, *evs: int | str) -> tuple[int, ...]:
        indices = self.named(*evs)
        self._own.update(indices)
        await self._update()
        return indices

    async def allow(self, *evs: int | str) -> tuple[int, ...]:
        indices = self.named(*evs)
        for index in indices:
            path = self._evs[index].name
            if self._profile.denies(path):
                raise StateError(f"evs: {path} is denied by profile {self._profile.name}")
            if index in self._unproven:
                raise StateError(f"evs: {path} leads to an address that has not answered")
        self._own.difference_update(indices)
        await self._update()
        return indices

    async def hold_back(self, indices: Iterable[int]) -> None:
        """Denies EVs until the QP ends: their destination addresses have not answered."""
        self._unproven.update(indices)
        await self._update()

    async def set_state(self, ev: int, state: EvState) -> None:
        if len(indices := self.named(ev)) > 1:
            raise ArgumentError(
                f"ev: {ev} names {counted(len(indices), 'EV')}, only one can be set"
            )
        (index,) = indices
        if state is EvState.DENIED:
            await self.deny(index)
            return
        if state is EvState.GOOD:
            await self.allow(index)
        await self._set_state(index, state)

    async def follow_profile(self) -> None:
        try:
            await self._update()
        except StateError:
            if not self._closed:
                raise

    async def _update(self) -> None:
        """Sends the changed EV states to the engine. After several concurrent calls the engine has
        the changes of all callers.
        """
        async with self._updating:
            denied = frozenset(
                index
                for index, ev in enumerate(self._evs)
                if index in self._own or index in self._unproven or self._profile.denies(ev.name)
            )
            states = [(index, EvState.DENIED) for index in sorted(denied - self._denied)]
            states += [(index, EvState.GOOD) for index in sorted(self._denied - denied)]
            commands = [self._set_state(index, state) for index, state in states]
            # The engine runs the commands in order, even if this task is cancelled.
            self._denied = denied
            await asyncio.gather(*commands)

    def _set_state(self, index: int, state: EvState) -> asyncio.Future[int]:
        command = self._queue.set_ev_state(index, state)
        return self._dispatcher.call(command, f"QP {self._queue.qpn:#x}: set state of EV {index}")

    # ---- Probes ---------------------------------------------------------------------------

    async def probe(self, index: int, payload: int, timeout: float) -> ProbeResult:
        self.named(index)
        if not 0 <= payload <= MAX_MTU:
            raise ArgumentError(f"payload: {payload} is not within 0..{MAX_MTU}")
        if not 0 < timeout <= _MOST_SECONDS:
            raise ArgumentError(f"timeout: {timeout} is not above 0 and up to {_MOST_SECONDS}")
        if index in self._denied:
            return ProbeResult(index, errno.EPERM, None)
        overhead = SEAL_OVERHEAD if self._queue.seal else 0
        size = payload + TRANSPORT + overhead if payload else 0
        command = self._queue.probe_ev(index, bytes=size, timeout_ns=int(timeout * 1e9))
        what = f"QP {self._queue.qpn:#x}: probe EV {index}"
        return await self._dispatcher.probe(command, what)

    async def probe_all(
        self, indices: Iterable[int], payload: int, timeout: float, concurrency: int
    ) -> tuple[ProbeResult, ...]:
        if concurrency < 1:
            raise ArgumentError("concurrency: must be positive")
        wanted = list(indices)
        waiting = iter(wanted)
        results: dict[int, ProbeResult] = {}

        async def work() -> None:
            for index in waiting:
                results[index] = await self._probe_or_error(index, payload, timeout)

        workers = (work() for _ in range(min(concurrency, len(wanted))))
        for ended in await asyncio.gather(*workers, return_exceptions=True):
            if ended is not None:
                raise ended
        return tuple(results[index] for index in wanted)

    async def _probe_or_error(self, index: int, payload: int, timeout: float) -> ProbeResult:
        try:
            return await self.probe(index, payload, timeout)
        except QueueFullError:  # probes of other QPs fill the engine's table
            return ProbeResult(index, errno.EAGAIN, None)
