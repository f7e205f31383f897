# SPDX-License-Identifier: Apache-2.0
"""What one test does: agreed by both ends before it starts."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from enum import StrEnum
from typing import Any

from mrc.aio.recorder import MIN_WIDTH_NS
from mrc.errors import ArgumentError, ProtocolError
from mrc.exchange.foreign import shown
from mrc.typed import take

MAX_QPS = 256
MAX_DEPTH = 1024
MAX_SIZE = 1 << 30
MAX_SECONDS = 86400.0
MAX_BIN_NS = 10**10
MEMORY_BYTES = 64 << 20  # of writes with places of their own; more writes in flight share places


class Direction(StrEnum):
    """Who writes: the client, the server, or both."""

    FORWARD = "forward"
    REVERSE = "reverse"
    BOTH = "both"


class Pattern(StrEnum):
    """STREAM keeps writes in flight; PING_PONG has one WRITE_IMM answered by another."""

    STREAM = "stream"
    PING_PONG = "ping-pong"


@dataclass(frozen=True, slots=True)
class Plan:
    """The parameters of one test. Raises ArgumentError for what cannot be done."""

    pattern: Pattern = Pattern.STREAM
    direction: Direction = Direction.FORWARD
    size: int = 1 << 20  # bytes of a message
    qps: int = 1
    depth: int = 8  # writes in flight on each QP
    seconds: float = 10.0  # 0: until `total_bytes` are written
    total_bytes: int = 0  # that each writing end writes; 0: as long as `seconds` says
    omit_seconds: float = 0.0  # at the start, and not counted
    rate_bits_per_second: float = 0.0  # that a writing end does not exceed; 0: no limit
    bin_ns: int = 0  # width of the bins in which both ends record what arrives; 0: they do not

    def __post_init__(self) -> None:
        _check("size", self.size, 0, MAX_SIZE)
        _check("qps", self.qps, 1, MAX_QPS)
        _check("depth", self.depth, 1, MAX_DEPTH)
        _check("seconds", self.seconds, 0, MAX_SECONDS)
        _check("total_bytes", self.total_bytes, 0, 1 << 62)
        _check("omit_seconds", self.omit_seconds, 0, MAX_SECONDS)
        _check("rate_bits_per_second", self.rate_bits_per_second, 0, 1e15)
        _check("bin_ns", self.bin_ns, MIN_WIDTH_NS if self.bin_ns else 0, MAX_BIN_NS)
        if (self.seconds > 0) == (self.total_bytes > 0):
            raise ArgumentError("seconds, total_bytes: one of them ends a test")
        if self.total_bytes and self.size == 0:
            raise ArgumentError("total_bytes: is never reached by messages without bytes")
        if self.total_bytes and self.omit_seconds:
            raise ArgumentError("omit_seconds: goes with seconds, not with total_bytes")

    @property
    def client_writes(self) -> bool:
        """Whether the client posts writes of its own accord."""
        return self.direction is not Direction.REVERSE

    @property
    def server_writes(self) -> bool:
        """Whether the server does."""
        return self.direction is not Direction.FORWARD

    @property
    def client_receives(self) -> bool:
        """Whether payload arrives at the client."""
        return self.server_writes or self.pattern is Pattern.PING_PONG

    @property
    def server_receives(self) -> bool:
        """Whether payload arrives at the server."""
        return self.client_writes or self.pattern is Pattern.PING_PONG

    @property
    def places(self) -> int:
        """Writes that have a place of their own in memory."""
        return max(1, min(self.qps * self.depth, MEMORY_BYTES // max(1, self.size)))

    @property
    def memory_bytes(self) -> int:
        """Bytes that each end registers, as source and as target."""
        return max(1, self.places * self.size)

    def to_json(self) -> dict[str, Any]:
        """The form in which it travels, and in which it is reported."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: object) -> Plan:
        """The inverse; raises ProtocolError."""
        try:
            told = take(value, dict[str, Any])
            if missing := [each.name for each in fields(cls) if each.name not in told]:
                raise ValueError(f"{missing[0]}: is missing")
            return take(told, cls)
        except ValueError as error:
            why = shown(str(error))
            raise ProtocolError(f"the peer sent a plan that cannot be: {why}") from error


def _check(name: str, value: float, low: float, high: float) -> None:
    fractions = ("seconds", "omit_seconds", "rate_bits_per_second")
    whole = not isinstance(value, float) or name in fractions
    if isinstance(value, bool) or not whole or not low <= value <= high:
        raise ArgumentError(f"{name}: {shown(value, 40)} is not within {low:g}..{high:g}")
