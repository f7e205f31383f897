# SPDX-License-Identifier: Apache-2.0
"""What `mrc demo` prints as JSON."""

from __future__ import annotations

from msgspec import Struct

from mrc.results.plain import Result
from mrc.transfer.results import Transfer


class GoodputBin(Struct, frozen=True, kw_only=True):
    """Goodput at one time."""

    seconds: float
    """Begin of the bin, from the start of the transfer."""
    bits_per_second: float
    """Payload bits that arrived in the bin, divided by its width."""


class Demo(Result, frozen=True, kw_only=True):
    """A file crossed a test bed; one plane was silent for a while."""

    identical: bool
    """The bytes that arrived are those that were sent."""
    recovery_seconds: float | None
    """From the fault until goodput is back at `recovered_share`; 0: it never fell below; null: it
    stayed below.
    """
    below_seconds: float
    """Time that goodput was below `recovered_share`, during the fault."""
    goodput_before_bits_per_second: float
    """Goodput before the fault."""
    goodput_after_bits_per_second: float
    """Goodput during the fault, once it has settled."""
    capacity_bits_per_second: float
    """Payload that all planes can carry."""
    surviving_capacity_bits_per_second: float
    """Payload that all planes but one can carry."""
    plane_capacity_bits_per_second: float
    """Payload that one plane can carry."""
    wire_overhead_bytes: int
    """Bytes of each packet on a link beside its payload."""
    recovered_share: float
    """Part of the surviving capacity at which goodput counts as recovered."""
    settle_seconds: float
    """Time after start and fault that the goodputs leave out."""
    window_seconds: float
    """Window over which goodput is averaged."""
    bin_seconds: float
    """Width of the bins of `goodput`."""
    faulty_plane: int
    """The plane that fell silent."""
    failed_after_seconds: float
    """When the plane fell silent, from the start."""
    healed_after_seconds: float
    """When the plane was healed, or the transfer ended before that, from the start."""
    seconds: float
    """Duration of the transfer."""
    processor_share: float = 1.0
    """The part of the processors' time that programs got before or after; below 0.9 the machine was
    busy, and the figures are lower for it.
    """
    sent_packets: int
    """Data packets sent, retransmissions included."""
    retransmitted_packets: int
    """Packets sent again because they were declared lost."""
    name: str
    """Name of the test bed."""
    host_rate_bits_per_second: int
    """Rate of a host's link in each plane."""
    planes: int
    """Number of planes."""
    t1: int
    """T1s of each plane."""
    bytes: int
    """Size of the file."""
    seed: int
    """Seed of the file's random bytes."""
    goodput: tuple[GoodputBin, ...]
    """Goodput at the receiver over time."""
    sender: Transfer
    """What `mrc send` printed."""
    receiver: Transfer
    """What `mrc recv` printed."""
