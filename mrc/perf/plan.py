# SPDX-License-Identifier: Apache-2.0
"""The plan of one test. The client sends it to the server before the test starts."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from msgspec import Struct, structs

from mrc.aio.recording import MIN_WIDTH_NS
from mrc.connect.parse import shown
from mrc.errors import ArgumentError, ProtocolError
from mrc.typed import take
from mrc.units import digits

MAX_QPS = 256
MAX_DEPTH = 1024
MAX_SIZE = 1 << 30
MAX_SECONDS = 86400.0
MAX_BIN_NS = 10**10
MEMORY_BYTES = 64 << 20  # limit of the places for writes; further writes in flight share places


class Direction(StrEnum):
    """The writing ends: the client, the server, or both."""

    FORWARD = "forward"
    REVERSE = "reverse"
    BOTH = "both"


class Pattern(StrEnum):
    """STREAM keeps writes in flight; PING_PONG answers each WRITE_IMM with another."""

    STREAM = "stream"
    PING_PONG = "ping-pong"


class Plan(Struct, frozen=True):
    """The parameters of one test. Raises ArgumentError for an invalid one."""

    pattern: Pattern = Pattern.STREAM
    direction: Direction = Direction.FORWARD
    size: int = 1 << 20  # bytes of a message
    qps: int = 1
    depth: int = 8  # writes in flight on each QP
    seconds: float = 10.0  # duration; 0: until `total_bytes` are written
    total_bytes: int = 0  # bytes that each writing end writes; 0: `seconds` ends the test
    omit_seconds: float = 0.0  # run before `seconds` begin, and not counted
    rate_bits_per_second: float = 0.0  # limit of each writing end; 0: no limit
    bin_ns: int = 0  # both ends record the bytes received in bins of this width; 0: no recording

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
            raise ArgumentError("seconds, total_bytes: exactly one of them must be above 0")
        if self.size == 0 and (self.total_bytes or self.pattern is Pattern.STREAM):
            raise ArgumentError(
                "size: messages of 0 bytes are only for ping-pong (--lat) with a time"
            )
        if self.total_bytes and self.omit_seconds:
            raise ArgumentError("omit_seconds: requires seconds, not total_bytes")

    @property
    def client_writes(self) -> bool:
        """Whether the client posts writes, apart from answers."""
        return self.direction is not Direction.REVERSE

    @property
    def server_writes(self) -> bool:
        """Whether the server posts writes, apart from answers."""
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
        """Number of places in memory that writes use in turn."""
        return max(1, min(self.qps * self.depth, MEMORY_BYTES // max(1, self.size)))

    @property
    def memory_bytes(self) -> int:
        """Bytes of the source and of the target that each end registers."""
        return max(1, self.places * self.size)

    def to_dict(self) -> dict[str, Any]:
        """The plan as plain data, for messages and reports."""
        return structs.asdict(self)

    @classmethod
    def from_dict(cls, value: object) -> Plan:
        """The inverse of `to_dict`; raises ProtocolError."""
        try:
            told = take(value, dict[str, Any])
            if missing := [each.name for each in structs.fields(cls) if each.name not in told]:
                raise ValueError(f"{missing[0]}: is missing")
            return take(told, cls)
        except ValueError as error:
            why = shown(str(error))
            raise ProtocolError(f"the peer sent an invalid plan: {why}") from error


def _check(name: str, value: float, low: float, high: float) -> None:
    fractions = ("seconds", "omit_seconds", "rate_bits_per_second")
    whole = not isinstance(value, float) or name in fractions
    if isinstance(value, bool) or not whole or not low <= value <= high:
        raise ArgumentError(
            f"{name}: {shown(value, 40)} is not within {digits(low)}..{digits(high)}"
        )
