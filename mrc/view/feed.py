# SPDX-License-Identifier: Apache-2.0
"""Reads the test bed and the endpoints while a page is open, and gives every page what is new: the
parts of the fabric once, then what happens there; and its transfers, out of snapshots.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Hashable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from msgspec import Struct

from mrc.errors import MrcError
from mrc.events import known
from mrc.observe.snapshot import Ev, Qp, QpPlane, Snapshot
from mrc.results import Result, plain
from mrc.tasks import cancelled, within
from mrc.transfer.threads import in_thread

if TYPE_CHECKING:  # `mrc top` needs no test beds
    from mrc.cli.top import Look
    from mrc.view.fabric import FabricChange, FabricView

T = TypeVar("T")
K = TypeVar("K", bound=Hashable)


class FabricLink(Struct, frozen=True):
    """A link of the fabric."""

    target: str
    """its name for faults"""
    plane: int
    host: int | None
    """two of these four are the numbers of its ends; the others are None"""
    t0: int | None
    t1: int | None
    t2: int | None
    up: str
    """the name of its direction from the lower end to the upper end"""
    down: str
    rates_bps: tuple[int | None, int | None]
    """up and down without faults; None: no limit"""


class BedDrawing(Struct, frozen=True):
    """A test bed. Its links stand plane by plane."""

    name: str
    title: str
    planes: int
    links: tuple[FabricLink, ...]
    can_delay: bool
    """whether this fabric delays packets"""


class FabricFault(Struct, frozen=True):
    """A fault."""

    mode: str
    """silent or down"""
    text: str
    loss: float
    rate_share: float | None
    """None: the rate is unchanged"""
    delay_ns: int
    mtu: int | None
    """None: that of each link"""


class LinkLoads(Struct, frozen=True):
    """All directions of all links in one interval: up and down of each link of `Drawn.links`."""

    monotonic_ns: int
    seconds: float
    """length of the interval; 0: there was none before"""
    rates_bps: tuple[int, ...]
    queue_bytes: dict[int, int]
    """by place in `rates_bps`, where there is a queue"""
    limits_bps: dict[int, int]
    """where a fault limits the rate"""
    lost: dict[int, int]
    """packets lost by faults, where there were some"""
    dropped: dict[int, int]
    """packets dropped by full queues"""
    trimmed: dict[int, int]
    marked: dict[int, int]
    unknown: tuple[int, ...]
    """where nothing was measured: another machine, which does not answer, has it"""
    faults: dict[str, FabricFault]
    """by target"""


class PlaneShare(Struct, frozen=True):
    """A plane of a transfer."""

    plane: int
    bits_per_second: int
    suspended: bool
    slow: bool
    rtt_ns: int | None


class EvShare(Struct, frozen=True):
    """A path of a transfer: the EVs of its QPs that name it."""

    plane: int
    path: str
    state: str
    """GOOD, SKIP, ASSUMED_BAD, DENIED or UNPROVEN: the worst"""
    active: bool
    bits_per_second: int
    lost_packets: int
    rtt_ns: int | None


class PageTransfer(Struct, frozen=True):
    """All QPs of an endpoint with one peer, in one direction."""

    key: str
    program: str
    source: str
    destination: str
    seen_at: str
    """the end whose counters these are: source or destination"""
    bits_per_second: int
    """payload acknowledged, or at the destination placed"""
    bytes: int
    longest_gap_ns: int
    """longest time without progress while there was something to send, as far as samples show"""
    rtt_ns: int | None
    retransmitted_packets: int
    planes: tuple[PlaneShare, ...]
    evs: tuple[EvShare, ...]


class Endpoints(Struct, frozen=True):
    """All transfers at one time."""

    monotonic_ns: int
    longest_sample_ns: int
    """longest time between two samples so far: a gap of less than twice this may be unseen"""
    endpoints: int
    transfers: tuple[PageTransfer, ...]


class Problem(Struct, frozen=True):
    """Why there is nothing new."""

    source: str
    """links or endpoints"""
    text: str
    """empty: the problem is over"""


class PageAddress(Result, frozen=True, kw_only=True):
    """Where the page is, while the command runs."""

    url: str
    """Address of the page. Whoever has it can break and heal the test bed."""


# ---- Transfers -----------------------------------------------------------------------------------


_WORST_FIRST = ("ASSUMED_BAD", "DENIED", "UNPROVEN", "SKIP", "GOOD")


class _TransferKey(NamedTuple):
    """One direction between an endpoint and a peer."""

    endpoint: str
    peer: str
    sends: bool


class _TransferSample(Struct):
    """What was seen of it last."""

    at_ns: int
    bytes: int
    moved_ns: int
    """when its bytes grew last"""
    waits: bool
    """there was something to send"""
    gap_ns: int
    by_plane: dict[int, int]
    by_path: dict[tuple[int, str], int]


class Transfers:
    """Follows the transfers from one look at the endpoints to the next."""

    def __init__(self) -> None:
        self._seen: dict[_TransferKey, _TransferSample] = {}

    def take(self, snapshots: Mapping[str, Snapshot]) -> tuple[PageTransfer, ...]:
        """The transfers now. What a receiver sees is left out where its sender is seen, too."""
        found: dict[_TransferKey, PageTransfer] = {}
        seen: dict[_TransferKey, _TransferSample] = {}
        for name, snapshot in snapshots.items():
            for peer, qps in _grouped(snapshot.qps, lambda qp: qp.peer).items():
                for sends in (True, False):
                    key = _TransferKey(f"{name}/{snapshot.pid}", peer, sends)
                    if any(_bytes(qp, sends=sends) or (sends and qp.outstanding) for qp in qps):
                        found[key], seen[key] = self._transfer(key, snapshot, qps)
        self._seen = seen
        senders = {(each.source, each.destination) for key, each in found.items() if key.sends}
        return tuple(
            each
            for key, each in found.items()
            if key.sends or (each.source, each.destination) not in senders
        )

    def _transfer(
        self, key: _TransferKey, snapshot: Snapshot, qps: Sequence[Qp]
    ) -> tuple[PageTransfer, _TransferSample]:
        sends, now_ns = key.sends, snapshot.monotonic_ns
        planes = _grouped((plane for qp in qps for plane in qp.planes), lambda plane: plane.plane)
        used = (ev for qp in qps for ev in qp.evs or () if sends)
        evs = _grouped(used, lambda ev: (ev.plane, ev.path))
        now = _TransferSample(
            at_ns=now_ns,
            bytes=sum(_bytes(qp, sends=sends) for qp in qps),
            moved_ns=now_ns,
            waits=sends and any(qp.outstanding for qp in qps),
            gap_ns=0,
            by_plane={
                number: sum(part.sent_bytes if sends else part.received_bytes for part in parts)
                for number, parts in planes.items()
            },
            by_path={path: sum(ev.sent_bytes for ev in found) for path, found in evs.items()},
        )
        before = self._seen.get(key, now)
        _measure_gap(before, now, sends=sends)
        return PageTransfer(
            key="/".join((key.endpoint, key.peer, "out" if sends else "in")),
            program=snapshot.program or "mrc",
            source=snapshot.host if sends else key.peer,
            destination=key.peer if sends else snapshot.host,
            seen_at="source" if sends else "destination",
            bits_per_second=_rate(before, now, lambda seen: seen.bytes),
            bytes=now.bytes,
            longest_gap_ns=now.gap_ns,
            rtt_ns=_longest(qps),
            retransmitted_packets=sum(qp.retransmitted_packets for qp in qps),
            planes=tuple(_plane(*each, before, now) for each in sorted(planes.items())),
            evs=tuple(_ev(*each, before, now) for each in sorted(evs.items())),
        ), now


def _plane(
    number: int, parts: Sequence[QpPlane], before: _TransferSample, now: _TransferSample
) -> PlaneShare:
    return PlaneShare(
        plane=number,
        bits_per_second=_rate(before, now, lambda seen: seen.by_plane.get(number, 0)),
        suspended=any(part.suspended for part in parts),
        slow=any(part.slow for part in parts),
        rtt_ns=_longest(parts),
    )


def _ev(
    path: tuple[int, str], evs: Sequence[Ev], before: _TransferSample, now: _TransferSample
) -> EvShare:
    return EvShare(
        plane=path[0],
        path=path[1],
        state=min((ev.state for ev in evs), key=_WORST_FIRST.index),
        active=any(ev.active for ev in evs),
        bits_per_second=_rate(before, now, lambda seen: seen.by_path.get(path, 0)),
        lost_packets=sum(ev.lost_packets for ev in evs),
        rtt_ns=_longest(evs),
    )


def _measure_gap(before: _TransferSample, now: _TransferSample, *, sends: bool) -> None:
    """A gap is the time of samples that found no progress. It grows while a sender waits. A
    receiver cannot tell it from the end, so there it counts once it is over.
    """
    now.gap_ns = before.gap_ns
    stands = now.bytes == before.bytes
    if stands and (before.waits or not sends):
        now.moved_ns = before.moved_ns
    if stands and before.waits:
        now.gap_ns = max(now.gap_ns, now.at_ns - now.moved_ns)
    elif not stands and not sends:
        now.gap_ns = max(now.gap_ns, before.at_ns - before.moved_ns)


def _grouped(items: Iterable[T], key_of: Callable[[T], K]) -> dict[K, list[T]]:
    found: dict[K, list[T]] = {}
    for each in items:
        found.setdefault(key_of(each), []).append(each)
    return found


def _bytes(qp: Qp, *, sends: bool) -> int:
    return qp.acknowledged_bytes if sends else qp.received_bytes


def _longest(parts: Sequence[Qp] | Sequence[QpPlane] | Sequence[Ev]) -> int | None:
    return max(known(part.rtt_ns for part in parts), default=None)


def _rate(
    before: _TransferSample, now: _TransferSample, count: Callable[[_TransferSample], int]
) -> int:
    seconds = (now.at_ns - before.at_ns) / 1e9
    return round(max(0, count(now) - count(before)) * 8 / seconds) if seconds > 0 else 0


# ---- The feed ------------------------------------------------------------------------------------


MAX_PAGES = 8
_ENDPOINTS_SECONDS, _LINKS_SECONDS = 0.1, 0.25
_REST = 3  # after each look at least this many times as long as it took
_WAITING = 64  # messages for a page that reads slowly; then it loses the oldest


class PageFeed:
    """What the pages show. `view`: the test bed, if there is one."""

    def __init__(self, look: Look, view: FabricView | None) -> None:
        self._look = look
        self._view = view
        self._pages: set[asyncio.Queue[str]] = set()
        self._tasks: list[asyncio.Task[None]] = []
        self._lasting: dict[str, str] = {}  # for pages that open later
        self._problems: dict[str, str] = {}
        self._changed = asyncio.Event()

    @property
    def is_full(self) -> bool:
        return len(self._pages) >= MAX_PAGES

    @asynccontextmanager
    async def open(self) -> AsyncIterator[asyncio.Queue[str]]:
        """The messages for a page, until it closes."""
        page = asyncio.Queue[str](_WAITING)
        if not self._pages:
            self._lasting.clear()
            self._problems.clear()
            works = [self._endpoints()]
            works += [] if self._view is None else [self._links(self._view)]
            self._tasks = [asyncio.create_task(work) for work in works]
        for message in self._lasting.values():
            page.put_nowait(message)
        self._pages.add(page)
        try:
            yield page
        finally:
            self._pages.discard(page)
            if not self._pages:
                await cancelled(*self._tasks)

    async def change(self, change: FabricChange) -> None:
        """Changes the test bed and shows that soon. Raises an MrcError."""
        if self._view is None:
            raise MrcError("this page shows no test bed")
        await in_thread(self._view.change, change)
        self._changed.set()

    async def _endpoints(self) -> None:
        transfers, before_ns, longest_ns = Transfers(), time.monotonic_ns(), 0
        while True:
            async with _paced(_ENDPOINTS_SECONDS):
                try:
                    seen = await self._look()
                except (MrcError, OSError) as error:
                    self._tell_of("endpoints", str(error))
                    continue
                self._tell_of("endpoints", "; ".join(map(str, seen.unanswered)))
                now_ns = time.monotonic_ns()
                longest_ns, before_ns = max(longest_ns, now_ns - before_ns), now_ns
                shown = transfers.take(seen.endpoints)
                count = len(seen.endpoints)
                self._tell("endpoints", Endpoints(now_ns, longest_ns, count, shown))

    async def _links(self, view: FabricView) -> None:
        await in_thread(view.close)
        drawn = None
        while True:
            self._changed.clear()
            async with _paced(_LINKS_SECONDS, self._changed):
                try:
                    now, links = await in_thread(view.read)
                except (MrcError, OSError) as error:
                    self._tell_of("links", str(error))
                    continue
                self._tell_of("links", view.trouble)
                if now is not drawn:
                    drawn = now
                    self._tell("bed", drawn, lasts="bed")
                self._tell("links", links)

    def _tell_of(self, source: str, problem: str) -> None:
        """Tells of a problem once, and when it is over."""
        if problem != self._problems.get(source, ""):
            self._problems[source] = problem
            self._tell("problem", Problem(source, problem), lasts=f"problem {source}")

    def _tell(self, event: str, what: Struct, *, lasts: str = "") -> None:
        """`lasts`: the message is for later pages, too, in place of an earlier one of this name."""
        message = f"event: {event}\ndata: {json.dumps(plain(what), separators=(',', ':'))}\n\n"
        if lasts:
            self._lasting[lasts] = message
        for page in self._pages:
            if page.full():
                page.get_nowait()
            page.put_nowait(message)


@asynccontextmanager
async def _paced(seconds: float, sooner: asyncio.Event | None = None) -> AsyncIterator[None]:
    """After the body, waits until the next look is due, or until `sooner`."""
    began = time.monotonic()
    yield
    took = time.monotonic() - began
    with suppress(TimeoutError):
        async with within(max(seconds - took, _REST * took)):
            await (asyncio.Event() if sooner is None else sooner).wait()
