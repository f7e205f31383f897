# SPDX-License-Identifier: Apache-2.0
"""Transfers out of the snapshots of endpoints: goodput, longest gap, planes and paths. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from msgspec import Struct

from mrc.events import known
from mrc.results.snapshot import Ev, Plane, Qp, Snapshot
from mrc.view.frames import EvShare, PlaneShare, Transfer

_WORST_FIRST = ("ASSUMED_BAD", "DENIED", "SKIP", "GOOD")


class _Key(NamedTuple):
    """One direction between an endpoint and a peer."""

    endpoint: str
    peer: str
    sends: bool


class _Seen(Struct):
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
        self._seen: dict[_Key, _Seen] = {}

    def take(self, snapshots: Mapping[str, Snapshot]) -> tuple[Transfer, ...]:
        """The transfers now. What a receiver sees is left out where its sender is seen, too."""
        found: dict[_Key, Transfer] = {}
        seen: dict[_Key, _Seen] = {}
        for name, snapshot in snapshots.items():
            for peer, qps in _by_peer(snapshot.qps).items():
                for sends in (True, False):
                    key = _Key(f"{name}/{snapshot.pid}", peer, sends)
                    if any(_bytes(qp, sends=sends) or (sends and qp.outstanding) for qp in qps):
                        found[key], seen[key] = self._transfer(key, snapshot, qps)
        self._seen = seen
        senders = {(each.source, each.destination) for key, each in found.items() if key.sends}
        return tuple(
            each
            for key, each in found.items()
            if key.sends or (each.source, each.destination) not in senders
        )

    def _transfer(self, key: _Key, snapshot: Snapshot, qps: Sequence[Qp]) -> tuple[Transfer, _Seen]:
        sends, now_ns = key.sends, snapshot.monotonic_ns
        planes, evs = _planes(qps), _evs(qps) if sends else {}
        now = _Seen(
            at_ns=now_ns,
            bytes=sum(_bytes(qp, sends=sends) for qp in qps),
            moved_ns=now_ns,
            waits=sends and any(qp.outstanding for qp in qps),
            gap_ns=0,
            by_plane={number: _moved(parts, sends=sends) for number, parts in planes.items()},
            by_path={path: sum(ev.sent_bytes for ev in found) for path, found in evs.items()},
        )
        before = self._seen.get(key, now)
        _measure_gap(before, now, sends=sends)
        return Transfer(
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


def _plane(number: int, parts: Sequence[Plane], before: _Seen, now: _Seen) -> PlaneShare:
    return PlaneShare(
        plane=number,
        bits_per_second=_rate(before, now, lambda seen: seen.by_plane.get(number, 0)),
        suspended=any(part.suspended for part in parts),
        slow=any(part.slow for part in parts),
        rtt_ns=_longest(parts),
    )


def _ev(path: tuple[int, str], evs: Sequence[Ev], before: _Seen, now: _Seen) -> EvShare:
    return EvShare(
        plane=path[0],
        path=path[1],
        state=min((ev.state for ev in evs), key=_WORST_FIRST.index),
        active=any(ev.active for ev in evs),
        bits_per_second=_rate(before, now, lambda seen: seen.by_path.get(path, 0)),
        lost_packets=sum(ev.lost_packets for ev in evs),
        rtt_ns=_longest(evs),
    )


def _measure_gap(before: _Seen, now: _Seen, *, sends: bool) -> None:
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


def _by_peer(qps: Sequence[Qp]) -> dict[str, list[Qp]]:
    found: dict[str, list[Qp]] = {}
    for qp in qps:
        found.setdefault(qp.peer, []).append(qp)
    return found


def _planes(qps: Sequence[Qp]) -> dict[int, list[Plane]]:
    found: dict[int, list[Plane]] = {}
    for plane in (plane for qp in qps for plane in qp.planes):
        found.setdefault(plane.plane, []).append(plane)
    return found


def _evs(qps: Sequence[Qp]) -> dict[tuple[int, str], list[Ev]]:
    found: dict[tuple[int, str], list[Ev]] = {}
    for ev in (ev for qp in qps for ev in qp.evs or ()):
        found.setdefault((ev.plane, ev.path), []).append(ev)
    return found


def _bytes(qp: Qp, *, sends: bool) -> int:
    return qp.acknowledged_bytes if sends else qp.received_bytes


def _moved(parts: Sequence[Plane], *, sends: bool) -> int:
    return sum(part.sent_bytes if sends else part.received_bytes for part in parts)


def _longest(parts: Sequence[Qp] | Sequence[Plane] | Sequence[Ev]) -> int | None:
    return max(known(part.rtt_ns for part in parts), default=None)


def _rate(before: _Seen, now: _Seen, count: Callable[[_Seen], int]) -> int:
    seconds = (now.at_ns - before.at_ns) / 1e9
    return round(max(0, count(now) - count(before)) * 8 / seconds) if seconds > 0 else 0
