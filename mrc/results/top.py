# SPDX-License-Identifier: Apache-2.0
"""What `mrc top` prints as JSON: snapshots, and the rates between two of them."""

from __future__ import annotations

from msgspec import Struct

from mrc.results import snapshot
from mrc.results.plain import Result


class PlaneRates(snapshot.Plane, frozen=True, kw_only=True):
    """One plane of a QP, with its rates during the interval."""

    sent_bits_per_second: float
    """Payload sent."""
    received_bits_per_second: float
    """Payload received."""


class QpRates(snapshot.Qp, frozen=True, kw_only=True):
    """One QP, with its rates during the interval; 0 for a QP that is new."""

    acknowledged_bits_per_second: float
    """Payload that the peer acknowledged."""
    received_bits_per_second: float
    """Payload that the peer wrote here."""
    retransmitted_packets_per_second: float
    """Packets sent again."""
    planes: tuple[PlaneRates, ...]
    """Its planes."""


class Endpoint(snapshot.Snapshot, frozen=True, kw_only=True):
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
