# SPDX-License-Identifier: Apache-2.0
"""The quality of paths over time, from trains of probes. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from itertools import pairwise

from msgspec import Struct

TRAIN = 3  # probes that follow each other on one EV: they show whether packets overtake

FAILS_FROM = 0.1
"""A path that loses this share of its probes counts as failed."""


class Train(Struct, frozen=True):
    """Probes of one EV, sent one directly after the other."""

    rtts_ns: tuple[int | None, ...]
    """in the order in which they were sent; None: without an answer"""
    arrivals: tuple[int, ...]
    """their places, in the order of the answers"""


class Quality(Struct, frozen=True):
    """What trains of probes show about a path."""

    sent: int
    lost: int
    shortest_ns: int | None
    """shortest round trip"""
    jitter_ns: int | None
    """mean difference of successive round trips"""
    reordered: int
    """answers that came after the answer to a later probe"""


def quality(trains: Iterable[Train]) -> Quality:
    trains = list(trains)
    rtts = [rtt for train in trains for rtt in train.rtts_ns if rtt is not None]
    sent = sum(len(train.rtts_ns) for train in trains)
    steps = [abs(b - a) for a, b in pairwise(rtts)]
    return Quality(
        sent=sent,
        lost=sent - len(rtts),
        shortest_ns=min(rtts, default=None),
        jitter_ns=round(sum(steps) / len(steps)) if steps else None,
        reordered=sum(
            any(earlier > each for earlier in train.arrivals[:place])
            for train in trains
            for place, each in enumerate(train.arrivals)
        ),
    )


def extra_delays(found: Mapping[int, Quality], planes: Mapping[int, int]) -> dict[int, int | None]:
    """By how much the way to the peer takes longer on each EV than on the best EV of its plane.

    Answers return on any path of the plane, so the shortest round trips share the best way back;
    their difference is that of the ways there. `planes`: EV -> plane.
    """
    best: dict[int, int] = {}
    for index, each in found.items():
        if each.shortest_ns is not None:
            plane = planes[index]
            best[plane] = min(best.get(plane, each.shortest_ns), each.shortest_ns)
    return {
        index: None if each.shortest_ns is None else each.shortest_ns - best[planes[index]]
        for index, each in found.items()
    }


def failed(found: Mapping[int, Quality], planes: Mapping[int, int]) -> set[int]:
    """The EVs whose paths fail.

    Answers return on any path of the plane, and may be lost there. So the best path of a plane
    shows what the way back loses, and a path fails if it loses more than chance explains; or all
    fail, if all lose the same.
    """
    bad: set[int] = set()
    for plane in {planes[index] for index in found}:
        here = {index: each for index, each in found.items() if planes[index] == plane}
        best = min(each.lost / each.sent for each in here.values())
        worse = {
            index
            for index, each in here.items()
            if each.lost / each.sent > best + _chance(best, each.sent)
        }
        bad |= worse or (set(here) if best >= FAILS_FROM else set())
    return bad


def _chance(share: float, sent: int) -> float:
    """By how much the losses of two paths may differ that lose the same share: two standard
    deviations, and at least FAILS_FROM.
    """
    return max(FAILS_FROM, 2 * math.sqrt(2 * share * (1 - share) / sent))
