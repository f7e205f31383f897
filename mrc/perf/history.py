# SPDX-License-Identifier: Apache-2.0
"""The history of one end of a test: payload received in each bin, and changes of EVs and planes.

It serves to study failures. A plan enables it with `bin_ns`, the width of a bin.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Annotated, Any, TypeVar

from msgspec import Meta, Struct, to_builtins
from msgspec.structs import asdict, replace

from mrc.aio.context import Context
from mrc.aio.qp import QP
from mrc.aio.recording import MAX_BINS, Recorder, Recording
from mrc.connect.parse import shown
from mrc.enums import EvState
from mrc.errors import ProtocolError
from mrc.events import EventsLost, EvEvent, PlaneEvent, PlaneShareEvent
from mrc.limits import MAX_PORTS
from mrc.results.perf import EvChange, PlaneChange, ShareChange
from mrc.typed import Whole, take

MAX_CHANGES = 4096  # of each kind: the first ones are kept, later ones only counted
_PIECE = 16384  # bins in one message


class History(Struct, frozen=True):
    """The history of one test. `lost_changes` counts the changes that are not included."""

    recording: Recording
    evs: tuple[EvChange, ...]
    planes: tuple[PlaneChange, ...]
    shares: tuple[ShareChange, ...]
    lost_changes: Whole

    def pieces(self) -> Iterator[tuple[int, tuple[int, ...]]]:
        """The bins in pieces for messages: a plane, and the next bins of that plane."""
        for plane, bins in self.recording.planes.items():
            for start in range(0, len(bins), _PIECE):
                yield plane, bins[start : start + _PIECE]

    def to_dict(self) -> dict[str, Any]:
        """Everything but the bins."""
        recording = replace(self.recording, planes={})
        told: dict[str, Any] = to_builtins(replace(self, recording=recording))
        return told

    def completed(self, bins: Mapping[int, Sequence[int]]) -> History:
        """A peer's history with the bins from its earlier messages, and with harmless text.

        Raises ValueError if the planes have different numbers of bins.
        """
        planes = {plane: tuple(numbers) for plane, numbers in bins.items()}
        if len({len(numbers) for numbers in planes.values()}) > 1:
            raise ValueError("planes with bins of different length")
        return History(
            replace(self.recording, planes=planes),
            tuple(map(_harmless, self.evs)),
            tuple(map(_harmless, self.planes)),
            tuple(map(_harmless, self.shares)),
            self.lost_changes,
        )


Change = TypeVar("Change", EvChange, PlaneChange, ShareChange)


def _harmless(change: Change) -> Change:
    texts = {key: shown(value) for key, value in asdict(change).items() if isinstance(value, str)}
    return replace(change, **texts)


def _since(changes: Sequence[Change], start_ns: int) -> tuple[Change, ...]:
    """The changes after `start_ns`, with times relative to it."""
    return tuple(
        replace(each, at_ns=each.at_ns - start_ns) for each in changes if each.at_ns >= start_ns
    )


class _Piece(Struct, frozen=True):
    plane: Annotated[int, Meta(ge=1, le=MAX_PORTS)]
    bytes: tuple[Whole, ...]


class Bins:
    """Joins the pieces of the peer's bins."""

    def __init__(self) -> None:
        self.planes: dict[int, list[int]] = {}

    def add(self, plane: Any, numbers: Any) -> None:
        """Adds a piece; raises ProtocolError if it is invalid or there are too many bins."""
        try:
            piece = take({"plane": plane, "bytes": numbers}, _Piece)
        except ValueError as error:
            raise ProtocolError(f"the peer sent bins that cannot be read: {error}") from None
        bins = self.planes.setdefault(piece.plane, [])
        bins += piece.bytes
        if len(bins) > MAX_BINS:
            raise ProtocolError("the peer sent more bins than there can be")


class Historian:
    """Records the bins and changes of a test's QPs. Its user passes their events to `take`."""

    def __init__(self, ctx: Context, qps: Sequence[QP], bin_ns: int) -> None:
        self._ctx = ctx
        self._qps = tuple(qps)
        self._bin_ns = bin_ns
        self._recording = AsyncExitStack()
        self._recorder: Recorder | None = None
        self._changes: dict[type, list[Any]] = {EvChange: [], PlaneChange: [], ShareChange: []}
        # (QPN, EV index) -> state, for each EV that has changed.
        self._states: dict[tuple[int, int], EvState] = {}
        self._lost = 0

    async def end(self) -> None:
        """Stops recording."""
        await self._recording.aclose()

    async def begin(self) -> None:
        """Discards the history and begins a new one."""
        await self.end()
        for changes in self._changes.values():
            changes.clear()
        self._lost = 0
        recording = self._ctx.record(self._qps, width_ns=self._bin_ns)
        self._recorder = await self._recording.enter_async_context(recording)

    async def history(self) -> History:
        """Stops recording bins, and returns the history since `begin`."""
        assert self._recorder is not None, "it was begun"
        recording = await self._recorder.stop()
        start_ns = recording.start_monotonic_ns
        evs, planes, shares = (_since(each, start_ns) for each in self._changes.values())
        return History(recording, evs, planes, shares, self._lost)

    def take(self, qpn: int, event: object) -> None:
        """Records the next event of a QP."""
        if isinstance(event, EvEvent):
            old = self._states.get((qpn, event.index), EvState.GOOD)  # the initial state
            self._states[qpn, event.index] = event.state
            names = (old.name, event.state.name, event.reason.name)
            self._keep(EvChange(event.at_ns, qpn, event.plane, event.path, *names))
        elif isinstance(event, PlaneEvent):
            found = event.suspended, event.reason.name
            self._keep(PlaneChange(event.at_ns, qpn, event.plane, *found))
        elif isinstance(event, PlaneShareEvent):
            share = event.slow, event.percent, event.reason.name
            self._keep(ShareChange(event.at_ns, qpn, event.plane, *share))
        elif isinstance(event, EventsLost):
            self._lost += event.count

    def _keep(self, change: EvChange | PlaneChange | ShareChange) -> None:
        if len(kept := self._changes[type(change)]) < MAX_CHANGES:
            kept.append(change)
        else:
            self._lost += 1
