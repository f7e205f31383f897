# SPDX-License-Identifier: Apache-2.0
"""The rows of a long way. Each contender starts for each row, and its first twenty round trips do
not count.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from itertools import dropwhile

from bed import Bed
from contenders import Raw, tcp_controls
from failover_run import Contender, Mrc, Seen, Tcp

from mrc.demo.run import Timeline

ROUND_TRIPS = 20
_SPARE_SECONDS = 0.2  # a contender sends this much longer than the measured time


def contenders(bed: Bed) -> Iterator[Contender]:
    """The contenders, in the order of a round."""
    yield Mrc(bed)
    for cc in tcp_controls():
        yield Tcp(bed, f"TCP, {cc}", "one flow", cc=cc)
    yield Tcp(bed, "TCP, a flow a plane", "cubic", flows=bed.planes)
    yield Tcp(bed, "MPTCP", "cubic, a subflow a plane", mptcp=True)


def measure(contender: Contender, ms: int) -> Raw:
    """Sends for twenty round trips and then for `ms`, which is measured."""
    skip = ROUND_TRIPS * contender.bed.round_trip_ns / 1e9
    with ExitStack() as stack:
        contender.start(stack, skip + ms / 1000 + _SPARE_SECONDS)
        seen = contender.finish()
    return settled(seen, skip, ms / 1000)


def settled(seen: Seen, skip: float, seconds: float) -> Raw:
    """The bytes that arrived in `seconds`, starting `skip` seconds after the first byte."""
    total = [sum(counts) for counts in zip(*seen.streams, strict=True)]
    came = list(dropwhile(lambda count: count == 0, total))
    timeline = Timeline(0.0, seen.width, came)
    got = timeline.bytes_at(skip + seconds) - timeline.bytes_at(skip)
    return {"bytes": round(got), "ns": seconds * 1e9}
