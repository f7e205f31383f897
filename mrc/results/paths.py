# SPDX-License-Identifier: Apache-2.0
"""What `mrc paths` prints as JSON."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct, field

from mrc.events import EvInfo, PlaneInfo
from mrc.results.plain import KEYS, Result


class Probe(Struct, frozen=True, kw_only=True):
    """An EV probe of full size."""

    answered: bool
    """The path carried the probe there and the answer came back."""
    rtt_ns: int | None
    """The round trip; null without an answer."""
    ce: bool | None
    """The probe was marked by ECN on its way; null without an answer."""


class Quality(Struct, frozen=True, kw_only=True, rename=KEYS):
    """What trains of full-size probes show about a path, during a measurement."""

    sent: int = field(name="sent_probes")
    """Probes sent."""
    lost: int = field(name="lost_probes")
    """Probes without an answer; the answer may have been lost, too."""
    loss: float = field(name="loss_share")
    """The lost ones as a part of all, from 0 to 1."""
    shortest_ns: int | None
    """Shortest round trip; null without an answer."""
    extra_delay_ns: int | None
    """By how much the way to the peer takes longer than on the best path of the plane: the
    difference of the shortest round trips, since answers return on any path."""
    jitter_ns: int | None
    """Mean difference of successive round trips; null below two answers."""
    reordered: int = field(name="reordered_probes")
    """Answers that came after the answer to a later probe of the path."""


class Suspect(Struct, frozen=True, kw_only=True):
    """Links of which one may be at fault: the paths do not tell them apart."""

    links: tuple[str, ...]
    """The links, named for people."""
    failed: int
    """Failed paths over them."""
    working: int
    """Paths over them that work. Above 0 the fault hits only some packets."""


class ProbedEv(EvInfo, frozen=True, kw_only=True):
    """One EV and its path."""

    state: Literal["GOOD", "SKIP", "ASSUMED_BAD", "DENIED", "NO_ANSWER"]  # type: ignore[assignment]
    """Its state. NO_ANSWER: the QP has it as GOOD or SKIP, but no answer came to two probes."""
    probe: Probe | None
    """What the last probe found; null without --probe, --watch and --check."""
    quality: Quality | None
    """Null without --measure and --locate, and of a DENIED path."""


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
    suspects: tuple[Suspect, ...]
    """Links that may be at fault, the likeliest first; empty without --locate."""
