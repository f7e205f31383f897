# SPDX-License-Identifier: Apache-2.0
"""Transfers out of snapshots: their rates and gaps."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

from snapshot_data import SNAPSHOT

from mrc.observe.endpoints import checked
from mrc.observe.results import Snapshot
from mrc.view.frames import PageTransfer, Transfers

TENTH = 100_000_000  # ns


def snapshot(turn: int, *, host: str = "h0", outstanding: int = 1, **qp: Any) -> Snapshot:
    """The endpoint after `turn` tenths of a second."""
    found = copy.deepcopy(SNAPSHOT) | {"host": host, "monotonic_ns": 10**9 + turn * TENTH}
    peer = "h1" if host == "h0" else "h0"
    found["qps"][0] |= {"peer": peer, "outstanding": outstanding} | qp
    return checked(found)


def follow(steps: Sequence[tuple[int, int]]) -> list[PageTransfer]:
    """What is shown of a sender for each step: bytes that are acknowledged, and posted writes."""
    transfers = Transfers()
    return [
        transfers.take(
            {"s": snapshot(turn, acknowledged_bytes=1000 * moved, outstanding=outstanding)}
        )[0]
        for turn, (moved, outstanding) in enumerate(steps)
    ]


def test_take__goodput_of_the_interval() -> None:
    first, second, third = follow([(1, 1), (11, 1), (11, 1)])
    assert (first.bits_per_second, second.bits_per_second) == (0, 800_000)
    assert third.bits_per_second == 0
    assert (second.source, second.destination, second.program) == ("h0", "h1", "mrc send")
    assert (second.bytes, second.seen_at) == (11_000, "source")


def test_take__longest_gap() -> None:
    """Bytes, posted writes and the longest gap so far, in tenths of a second."""
    rows = [
        (1, 1, 0),
        (2, 1, 0),
        (2, 1, 1),  # one interval without progress
        (2, 1, 2),
        (3, 1, 2),
        (3, 1, 2),  # a shorter gap
        (4, 0, 2),
        (4, 0, 2),  # nothing to send is no gap
        (4, 0, 2),
        (4, 0, 2),
        (4, 1, 2),
        (5, 1, 2),
    ]
    found = follow([(moved, outstanding) for moved, outstanding, _ in rows])
    assert [each.longest_gap_ns / TENTH for each in found] == [gap for _, _, gap in rows]


def test_take__a_gap_at_a_receiver_counts_once_it_is_over() -> None:
    transfers = Transfers()
    gaps = []
    for turn, moved in enumerate([1, 2, 2, 2, 3, 3]):
        seen = snapshot(turn, host="h1", outstanding=0, acknowledged_bytes=0, received_bytes=moved)
        (found,) = transfers.take({"r": seen})
        gaps.append(found.longest_gap_ns / TENTH)
        assert (found.source, found.destination, found.seen_at) == ("h0", "h1", "destination")
    assert gaps == [0, 0, 0, 0, 2, 2]


def test_take__a_transfer_is_listed_once() -> None:
    """Its sender knows more of it than its receiver."""
    sender = snapshot(0, acknowledged_bytes=5)
    receiver = snapshot(0, host="h1", outstanding=0, acknowledged_bytes=0, received_bytes=5)
    (found,) = Transfers().take({"r": receiver, "s": sender})
    assert found.seen_at == "source"


def test_take__an_idle_qp_is_no_transfer() -> None:
    assert Transfers().take({"s": snapshot(0, outstanding=0, acknowledged_bytes=0)}) == ()


def test_take__planes_and_evs() -> None:
    transfers = Transfers()
    transfers.take({"s": snapshot(0)})
    later = snapshot(1)
    qp = later.qps[0]
    (found,) = transfers.take({"s": later})
    (plane,) = found.planes
    (ev,) = found.evs
    assert plane.suspended and plane.plane == qp.planes[0].plane
    assert (ev.path, ev.state, ev.active, ev.lost_packets) == ("t1:1.0", "ASSUMED_BAD", True, 1)


def test_take__forgets_what_is_gone() -> None:
    """An endpoint that comes again begins anew."""
    transfers = Transfers()
    transfers.take({"s": snapshot(0, acknowledged_bytes=9000)})
    assert transfers.take({}) == ()
    (found,) = transfers.take({"s": snapshot(9, acknowledged_bytes=10)})
    assert found.bits_per_second == 0
