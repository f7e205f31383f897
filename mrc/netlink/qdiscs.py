# SPDX-License-Identifier: Apache-2.0
"""Queues of interfaces, as messages and back (uapi/linux: pkt_sched.h, gen_stats.h).

Both the queue and the interface count what is sent; counters are the queue's where there is one.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass

from mrc.netlink import links
from mrc.nlsocket import number, pack, read_text, text, unpack

_QUEUE = struct.Struct("=BxxxiIII")  # family, index, handle, parent, information
_KIND, _OPTIONS, _STATS = 1, 2, 3
_COUNTERS = struct.Struct("=Q7I")  # bytes, packets, drops, overlimits, two rates, length, backlog

# Cell size, link layer, overhead, cell alignment, smallest packet, bytes a second.
_RATE = struct.Struct("=BBHhHI")
_TBF_PARMS, _TBF_RATE64, _TBF_BURST = 1, 4, 6
_NETEM_OPTIONS = struct.Struct("=6I")  # latency, limit, loss, gap, duplicate, jitter
_NETEM_REORDER, _NETEM_CORRUPT = 3, 4

_ROOT = 0xFFFFFFFF
_TBF, _TBF_CHILD, _NETEM = 0x10000, 0x10001, 0x20000
_LINKLAYER_ETHERNET = 1
_MAX_RATE32 = (1 << 32) - 1  # bytes a second; says that RATE64 has the rate
_TICK_NS = 64  # PSCHED_SHIFT of net/pkt_sched.h
_NETEM_PACKETS = 100_000  # the queue that delay needs: 1 s at 400 Mbit/s in packets of 500 bytes

ALL_QUEUES = bytes(_QUEUE.size)


@dataclass(frozen=True, slots=True)
class Counters:
    """What an interface sent since it exists, and what of that waits now."""

    packets: int
    """those of a burst one by one where a tbf counts them, else a burst is one"""
    bytes: int
    dropped: int
    """by the queue, and by the interface since its peer could not take it"""
    queue_bytes: int


@dataclass(frozen=True, slots=True)
class Netem:
    """What befalls packets on their way out; shares are in parts per million."""

    delay_ns: int = 0
    jitter_ns: int = 0
    """up to so much more; packets may pass each other then"""
    corrupt: int = 0
    duplicate: int = 0
    reorder: int = 0
    """arrive later by reorder_ns, the others at once"""
    reorder_ns: int = 0

    def __post_init__(self) -> None:
        if self.reorder and (self.delay_ns or self.jitter_ns):
            raise ValueError("netem can delay or reorder, not both: --fabric emulated")


def shaper(index: int, *, rate_bps: int, burst_bytes: int, limit_bytes: int) -> bytes:
    """A tbf whose burst is given in bytes, so that no rate table has to be computed."""
    rate = rate_bps // 8
    usual = _RATE.pack(0, _LINKLAYER_ETHERNET, 0, 0, 0, min(rate, _MAX_RATE32))
    parms = usual + bytes(_RATE.size) + struct.pack("=3I", limit_bytes, 0, 0)
    options = [(_TBF_PARMS, parms), (_TBF_BURST, number(burst_bytes))]
    if rate >= _MAX_RATE32:
        options.append((_TBF_RATE64, number(rate, 8)))
    return _queue(index, _TBF, _ROOT, (_KIND, text("tbf")), (_OPTIONS, pack(*options)))


def netem(index: int, wanted: Netem, *, below_tbf: bool) -> bytes:
    attributes = []
    if wanted.reorder:  # netem says who goes at once
        chance = _chance(10**6 - wanted.reorder)
        attributes.append((_NETEM_REORDER, struct.pack("=2I", chance, 0)))
    if wanted.corrupt:
        attributes.append((_NETEM_CORRUPT, struct.pack("=2I", _chance(wanted.corrupt), 0)))
    # What netem takes is the middle, and how far from there.
    half_ns = wanted.jitter_ns // 2
    options = _NETEM_OPTIONS.pack(
        _ticks(wanted.reorder_ns if wanted.reorder else wanted.delay_ns + half_ns),
        _NETEM_PACKETS,
        0,
        1 if wanted.reorder else 0,
        _chance(wanted.duplicate),
        _ticks(half_ns),
    )
    parent = _TBF_CHILD if below_tbf else _ROOT
    value = (_OPTIONS, options + pack(*attributes))
    return _queue(index, _NETEM, parent, (_KIND, text("netem")), value)


def empty(index: int, kind: str) -> bytes:
    """A qdisc at the root with nothing said about it; to find out whether the kernel has it."""
    return _queue(index, _NETEM, _ROOT, (_KIND, text(kind)))


def at_root(index: int) -> bytes:
    """Names what stands at the root, to be taken away."""
    return _queue(index, 0, _ROOT)


def _queue(index: int, handle: int, parent: int, *attributes: tuple[int, bytes]) -> bytes:
    return _QUEUE.pack(0, index, handle, parent, 0) + pack(*attributes)


def counters(of_links: Iterable[bytes], of_queues: Iterable[bytes]) -> dict[str, Counters]:
    """By the name of the interface, from the answers about all links and all queues."""
    tbfs = {}
    for body in of_queues:
        _, index, _, parent, _ = _QUEUE.unpack_from(body)
        found = unpack(body[_QUEUE.size :])
        if parent == _ROOT and read_text(found[_KIND]) == "tbf":
            tbfs[index] = _COUNTERS.unpack_from(found[_STATS])
    told = {}
    for body in of_links:
        link = links.decode(body)
        packets, sent, dropped = links.decode_sent(body)
        waiting = 0
        if link.index in tbfs:
            sent, packets, drops, *_, waiting = tbfs[link.index]
            dropped += drops
        told[link.name] = Counters(packets, sent, dropped, waiting)
    return told


def _chance(ppm: int) -> int:
    return round(ppm * (2**32 - 1) / 10**6)


def _ticks(ns: int) -> int:
    return ns // _TICK_NS
