# SPDX-License-Identifier: Apache-2.0
"""What several results say of QPs: their settings, planes and EVs, and what arrived when."""

from __future__ import annotations

from msgspec import Struct

from mrc.events import PlaneInfo
from mrc.results.plain import KEYS, Result

_KEYS = KEYS | {"ack_timeout_exponent": "timeout", "burst_packets": "spray"}


class Settings(Result, frozen=True, kw_only=True, rename=_KEYS):
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


class Plane(PlaneInfo, frozen=True, kw_only=True):
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
