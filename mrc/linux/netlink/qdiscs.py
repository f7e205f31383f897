# SPDX-License-Identifier: Apache-2.0
"""Queues of interfaces as messages, and the counters of interfaces and queues.

An interface of a test bed has a tbf at its root, a netem at its root, a netem below a tbf, or no
queue.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Any, TypeVar

from msgspec import Struct

from mrc.linux.netlink.messages import nla, sched_netem, sched_tbf, tcmsg
from mrc.linux.rtnetlink import attributes

ROOT = 0xFFFFFFFF
_TBF, _TBF_CHILD, _NETEM = 0x10000, 0x10001, 0x20000
_LINKLAYER_ETHERNET = 1
_MAX_RATE32 = (1 << 32) - 1  # bytes a second; says that RATE64 has the rate
_TICK_NS = 64  # PSCHED_SHIFT of net/pkt_sched.h
_NETEM_PACKETS = 100_000  # the queue that delay needs: 1 s at 400 Mbit/s in packets of 500 bytes

# Structures of the kernel: in front of their attributes, or in one.
_IFINFOMSG, _TCMSG = struct.Struct("=4xi"), struct.Struct("=4xiII")
_STATS64 = struct.Struct("=8Q")
_TC_STATS = struct.Struct("=QII16xI")  # bytes, packets, drops, backlog
_IFLA_IFNAME, _IFLA_STATS64 = 3, 23
_TCA_KIND, _TCA_STATS = 1, 3

_Message = TypeVar("_Message", bound=dict[str, Any])


class Counters(Struct, frozen=True):
    """Counters of an interface since its creation, and the bytes in its queue now."""

    packets: int
    """sent; a tbf counts each packet of a burst, an interface without one counts the burst as 1"""
    bytes: int
    dropped: int
    """dropped by the queue, and by the interface because its peer could not accept them"""
    queue_bytes: int


class Netem(Struct, frozen=True):
    """Impairments of the packets that an interface sends. Shares are in parts per million."""

    delay_ns: int = 0
    jitter_ns: int = 0
    """additional delay, from 0 to this value; it can reorder packets"""
    corrupt: int = 0
    duplicate: int = 0
    reorder: int = 0
    """share delayed by reorder_ns; the other packets are not delayed"""
    reorder_ns: int = 0

    def __post_init__(self) -> None:
        if self.reorder and (self.delay_ns or self.jitter_ns):
            raise ValueError("netem cannot both delay and reorder: use --fabric emulated")


class TbfMessage(tcmsg):  # type: ignore[misc]
    """A tbf with its burst in bytes. It requires no rate table."""

    __slots__ = ()
    nla_map = (("TCA_UNSPEC", "none"), ("TCA_KIND", "asciiz"), ("TCA_OPTIONS", "tbf"))

    class tbf(nla):  # type: ignore[misc]
        __slots__ = ()
        nla_map = (
            ("TCA_TBF_UNSPEC", "none"),
            ("TCA_TBF_PARMS", "parms"),
            ("TCA_TBF_RTAB", "hex"),
            ("TCA_TBF_PTAB", "hex"),
            ("TCA_TBF_RATE64", "uint64"),
            ("TCA_TBF_PRATE64", "uint64"),
            ("TCA_TBF_BURST", "uint32"),
        )

        class parms(nla):  # type: ignore[misc]
            __slots__ = ()
            fields = sched_tbf.options.tbf_parms.fields


class NetemMessage(tcmsg):  # type: ignore[misc]
    """A class of our own, because pyroute2's class caches its attributes on first use and the other
    classes here would then inherit that cache.
    """

    __slots__ = ()
    nla_map = (("TCA_UNSPEC", "none"), ("TCA_KIND", "asciiz"), ("TCA_OPTIONS", "netem"))
    netem = sched_netem.options


class PlainMessage(tcmsg):  # type: ignore[misc]
    """A qdisc's kind without options."""

    __slots__ = ()
    nla_map = (("TCA_UNSPEC", "none"), ("TCA_KIND", "asciiz"))


def shaper(index: int, *, rate_bps: int, burst_bytes: int, limit_bytes: int) -> TbfMessage:
    rate = rate_bps // 8
    parms = {
        "rate___reserved": _LINKLAYER_ETHERNET,
        "rate": min(rate, _MAX_RATE32),
        "limit": limit_bytes,
    }
    options = [("TCA_TBF_PARMS", parms), ("TCA_TBF_BURST", burst_bytes)]
    if rate >= _MAX_RATE32:
        options.append(("TCA_TBF_RATE64", rate))
    parts = [("TCA_KIND", "tbf"), ("TCA_OPTIONS", {"attrs": options})]
    return _message(TbfMessage, index, handle=_TBF, attrs=parts)


def netem(index: int, wanted: Netem, *, below_tbf: bool) -> NetemMessage:
    further: list[tuple[str, Any]] = []
    if wanted.reorder:  # netem takes the share that is not delayed
        further.append(("TCA_NETEM_REORDER", {"prob_reorder": _chance(10**6 - wanted.reorder)}))
    if wanted.corrupt:
        further.append(("TCA_NETEM_CORRUPT", {"prob_corrupt": _chance(wanted.corrupt)}))
    # netem takes the mean delay and the largest deviation from it.
    half_ns = wanted.jitter_ns // 2
    options = {
        "delay": _ticks(wanted.reorder_ns if wanted.reorder else wanted.delay_ns + half_ns),
        "jitter": _ticks(half_ns),
        "limit": _NETEM_PACKETS,
        "gap": 1 if wanted.reorder else 0,
        "duplicate": _chance(wanted.duplicate),
        "attrs": further,
    }
    parts = [("TCA_KIND", "netem"), ("TCA_OPTIONS", options)]
    parent = _TBF_CHILD if below_tbf else ROOT
    return _message(NetemMessage, index, parent=parent, handle=_NETEM, attrs=parts)


def empty(index: int, kind: str) -> PlainMessage:
    """A qdisc at the root without options, to test whether the kernel supports the kind."""
    return _message(PlainMessage, index, handle=_NETEM, attrs=[("TCA_KIND", kind)])


def at_root(index: int) -> PlainMessage:
    """Names the root qdisc of an interface, for its removal."""
    return _message(PlainMessage, index)


def _message(kind: type[_Message], index: int, **members: Any) -> _Message:
    """A message for the root qdisc, unless `members` has another parent."""
    message = kind()
    message.update({"index": index, "parent": ROOT, **members})
    return message


def counters(links: Iterable[bytes], queues: Iterable[bytes]) -> dict[str, Counters]:
    """The counters of each interface with those of its tbf, from dumps of links and qdiscs.

    Without pyroute2, which takes four times as long: a large test bed has thousands of interfaces.
    """
    shapers = {}
    for each in queues:
        index, _, parent = _TCMSG.unpack_from(each)
        found = attributes(each, _TCMSG.size + 4)
        if parent == ROOT and found[_TCA_KIND] == b"tbf\0":
            shapers[index] = _TC_STATS.unpack_from(found[_TCA_STATS])
    result = {}
    for each in links:
        (index,) = _IFINFOMSG.unpack_from(each)
        found = attributes(each, _IFINFOMSG.size + 8)
        _, packets, _, sent_bytes, _, _, _, dropped = _STATS64.unpack_from(found[_IFLA_STATS64])
        queued = 0
        if index in shapers:
            sent_bytes, packets, refused, queued = shapers[index]
            dropped += refused
        name = found[_IFLA_IFNAME].rstrip(b"\0").decode()
        result[name] = Counters(packets, sent_bytes, dropped, queued)
    return result


def _chance(ppm: int) -> int:
    return round(ppm * (2**32 - 1) / 10**6)


def _ticks(ns: int) -> int:
    return ns // _TICK_NS
