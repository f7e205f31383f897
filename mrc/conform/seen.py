# SPDX-License-Identifier: Apache-2.0
"""A datagram that the judge sent or received."""

from __future__ import annotations

from msgspec import Struct

from mrc.dissect.packet import Flow, Packet


class Seen(Struct):
    """One datagram."""

    at_ns: int
    """Since the epoch."""
    flow: Flow
    payload: bytes
    packet: Packet
    sent: bool
    """By the judge."""
    same_ev: bool = False
    """Whether its PSN came on the same EV before."""
    after_mark: int = 0
    """It is the n-th packet on its EV since a mark of the judge for that EV; 0: there was none."""
