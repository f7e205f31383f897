# SPDX-License-Identifier: Apache-2.0
"""Measures at one end of a test what its QPs moved between two moments, and its history: payload
received in each bin, and changes of EVs and planes.

The history serves to study failures. A plan enables it with `bin_ns`, the width of a bin.
"""

from __future__ import annotations

import asyncio
import itertools
import resource
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from typing import Annotated, Any, Self, TypeVar

from msgspec import Meta, Struct, to_builtins
from msgspec.structs import asdict, replace

from mrc import limits
from mrc.aio.context import Context
from mrc.aio.qp import QP
from mrc.aio.recording import Recorder, Recording
from mrc.connect.parse import shown
from mrc.enums import EvState, HeldBy
from mrc.errors import MrcError, ProtocolError
from mrc.events import EventsLost, EvEvent, PlaneEvent, PlaneShareEvent, QpInfo
from mrc.perf.results import EvChange, Latency, PlaneChange, Real, SendWaits, ShareChange
from mrc.tasks import cancelled
from mrc.typed import Whole, take

MAX_CHANGES = 4096  # of each kind: the first ones are kept, later ones only counted
_PIECE = 16384  # bins in one message
_SAMPLE_SECONDS = 0.05
_SAMPLED_QPS = 4  # in a sample
_SHIFT = 6  # 2^6 buckets of a histogram in an octave
Change = TypeVar("Change", EvChange, PlaneChange, ShareChange)


class MeterInterval(Struct, frozen=True):
    """The measurements of one end between two moments."""

    start_seconds: Real  # since the measured part began
    seconds: Real
    written_bytes: int  # payload that the peer acknowledged
    received_bytes: int  # payload that the peer wrote here
    sent_packets: int
    retransmitted_packets: int
    retransmitted_bytes: int  # payload
    ev_changes: int
    cpu_seconds: Real  # of all threads of this process
    planes: Mapping[Whole, Whole]  # plane -> payload bytes sent on it
    planes_received: Mapping[Whole, Whole]  # plane -> payload bytes received on it
    planes_slow: tuple[Whole, ...] = ()  # slow for any QP at the end; see PlaneInfo.slow
    planes_suspended: tuple[Whole, ...] = ()  # suspended by any QP at the end
    weights: Mapping[Whole, Whole] = {}  # of planes below 100; see PlaneInfo.weight
    waits: SendWaits = SendWaits()

    @property
    def written_bits_per_second(self) -> float:
        """Goodput of the writes of this end."""
        return 8 * self.written_bytes / self.seconds if self.seconds > 0 else 0.0

    @property
    def received_bits_per_second(self) -> float:
        """Goodput of the peer's writes."""
        return 8 * self.received_bytes / self.seconds if self.seconds > 0 else 0.0


class MeterReading(Struct, frozen=True):
    seconds: float
    cpu_seconds: float
    ev_changes: int
    infos: tuple[QpInfo, ...]
    waits: Counter[HeldBy]  # samples

    def total(self, name: str) -> int:
        return sum(getattr(info, name) for info in self.infos)

    def planes(self, name: str) -> Counter[int]:
        planes = Counter[int]()
        for info in self.infos:
            planes.update({plane.plane: getattr(plane, name) for plane in info.planes})
        return planes

    def marked(self, name: str) -> tuple[int, ...]:
        """Planes for which the field `name` is true in any QP."""
        planes = (plane for info in self.infos for plane in info.planes)
        return tuple(sorted({plane.plane for plane in planes if getattr(plane, name)}))


class Meter:
    """Measures the QPs of a test, and with `bin_ns` records its history: bins and changes. An async
    context manager: it reads their events meanwhile.
    """

    def __init__(self, ctx: Context, qps: Sequence[QP], *, bin_ns: int = 0) -> None:
        self._ctx = ctx
        self._qps = tuple(qps)
        self._bin_ns = bin_ns
        self._ev_changes = 0
        self._followers: list[asyncio.Task[None]] = []
        self._recording = AsyncExitStack()
        self._recorder: Recorder | None = None
        self._changes: dict[type, list[Any]] = {EvChange: [], PlaneChange: [], ShareChange: []}
        # (QPN, EV index) -> state, for each EV that has changed.
        self._states: dict[tuple[int, int], EvState] = {}
        self._lost = 0
        self._waits = Counter[HeldBy]()  # samples

    async def __aenter__(self) -> Self:
        self._followers = [asyncio.create_task(self._follow(qp)) for qp in self._qps]
        self._followers.append(asyncio.create_task(self._sample()))
        try:
            await self.begin()
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await cancelled(*self._followers)
        await self._recording.aclose()

    async def _follow(self, qp: QP) -> None:
        async for event in qp.events():
            self._ev_changes += isinstance(event, EvEvent)
            if self._bin_ns:
                self._record(qp.qpn, event)

    async def _sample(self) -> None:
        """Samples what the QPs wait for, a few at a time."""
        turn = itertools.cycle(self._qps)
        with suppress(MrcError):  # a QP has ended
            while True:
                await asyncio.sleep(_SAMPLE_SECONDS)
                for qp in itertools.islice(turn, min(_SAMPLED_QPS, len(self._qps))):
                    self._waits[(await qp.info()).held_by] += 1

    def _record(self, qpn: int, event: object) -> None:
        """Records the next event of a QP."""
        if isinstance(event, EvEvent):
            # The initial state: an EV that becomes GOOD at first has joined.
            initial = EvState.UNPROVEN if event.state is EvState.GOOD else EvState.GOOD
            old = self._states.get((qpn, event.index), initial)
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

    async def _read(self) -> MeterReading:
        infos = await asyncio.gather(*(qp.info() for qp in self._qps))
        usage = resource.getrusage(resource.RUSAGE_SELF)
        cpu = usage.ru_utime + usage.ru_stime
        waits = self._waits.copy()
        return MeterReading(time.monotonic(), cpu, self._ev_changes, tuple(infos), waits)

    async def begin(self) -> None:
        """Begins the measured part, and discards earlier measurements."""
        self._wrote: int | None = None
        if self._bin_ns:
            await self._recording.aclose()
            for changes in self._changes.values():
                changes.clear()
            self._lost = 0
            recording = self._ctx.record(self._qps, width_ns=self._bin_ns)
            self._recorder = await self._recording.enter_async_context(recording)
        self._first = self._last = await self._read()

    async def wrote(self) -> None:
        """Ends the count of `written_bytes`. A peer that is told of it afterwards has received all
        that it counts, though writes in flight may still be acknowledged.
        """
        self._wrote = (await self._read()).total("acknowledged_bytes")

    async def lap(self) -> MeterInterval:
        """The measurements since the last lap."""
        now = await self._read()
        interval = self._between(self._last, now)
        self._last = now
        return interval

    async def history(self) -> History | None:
        """Ends and returns the history since `begin`, with times from there on; None without
        `bin_ns`.
        """
        if self._recorder is None:
            return None
        recording = await self._recorder.stop()
        start_ns = recording.start_monotonic_ns
        evs, planes, shares = (
            tuple(
                replace(each, at_ns=each.at_ns - start_ns)
                for each in changes
                if each.at_ns >= start_ns
            )
            for changes in self._changes.values()
        )
        return History(recording, evs, planes, shares, self._lost)

    def total(self) -> MeterInterval:
        """The measurements from `begin` to the last lap."""
        return self._between(self._first, self._last)

    def _between(self, start: MeterReading, end: MeterReading) -> MeterInterval:
        def moved(name: str) -> int:
            return end.total(name) - start.total(name)

        def moved_by_plane(name: str) -> dict[int, int]:
            before, now = start.planes(name), end.planes(name)
            return {plane: now[plane] - before[plane] for plane in sorted(now)}

        def acknowledged(reading: MeterReading) -> int:
            counted = reading.total("acknowledged_bytes")
            return counted if self._wrote is None else min(counted, self._wrote)

        planes = moved_by_plane("sent_bytes")
        seconds = end.seconds - start.seconds
        samples = end.waits - start.waits
        return MeterInterval(
            start_seconds=start.seconds - self._first.seconds,
            seconds=seconds,
            waits=SendWaits(
                **{
                    f"{held.name.lower()}_seconds": seconds * count / samples.total()
                    for held, count in samples.items()
                }
            ),
            written_bytes=acknowledged(end) - acknowledged(start),
            received_bytes=moved("received_bytes"),
            sent_packets=moved("sent_packets"),
            retransmitted_packets=moved("retransmitted_packets"),
            retransmitted_bytes=sum(planes.values()) - moved("first_sent_bytes"),
            ev_changes=end.ev_changes - start.ev_changes,
            cpu_seconds=end.cpu_seconds - start.cpu_seconds,
            planes=planes,
            planes_received=moved_by_plane("received_bytes"),
            planes_slow=end.marked("slow"),
            planes_suspended=end.marked("suspended"),
            weights={
                plane.plane: plane.weight
                for info in end.infos
                for plane in info.planes
                if plane.weight < 100
            },
        )


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


def _harmless(change: Change) -> Change:
    texts = {key: shown(value) for key, value in asdict(change).items() if isinstance(value, str)}
    return replace(change, **texts)


class BinsMessage(Struct, frozen=True):
    plane: Annotated[int, Meta(ge=1, le=limits.MAX_PORTS)]
    bytes: tuple[Whole, ...]


class PeerBins:
    """Joins the pieces of the peer's bins."""

    def __init__(self) -> None:
        self.planes: dict[int, list[int]] = {}

    def add(self, plane: Any, numbers: Any) -> None:
        """Adds a piece; raises ProtocolError if it is invalid or there are too many bins."""
        try:
            piece = take({"plane": plane, "bytes": numbers}, BinsMessage)
        except ValueError as error:
            raise ProtocolError(f"the peer sent bins that cannot be read: {error}") from None
        bins = self.planes.setdefault(piece.plane, [])
        bins += piece.bytes
        if len(bins) > limits.MAX_BINS:
            raise ProtocolError("the peer sent more bins than there can be")


class Histogram:
    """Counts durations in buckets, 64 of equal width in each octave: so its size is bounded, and
    its resolution is 1/64 of a duration.
    """

    def __init__(self) -> None:
        self._buckets: dict[int, int] = {}
        self._count = 0
        self._total = 0
        self._min = 0
        self._max = 0

    def add(self, duration_ns: int) -> None:
        """Counts one duration."""
        self._min = duration_ns if self._count == 0 else min(self._min, duration_ns)
        self._max = max(self._max, duration_ns)
        self._count += 1
        self._total += duration_ns
        index = _bucket(duration_ns)
        self._buckets[index] = self._buckets.get(index, 0) + 1

    def percentile(self, fraction: float) -> int:
        """The duration in ns that a `fraction` (0..1) of all durations do not exceed, rounded up to
        the end of its bucket; 0 without durations.
        """
        wanted = fraction * self._count
        seen = 0
        for index in sorted(self._buckets):
            seen += self._buckets[index]
            if seen >= wanted:
                return min(_end(index), self._max)
        return 0

    def summary(self) -> Latency:
        """The figures for a report."""
        return Latency(
            self._count,
            self._min,
            self._total // self._count if self._count else 0,
            self.percentile(0.5),
            self.percentile(0.99),
            self.percentile(0.999),
            self._max,
        )


def _bucket(duration_ns: int) -> int:
    octave = max(0, duration_ns.bit_length() - _SHIFT - 1)
    return (octave << _SHIFT) + (duration_ns >> octave)


def _end(index: int) -> int:
    """The largest duration of a bucket."""
    octave = max(0, (index >> _SHIFT) - 1)
    return ((index - (octave << _SHIFT) + 1) << octave) - 1
