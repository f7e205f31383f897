# SPDX-License-Identifier: Apache-2.0
"""What mrc tells its caller: completions, immediates, events and snapshots of state, all frozen."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from mrc.enums import EventReason, EvState, QpState, WarningKind, WcOpcode, WcStatus


class Completion(NamedTuple):  # made in a fifth of the time that a frozen dataclass takes
    """A work request that ended."""

    wr_id: int
    """Number of the work request in its Context."""
    qpn: int
    """Number of its QP."""
    bytes: int
    """Bytes written."""
    status: WcStatus
    """SUCCESS: anything else is raised as a CompletionError."""
    opcode: WcOpcode
    """WRITE or WRITE_IMM."""


@dataclass(frozen=True, slots=True)
class Immediate:
    """An immediate of the peer, in the order of its posting; `index` counts from 0 on its QP."""

    imm: int
    """The 32-bit immediate."""
    bytes: int
    """Bytes that arrived with it."""
    index: int
    """Counts the immediates of the QP from 0."""


@dataclass(frozen=True, slots=True)
class EvEvent:
    """An EV went to GOOD, ASSUMED_BAD or DENIED; SKIP, which lasts one turn, is not told.

    `index` is its place in `QP.evs()`, `at_ns` when the datapath told it, of CLOCK_MONOTONIC as in
    `time.monotonic_ns()`.
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
    at_ns: int = field(default=0, compare=False)
    """When, by CLOCK_MONOTONIC as in `time.monotonic_ns()`."""


@dataclass(frozen=True, slots=True)
class PlaneEvent:
    """A plane was suspended, or carries data again; `at_ns` as in EvEvent."""

    plane: int
    """The plane, from 1."""
    suspended: bool
    """True: it carries only probes. False: it carries data again."""
    reason: EventReason
    """Why it changed."""
    at_ns: int = field(default=0, compare=False)
    """When, as in EvEvent."""


@dataclass(frozen=True, slots=True)
class PlaneShareEvent:
    """A plane became slow, carrying less than half of the mean of the others, or no longer is.

    `percent` is what it carried, of that mean, in the second of two periods in a row that said so;
    a period takes 200 ms, or 8 round trips if they take longer. All QPs to the peer are summed up,
    and each has the event. A plane that all of them suspended is no longer slow; no event says so.
    `at_ns` as in EvEvent.
    """

    plane: int
    """The plane, from 1."""
    slow: bool
    """True: it became slow. False: it no longer is."""
    percent: int
    """What it carried, in percent of the mean of the others."""
    reason: EventReason
    """Why it changed."""
    at_ns: int = field(default=0, compare=False)
    """When, as in EvEvent."""


@dataclass(frozen=True, slots=True)
class PortEvent:
    """The port of a plane went down or came up: this host's (OWN_PORT) or the peer's (PEER_PORT).

    What that means for the plane comes as a PlaneEvent; `at_ns` as in EvEvent.
    """

    plane: int
    """The plane of the port, from 1."""
    up: bool
    """True: it came up. False: it went down."""
    reason: EventReason
    """OWN_PORT or PEER_PORT."""
    at_ns: int = field(default=0, compare=False)
    """When, as in EvEvent."""


@dataclass(frozen=True, slots=True)
class EventsLost:
    """`count` events that stood here are gone: the reader, or this process, was too slow.

    Those that the engine lost may have been of any QP. `QP.evs()` and `QP.query()` tell how things
    stand now.
    """

    count: int
    """How many events are missing."""


@dataclass(frozen=True, slots=True)
class QpErrorEvent:
    """The QP went to ERROR; everything outstanding was flushed."""

    status: WcStatus
    """Why it failed."""


QpEvent = EvEvent | PlaneEvent | PlaneShareEvent | PortEvent | EventsLost | QpErrorEvent


@dataclass(frozen=True, slots=True)
class ContextWarning:
    """Something that costs speed or data but stops nothing.

    `detail` is the size granted in bytes, for MEMORY_FAULT the key of the memory region, and for
    GUARD_REPLACED 0.
    """

    kind: WarningKind
    """What it warns of."""
    plane: int
    """The plane, from 1; 0: none."""
    detail: int
    """Depends on `kind`, see above."""


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """The end of an EV probe."""

    index: int
    """Place of the EV in `QP.evs()`."""
    error: int
    """0 when it was answered, else an errno value: ETIMEDOUT; EMSGSIZE or ENETUNREACH when the
    probe could not be sent; EPERM when the EV is DENIED, for nothing is sent on such an EV.
    """
    rtt_ns: int | None
    """The round trip; None without an answer."""
    ce: bool = False
    """The probe was marked by ECN on its way."""

    @property
    def answered(self) -> bool:
        """True when the path carried the probe there and the answer came back."""
        return self.error == 0


@dataclass(frozen=True, slots=True)
class PlaneInfo:
    """Snapshot of one plane of a QP."""

    plane: int
    """The plane, from 1."""
    sent_packets: int
    """Data packets sent, retransmissions included."""
    sent_bytes: int
    """Their payload."""
    lost_packets: int
    """Packets declared lost."""
    received_packets: int
    """Data packets of the peer placed in memory."""
    received_bytes: int
    """Their payload, each byte once."""
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
    """It carries less than half of what the others do; see PlaneShareEvent."""
    share_percent: int = 100
    """What it carried in the last period that compared the planes, in percent of the mean of the
    others, over all QPs to the peer; 100 before.
    """


@dataclass(frozen=True, slots=True)
class EvInfo:
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
    """Their payload."""
    lost_packets: int
    """Packets on it declared lost."""
    sent_probes: int
    """EV probes sent on it."""
    rtt_ns: int | None
    """Smoothed round trip; None before the first sample."""


@dataclass(frozen=True, slots=True)
class QpInfo:
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
    """Of these, so many whose original had arrived."""
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
    """Its planes, and no others."""

    @property
    def retransmitted_bytes(self) -> int:
        """Payload sent again."""
        return sum(plane.sent_bytes for plane in self.planes) - self.first_sent_bytes


_QP_SUMS = (
    "outstanding", "sent_packets", "retransmitted_packets", "spurious_packets", "first_sent_bytes",
    "acknowledged_bytes", "received_bytes", "cwnd_bytes", "inflight_bytes", "timeouts", "peer_mpr",
)  # fmt: skip
_PLANE_SUMS = (
    "sent_packets", "sent_bytes", "lost_packets", "received_packets", "received_bytes",
    "inflight_bytes", "cwnd_bytes",
)  # fmt: skip


def sum_of(infos: Sequence[QpInfo]) -> QpInfo:
    """Several QPs between the same hosts as if they were one, which is named after the first."""
    planes: dict[int, list[PlaneInfo]] = {}
    for plane in (plane for info in infos for plane in info.planes):
        planes.setdefault(plane.plane, []).append(plane)
    sums = {name: sum(getattr(info, name) for info in infos) for name in _QP_SUMS}
    return replace(
        infos[0],
        **sums,
        rtt_ns=max(known(info.rtt_ns for info in infos), default=None),
        path_mtu=min(info.path_mtu for info in infos),
        planes=tuple(_plane_sum(parts) for _, parts in sorted(planes.items())),
    )


def _plane_sum(parts: Sequence[PlaneInfo]) -> PlaneInfo:
    sums = {name: sum(getattr(part, name) for part in parts) for name in _PLANE_SUMS}
    return replace(
        parts[0],
        **sums,
        rtt_ns=max(known(part.rtt_ns for part in parts), default=None),
        base_rtt_ns=min(known(part.base_rtt_ns for part in parts), default=None),
        suspended=all(part.suspended for part in parts),
        slow=all(part.slow for part in parts),
        share_percent=sum(part.share_percent for part in parts) // len(parts),
    )


def known(values: Iterable[int | None]) -> Iterator[int]:
    """Those that are not None, as round trips are before the first sample."""
    return (value for value in values if value is not None)


@dataclass(frozen=True, slots=True)
class TraceEntry:
    """One entry of the engine's trace ring."""

    now_ns: int
    """When, by CLOCK_MONOTONIC."""
    point: str
    """Name of the trace point."""
    qpn: int
    """The QP; 0: none."""
    a: int
    """First number; its meaning follows from `point`, see csrc/core/trace.def."""
    b: int
    """Second number."""
