# SPDX-License-Identifier: Apache-2.0
"""What results say of QPs: settings, and what arrived when; what a Context does right now; and what
`mrc top` prints as JSON: snapshots, and the rates between two of them.
"""

from __future__ import annotations

from typing import ClassVar

from msgspec import Struct

from mrc.events import EvInfo, PlaneInfo, QpInfo
from mrc.results import KEYS, Result

_SETTINGS_KEYS = KEYS | {"ack_timeout_exponent": "timeout", "burst_packets": "spray"}


class Settings(Result, frozen=True, kw_only=True, rename=_SETTINGS_KEYS):
    """Every parameter that affects how fast a QP is."""

    mrc_version: str
    """Version of the installed package."""
    peer: str
    """Name or address of the peer."""
    tcp_port: int
    """TCP port of the exchange."""
    udp_port: int
    """UDP port of this host's packets."""
    path_mtu: int
    """Payload of a packet at most."""
    mpr: int
    """Packets, counted by PSN, that may be in flight (maximum PSN range)."""
    sq_depth: int
    """Work requests that fit the send queue."""
    ack_timeout_exponent: int
    """Local timeout of a QP, as the exponent of 1.024 us * 2^timeout."""
    burst_packets: int
    """Packets that a burst sends on one EV."""
    cc: str
    """Congestion control."""
    plane_shares: str
    """How the planes share the load."""
    integrity: str
    """What protects the payload against corruption."""


class TransferPlane(PlaneInfo, frozen=True, kw_only=True):
    """One plane of the QPs of a transfer."""

    carried_percent: int | None
    """Payload that the plane carried, in percent of the mean of the other planes; null: these
    carried nothing.
    """


class PlaneBins(Struct, frozen=True, kw_only=True):
    """Payload that arrived by one plane."""

    plane: int
    """The plane, from 1."""
    bytes: tuple[int, ...]
    """Payload bytes of each bin."""


class Bins(Struct, frozen=True, kw_only=True):
    """Payload that arrived over time, in bins of equal width."""

    start_monotonic_ns: int
    """The start of the first bin, by CLOCK_MONOTONIC of the host that received."""
    duration_ns: int
    """Time from the start to the end."""
    width_ns: int
    """Width of a bin."""
    first_ns: int | None
    """First delivery, from the start; null: nothing arrived."""
    last_ns: int | None
    """Last delivery, from the start; null: nothing arrived."""
    longest_gap_ns: int
    """Longest time between one delivery and the next; 0 with fewer than two."""
    longest_gap_at_ns: int | None
    """Where the longest gap begins, from the start; null without a gap."""
    bytes: tuple[int, ...]
    """Payload bytes of each bin, all planes together."""
    planes: tuple[PlaneBins, ...]
    """The same for each plane."""


# ---- Snapshots -----------------------------------------------------------------------------------


class Port(Struct, frozen=True, kw_only=True):
    """A UDP port of this host in one plane."""

    plane: int
    """The plane, from 1."""
    nic: str
    """Its network interface."""
    address: str
    """Its address."""


class QpPlane(Struct, frozen=True, kw_only=True):
    """One plane of a QP, since the QP began."""

    texts_of: ClassVar = PlaneInfo

    plane: int
    suspended: bool
    slow: bool
    share_percent: int
    rtt_ns: int | None
    sent_bytes: int
    received_bytes: int
    lost_packets: int
    inflight_bytes: int


class Ev(Struct, frozen=True, kw_only=True):
    """One EV of a QP, since the QP began."""

    texts_of: ClassVar = EvInfo

    ev: int | None
    """The entropy value; null: withheld from other hosts."""
    plane: int
    path: str
    state: str
    """GOOD, SKIP, ASSUMED_BAD or DENIED."""
    active: bool
    rtt_ns: int | None
    sent_bytes: int
    lost_packets: int


class Qp(Struct, frozen=True, kw_only=True, rename=KEYS):
    """One QP, since it began."""

    texts_of: ClassVar = QpInfo

    qpn: int | None
    """Its number; null: withheld from other hosts."""
    id: str | None
    """Stands for the number on other hosts; null on this host."""
    peer: str
    """Name or address of the peer."""
    state: str
    """RESET, INIT, RTR, RTS or ERROR."""
    path_mtu: int
    outstanding: int
    cwnd_bytes: int
    inflight_bytes: int
    rtt_ns: int | None
    timeouts: int
    acknowledged_bytes: int
    received_bytes: int
    sent_packets: int
    retransmitted_packets: int
    retransmitted_bytes: int
    """Payload sent again."""
    spurious_packets: int
    planes: tuple[QpPlane, ...]
    evs: tuple[Ev, ...] | None
    """Its EVs; null: the snapshot already lists as many as it may."""


class Snapshot(Result, frozen=True, kw_only=True):
    """One endpoint."""

    host: str
    """Name of its host."""
    program: str
    """Name of its program; empty: not given."""
    pid: int
    """Its process."""
    udp_port: int | None
    """UDP port of its packets; null: withheld from other hosts."""
    monotonic_ns: int
    """When, by CLOCK_MONOTONIC of its host."""
    ports: tuple[Port, ...]
    """Its ports, one for each plane."""
    qps_total: int
    """Number of its QPs; `qps` lists at most 128."""
    qps: tuple[Qp, ...]
    """Its QPs."""
    counters: dict[str, int]
    """Counters that are not 0, by their names in counters.def."""
    drops: dict[str, int]
    """Packets dropped, by reason."""


# ---- mrc top -------------------------------------------------------------------------------------


class PlaneRates(QpPlane, frozen=True, kw_only=True):
    """One plane of a QP, with its rates during the interval."""

    sent_bits_per_second: float
    """Payload sent."""
    received_bits_per_second: float
    """Payload received."""


class QpRates(Qp, frozen=True, kw_only=True):
    """One QP, with its rates during the interval; 0 for a QP that is new."""

    acknowledged_bits_per_second: float
    """Payload that the peer acknowledged."""
    received_bits_per_second: float
    """Payload that the peer wrote here."""
    retransmitted_packets_per_second: float
    """Packets sent again."""
    planes: tuple[PlaneRates, ...]
    """Its planes."""


class Endpoint(Snapshot, frozen=True, kw_only=True):
    """One endpoint."""

    qps: tuple[QpRates, ...]
    """Its QPs."""
    counters_per_second: dict[str, float]
    """Counters that grew during the interval."""
    drops_per_second: dict[str, float]
    """Reasons for which packets were dropped during the interval."""


class Unanswered(Struct, frozen=True, kw_only=True):
    """An endpoint of this host that shows nothing of itself."""

    pid: int
    """Its process."""
    program: str
    """The name of the process; empty if it is unknown."""
    error: str
    """Why there is no snapshot."""

    def __str__(self) -> str:
        return f"{self.program or 'endpoint'}, pid {self.pid}: {self.error}"


class Top(Result, frozen=True, kw_only=True):
    """All endpoints that were found."""

    interval_seconds: float
    """Time between the two snapshots."""
    endpoints: tuple[Endpoint, ...]
    """The endpoints of this host, or the one that answered for another."""
    unanswered: tuple[Unanswered, ...] = ()
    """Endpoints of this host that did not answer, or whose answer cannot be read."""
