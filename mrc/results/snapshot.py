# SPDX-License-Identifier: Apache-2.0
"""What a Context does right now: its QPs with their planes and EVs, counters and drops."""

from __future__ import annotations

from typing import ClassVar

from msgspec import Struct

from mrc.events import EvInfo, PlaneInfo, QpInfo
from mrc.results.plain import KEYS, Result


class Port(Struct, frozen=True, kw_only=True):
    """A UDP port of this host in one plane."""

    plane: int
    """The plane, from 1."""
    nic: str
    """Its network interface."""
    address: str
    """Its address."""


class Plane(Struct, frozen=True, kw_only=True):
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
    planes: tuple[Plane, ...]
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
