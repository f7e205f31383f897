# SPDX-License-Identifier: Apache-2.0
"""What `mrc paths` prints as JSON."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from mrc.events import EvInfo, PlaneInfo
from mrc.results.plain import Result


class Probe(Struct, frozen=True, kw_only=True):
    """An EV probe of full size."""

    answered: bool
    """The path carried the probe there and the answer came back."""
    rtt_ns: int | None
    """The round trip; null without an answer."""
    ce: bool | None
    """The probe was marked by ECN on its way; null without an answer."""


class ProbedEv(EvInfo, frozen=True, kw_only=True):
    """One EV and its path."""

    state: Literal["GOOD", "SKIP", "ASSUMED_BAD", "DENIED", "NO_ANSWER"]  # type: ignore[assignment]
    """Its state. NO_ANSWER: the QP has it as GOOD or SKIP, but no answer came to two probes."""
    probe: Probe | None
    """What the last probe found; null without --probe, --watch and --check."""


class Paths(Result, frozen=True, kw_only=True):
    """The paths to a peer."""

    peer: str
    """Name or address of the peer."""
    tcp_port: int
    """TCP port of the exchange."""
    udp_port: int
    """UDP port of this host's packets."""
    path_mtu_bytes: int
    """Payload of a packet at most."""
    planes: tuple[PlaneInfo, ...]
    """The planes of the QP."""
    evs: tuple[ProbedEv, ...]
    """Its EVs, one for each path."""
    missing: tuple[str, ...]
    """Why configured ports of this host, or interfaces of -B, have no path: one text for each."""
