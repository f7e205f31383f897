# SPDX-License-Identifier: Apache-2.0
"""Completions, immediates, events and snapshots of state that mrc returns; all are frozen."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from msgspec import Struct

from mrc.enums import (
    EventReason,
    EvState,
    HeldBy,
    PairState,
    QpState,
    WarningKind,
    WcOpcode,
    WcStatus,
)
from mrc.errors import MrcError


class Completion(NamedTuple):  # five times faster to create than a frozen dataclass
    """A completed work request, from the engine."""

    wr_id: int
    """The cookie of its place in a send queue."""
    qpn: int
    """Number of its QP."""
    bytes: int
    """Bytes written."""
    status: WcStatus
    """Any but SUCCESS is raised as a CompletionError."""
    opcode: WcOpcode
    """WRITE or WRITE_IMM."""


class Ended(Struct, frozen=True):
    """How a QP has ended, at this side."""

    by_peer: bool
    """True: the peer closed it, failed or disappeared. False: this side closed it or found out why
    it cannot go on."""
    error: MrcError | None
    """Why; None: it was closed in order."""


class Immediate(Struct, frozen=True):
    """An immediate of the peer. Immediates come in the order in which the peer posted them."""

    imm: int
    """The 32-bit immediate."""
    bytes: int
    """Bytes that arrived with it."""
    index: int
    """Number of this immediate on its QP, from 0."""


class _Timed(Struct, frozen=True, eq=False):
    """Events are equal if everything but their times is."""

    def _said(self) -> tuple[object, ...]:
        return tuple(getattr(self, name) for name in self.__struct_fields__ if name != "at_ns")

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self._said() == other._said()

    def __ne__(self, other: object) -> bool:  # Struct's own does not call __eq__
        return not self == other

    def __hash__(self) -> int:
        return hash((type(self), self._said()))


class EvEvent(_Timed, frozen=True):
    """An EV went to GOOD, ASSUMED_BAD or DENIED. SKIP lasts one turn and creates no event, and an
    EV that is UNPROVEN creates none until it joins, as GOOD.
    """

    index: int
    """Place of the EV in `QP.evs()`."""
    plane: int
    """Its plane, from 1."""
    path: str
    """Name of its path."""
    state: EvState
    """Its new state."""
    reason: EventReason
    """Why it changed."""
    at_ns: int = 0
    """When the datapath reported it, on CLOCK_MONOTONIC as in `time.monotonic_ns()`."""


class PlaneEvent(_Timed, frozen=True):
    """A plane was suspended, or carries data again."""

    plane: int
    """The plane, from 1."""
    suspended: bool
    """True: it carries only probes. False: it carries data again."""
    reason: EventReason
    """Why it changed."""
    at_ns: int = 0
    """When, as in EvEvent."""


class PlaneShareEvent(_Timed, frozen=True):
    """A plane became slow or is no longer slow. Slow: less than half of the other planes' mean.

    The datapath compares the planes over periods of 200 ms, or of 8 round trips if this is longer.
    The comparison sums all QPs to the peer, and each of these QPs gets the event. A change takes
    two periods in a row; `percent` is from the second. When all QPs to the peer have suspended a
    plane, it is no longer slow, without an event.
    """

    plane: int
    """The plane, from 1."""
    slow: bool
    """True: it became slow. False: it is no longer slow."""
    percent: int
    """Its delivery in percent of the mean of the other planes."""
    reason: EventReason
    """Why it changed."""
    at_ns: int = 0
    """When, as in EvEvent."""


class PortEvent(_Timed, frozen=True):
    """The port of a plane went down or came up: this host's (OWN_PORT) or the peer's (PEER_PORT).

    A PlaneEvent reports the consequence for the plane.
    """

    plane: int
    """The plane of the port, from 1."""
    up: bool
    """True: it came up. False: it went down."""
    reason: EventReason
    """OWN_PORT or PEER_PORT."""
    at_ns: int = 0
    """When, as in EvEvent."""


class EventsLost(Struct, frozen=True):
    """`count` events are missing here because the reader, or this process, was too slow.

    Events that the engine dropped may belong to any QP. `QP.evs()` and `QP.query()` return the
    current state.
    """

    count: int
    """How many events are missing."""


class QpErrorEvent(Struct, frozen=True):
    """The QP went to ERROR; everything outstanding was flushed."""

    status: WcStatus
    """Why it failed."""


QpEvent = EvEvent | PlaneEvent | PlaneShareEvent | PortEvent | EventsLost | QpErrorEvent


class ContextWarning(Struct, frozen=True):
    """A problem that costs speed or data, while the Context keeps running.

    `detail` is the granted buffer size in bytes for RCVBUF_SMALL and SNDBUF_SMALL, the key of the
    memory region for MEMORY_FAULT, and 0 for GUARD_REPLACED.
    """

    kind: WarningKind
    """The kind of problem."""
    plane: int
    """The plane, from 1; 0: none."""
    detail: int
    """Depends on `kind`, see above."""

    def __str__(self) -> str:
        where = f"plane {self.plane}: " if self.plane else ""
        if self.kind is WarningKind.MEMORY_FAULT:
            return f"{where}{self.kind.explanation} (the memory region with rkey {self.detail:#x})"
        granted = f" ({self.detail} bytes granted)" if self.detail else ""
        return f"{where}{self.kind.explanation}{granted}"


class ProbeResult(Struct, frozen=True):
    """The result of an EV probe."""

    index: int
    """Place of the EV in `QP.evs()`."""
    error: int
    """0 when the peer answered, else an errno value: ETIMEDOUT without an answer; EMSGSIZE or
    ENETUNREACH when the probe could not be sent; EPERM when the EV is DENIED: mrc sends no packet
    on a DENIED EV.
    """
    rtt_ns: int | None
    """The round trip; None without an answer."""
    ce: bool = False
    """True when a switch marked the probe with ECN CE."""

    @property
    def answered(self) -> bool:
        """True when the peer's answer arrived."""
        return self.error == 0


class PlaneInfo(Struct, frozen=True):
    """Snapshot of one plane of a QP. PlaneShareEvent says when a plane is slow."""

    plane: int
    """The plane, from 1."""
    sent_packets: int
    """Data packets sent, retransmissions included."""
    sent_bytes: int
    """Payload sent, retransmissions included."""
    lost_packets: int
    """Packets declared lost."""
    received_packets: int
    """Data packets of the peer placed in memory."""
    received_bytes: int
    """Payload of the peer placed in memory, each byte once."""
    rtt_ns: int | None
    """Smoothed round trip; None before the first sample."""
    base_rtt_ns: int | None
    """Shortest round trip; None before the first sample."""
    inflight_bytes: int
    """Bytes in flight."""
    cwnd_bytes: int
    """Its congestion window; with NSCC and equal shares that of the QP."""
    suspended: bool
    """It carries only probes."""
    slow: bool = False
    """It carries less than half of what the other planes do."""
    share_percent: int = 100
    """What it carried in the last period that compared the planes, in percent of the mean of the
    others, over all QPs to the peer; 100 before.
    """
    weight: int = 100
    """What it may carry, in percent of the plane that carries most; 0: a backup, which carries data
    only while no other plane can.
    """


class EvInfo(Struct, frozen=True):
    """Snapshot of one EV of a QP and of the path it names."""

    index: int
    """Its place in `QP.evs()`, from 0."""
    ev: int
    """The entropy value: UDP source port and flow label."""
    plane: int
    """Its plane, from 1."""
    path: str
    """Name of the path."""
    destination: str
    """Address that its packets go to."""
    usids: tuple[str, ...]
    """The uSIDs of the path; empty without SRv6."""
    segments: tuple[str, ...]
    """The SRv6 segments that hold them."""
    state: EvState
    """Its state."""
    active: bool
    """It is in rotation, not a backup."""
    sent_packets: int
    """Data packets sent on it, retransmissions included."""
    sent_bytes: int
    """Payload sent, retransmissions included."""
    lost_packets: int
    """Packets on it declared lost."""
    sent_probes: int
    """EV probes sent on it."""
    rtt_ns: int | None
    """Smoothed round trip; None before the first sample."""


class PairInfo(Struct, frozen=True):
    """Snapshot of a port of this host with one of the peer: whether they are a plane of a QP."""

    nic: str
    """Interface of this host."""
    address: str
    """Its address."""
    peer_nic: str
    """Interface of the peer, as the peer named it."""
    peer_address: str
    """Its address."""
    plane: int | None
    """The plane that the pair has in the QP; None: it has none."""
    state: PairState
    """Whether the pair is used."""
    why: str
    """Why it is not used, or what reduces it, in words; empty: all its paths carry data."""
    weight_percent: int
    """What its plane carries, in per cent of the one that carries most; 0: a backup."""
    paths: int
    """The paths (EVs) of its plane, or those that were tried."""
    answering_paths: int
    """How many of them answer."""


class QpInfo(Struct, frozen=True):
    """Snapshot of one QP. `planes` holds only the planes that the QP uses."""

    qpn: int
    """The local QP number."""
    state: QpState
    """Its state."""
    status: WcStatus
    """Why it failed; SUCCESS while it has not."""
    outstanding: int
    """Work requests that are not completed."""
    sent_packets: int
    """Data packets sent, retransmissions included."""
    retransmitted_packets: int
    """Packets sent again because they were declared lost."""
    spurious_packets: int
    """Retransmitted packets whose original had arrived."""
    first_sent_bytes: int
    """Payload of first transmissions."""
    acknowledged_bytes: int
    """Payload that the peer has acknowledged."""
    received_bytes: int
    """Payload of the peer placed in memory."""
    cwnd_bytes: int
    """Congestion windows of all planes together."""
    inflight_bytes: int
    """Bytes in flight."""
    rtt_ns: int | None
    """Smoothed over all planes; None before the first sample."""
    path_mtu: int
    """Payload of a packet at most, in bytes."""
    timeouts: int
    """Timeouts and refusals in a row."""
    peer_mpr: int
    """Window that the peer grants, in PSNs."""
    planes: tuple[PlaneInfo, ...]
    """Its planes."""
    held_by: HeldBy = HeldBy.PROGRAM
    """What keeps it from sending more."""

    @property
    def retransmitted_bytes(self) -> int:
        """Payload sent again."""
        return sum(plane.sent_bytes for plane in self.planes) - self.first_sent_bytes


def known(values: Iterable[int | None]) -> Iterator[int]:
    """The values that are not None. A round trip is None before its first sample."""
    return (value for value in values if value is not None)


class TraceEntry(Struct, frozen=True):
    """One entry of the engine's trace ring."""

    now_ns: int
    """Time on CLOCK_MONOTONIC."""
    point: str
    """Name of the trace point."""
    qpn: int
    """The QP; 0: none."""
    a: int
    """First number; csrc/core/trace.def describes its meaning for each `point`."""
    b: int
    """Second number."""
