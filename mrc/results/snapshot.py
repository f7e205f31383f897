# SPDX-License-Identifier: Apache-2.0
"""What a Context does right now: its QPs with their planes and EVs, counters and drops."""

from __future__ import annotations

from dataclasses import dataclass

from msgspec import Struct

from mrc.results.plain import Result


class Port(Struct, frozen=True, kw_only=True):
    """A UDP port of this host in one plane."""

    plane: int
    """The plane, from 1."""
    nic: str
    """Its network interface."""
    address: str
    """Its address."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plane:
    """One plane of a QP, since the QP began."""

    plane: int
    """The plane, from 1."""
    suspended: bool
    """It carries only probes."""
    slow: bool
    """It carries less than half of what the other planes do."""
    share_percent: int
    """What it carried, in percent of the mean of the other planes, as last compared."""
    rtt_ns: int | None
    """Smoothed round trip; null before the first sample."""
    sent_bytes: int
    """Payload sent, retransmissions included."""
    received_bytes: int
    """Payload of the peer placed in memory, each byte once."""
    lost_packets: int
    """Packets declared lost."""
    inflight_bytes: int
    """Bytes in flight."""


class Ev(Struct, frozen=True, kw_only=True):
    """One EV of a QP, since the QP began."""

    ev: int | None
    """The entropy value; null: withheld from other hosts."""
    plane: int
    """Its plane, from 1."""
    path: str
    """Name of its path."""
    state: str
    """GOOD, SKIP, ASSUMED_BAD or DENIED."""
    active: bool
    """It is in rotation, not a backup."""
    rtt_ns: int | None
    """Smoothed round trip; null before the first sample."""
    sent_bytes: int
    """Payload sent, retransmissions included."""
    lost_packets: int
    """Packets declared lost."""


class Qp(Struct, frozen=True, kw_only=True):
    """One QP, since it began."""

    qpn: int | None
    """Its number; null: withheld from other hosts."""
    id: str | None
    """Stands for the number on other hosts; null on this host."""
    peer: str
    """Name or address of the peer."""
    state: str
    """RESET, INIT, RTR, RTS or ERROR."""
    path_mtu_bytes: int
    """Payload of a packet at most."""
    outstanding: int
    """Work requests that are not completed."""
    cwnd_bytes: int
    """Congestion windows of all planes together."""
    inflight_bytes: int
    """Bytes in flight."""
    rtt_ns: int | None
    """Smoothed over all planes; null before the first sample."""
    timeouts: int
    """Timeouts and refusals in a row."""
    acknowledged_bytes: int
    """Payload that the peer has acknowledged."""
    received_bytes: int
    """Payload of the peer placed in memory."""
    sent_packets: int
    """Data packets sent, retransmissions included."""
    retransmitted_packets: int
    """Packets sent again because they were declared lost."""
    retransmitted_bytes: int
    """Payload sent again."""
    spurious_packets: int
    """Retransmitted packets whose original had arrived."""
    planes: tuple[Plane, ...]
    """Its planes."""
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
