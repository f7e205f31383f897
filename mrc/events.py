# SPDX-License-Identifier: Apache-2.0
"""What mrc tells its caller: completions, immediates, events and snapshots of state, all frozen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from mrc.enums import EventReason, EvState, QpState, WarningKind, WcOpcode, WcStatus


class Completion(NamedTuple):  # made in a fifth of the time that a frozen dataclass takes
    """A work request that ended."""

    wr_id: int
    qpn: int
    bytes: int
    status: WcStatus
    opcode: WcOpcode


@dataclass(frozen=True, slots=True)
class Immediate:
    """An immediate of the peer, in the order of its posting; `index` counts from 0 on its QP."""

    imm: int
    bytes: int
    index: int


@dataclass(frozen=True, slots=True)
class EvEvent:
    """An EV went to GOOD, ASSUMED_BAD or DENIED; SKIP, which lasts one turn, is not told.

    `index` is its place in `QP.evs()`, `at_ns` when the datapath told it, of CLOCK_MONOTONIC as in
    `time.monotonic_ns()`.
    """

    index: int
    plane: int
    path: str
    state: EvState
    reason: EventReason
    at_ns: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class PlaneEvent:
    """A plane was suspended, or carries data again; `at_ns` as in EvEvent."""

    plane: int
    suspended: bool
    reason: EventReason
    at_ns: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class PlaneShareEvent:
    """A plane became slow, carrying less than half of the mean of the others, or no longer is.

    `percent` is what it carried, of that mean, in the second of two periods in a row that said so;
    a period takes 200 ms, or 8 round trips if they take longer. All QPs to the peer are summed up,
    and each has the event. A plane that all of them suspended is no longer slow; no event says so.
    `at_ns` as in EvEvent.
    """

    plane: int
    slow: bool
    percent: int
    reason: EventReason
    at_ns: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class PortEvent:
    """The port of a plane went down or came up: this host's (OWN_PORT) or the peer's (PEER_PORT).

    What that means for the plane comes as a PlaneEvent; `at_ns` as in EvEvent.
    """

    plane: int
    up: bool
    reason: EventReason
    at_ns: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class EventsLost:
    """`count` events that stood here are gone: the reader, or this process, was too slow.

    Those that the engine lost may have been of any QP. `QP.evs()` and `QP.query()` tell how things
    stand now.
    """

    count: int


@dataclass(frozen=True, slots=True)
class QpErrorEvent:
    """The QP went to ERROR; everything outstanding was flushed."""

    status: WcStatus


QpEvent = EvEvent | PlaneEvent | PlaneShareEvent | PortEvent | EventsLost | QpErrorEvent


@dataclass(frozen=True, slots=True)
class ContextWarning:
    """Something that costs speed or data but stops nothing.

    `detail` is the size granted in bytes, for MEMORY_FAULT the key of the memory region, and for
    GUARD_REPLACED 0.
    """

    kind: WarningKind
    plane: int
    detail: int


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """The end of an EV probe.

    `error` is 0 when it was answered, or an errno value: ETIMEDOUT; EMSGSIZE and ENETUNREACH when
    it could not be sent; EPERM when the EV is DENIED, on which nothing is sent. `rtt_ns` is 0
    without an answer; `ce` says that the probe met congestion on its way.
    """

    index: int
    error: int
    rtt_ns: int
    ce: bool = False

    @property
    def answered(self) -> bool:
        """True when the path carried the probe there and the answer came back."""
        return self.error == 0


@dataclass(frozen=True, slots=True)
class PlaneInfo:
    """Snapshot of one plane of a QP. Round trips are -1 before the first sample.

    `packets` and `bytes` are what was sent there, `packets_received` and `bytes_received` what the
    peer wrote that came in by it, each byte once. `share_percent` is what the plane
    carried, of the mean of the other planes, in the last period that compared them, over all QPs to
    the peer; 100 before. `slow` says that it stays below half; see PlaneShareEvent.
    """

    plane: int
    packets: int
    bytes: int
    lost: int
    packets_received: int
    bytes_received: int
    rtt_ns: int
    base_rtt_ns: int
    inflight_bytes: int
    cwnd_bytes: int  # its window; with NSCC and equal shares that of the QP
    suspended: bool
    slow: bool = False
    share_percent: int = 100


@dataclass(frozen=True, slots=True)
class EvInfo:
    """Snapshot of one EV of a QP and of the path it names."""

    index: int
    ev: int
    plane: int
    path: str
    destination: str
    usids: tuple[str, ...]
    segments: tuple[str, ...]
    state: EvState
    active: bool
    packets: int
    bytes: int
    lost: int
    probes: int
    rtt_ns: int


@dataclass(frozen=True, slots=True)
class QpInfo:
    """Snapshot of one QP. `planes` holds only the planes that the QP uses."""

    qpn: int
    state: QpState
    status: WcStatus
    outstanding: int
    packets_sent: int
    packets_retransmitted: int
    packets_spurious: int
    bytes_sent: int
    bytes_acked: int
    bytes_received: int
    cwnd_bytes: int
    inflight_bytes: int
    rtt_ns: int
    path_mtu: int
    timeouts: int
    peer_mpr: int
    planes: tuple[PlaneInfo, ...]


_QP_SUMS = (
    "outstanding", "packets_sent", "packets_retransmitted", "packets_spurious", "bytes_sent",
    "bytes_acked", "bytes_received", "cwnd_bytes", "inflight_bytes", "timeouts", "peer_mpr",
)  # fmt: skip
_PLANE_SUMS = (
    "packets", "bytes", "lost", "packets_received", "bytes_received", "inflight_bytes",
    "cwnd_bytes",
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
        rtt_ns=max(info.rtt_ns for info in infos),
        path_mtu=min(info.path_mtu for info in infos),
        planes=tuple(_plane_sum(parts) for _, parts in sorted(planes.items())),
    )


def _plane_sum(parts: Sequence[PlaneInfo]) -> PlaneInfo:
    sums = {name: sum(getattr(part, name) for part in parts) for name in _PLANE_SUMS}
    bases = [part.base_rtt_ns for part in parts if part.base_rtt_ns >= 0]
    return replace(
        parts[0],
        **sums,
        rtt_ns=max(part.rtt_ns for part in parts),
        base_rtt_ns=min(bases, default=-1),
        suspended=all(part.suspended for part in parts),
        slow=all(part.slow for part in parts),
        share_percent=sum(part.share_percent for part in parts) // len(parts),
    )


@dataclass(frozen=True, slots=True)
class TraceEntry:
    """One entry of the engine's trace ring."""

    now_ns: int
    point: str
    qpn: int
    a: int
    b: int
