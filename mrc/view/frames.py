# SPDX-License-Identifier: Apache-2.0
"""What the page gets: the parts of the fabric once, then what happens there."""

from __future__ import annotations

from msgspec import Struct


class Part(Struct, frozen=True):
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


class Drawn(Struct, frozen=True):
    """A test bed. Its links stand plane by plane."""

    name: str
    title: str
    planes: int
    links: tuple[Part, ...]
    can_delay: bool
    """whether this fabric delays packets"""


class Failing(Struct, frozen=True):
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


class Links(Struct, frozen=True):
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
    faults: dict[str, Failing]
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
    """GOOD, SKIP, ASSUMED_BAD or DENIED: the worst"""
    active: bool
    bits_per_second: int
    lost_packets: int
    rtt_ns: int | None


class Transfer(Struct, frozen=True):
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
    transfers: tuple[Transfer, ...]


class Problem(Struct, frozen=True):
    """Why there is nothing new."""

    source: str
    """links or endpoints"""
    text: str
    """empty: the problem is over"""
