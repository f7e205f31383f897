# SPDX-License-Identifier: Apache-2.0
"""What commands print of a QP: its settings, payload over time (`--bins`), and the bytes of each
plane beside the others.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from msgspec import Struct

import mrc
from mrc.aio.recording import Recording
from mrc.cli.output import version_of
from mrc.results import KEYS, Result, like
from mrc.units import counted, scaled


class Settings(Result, frozen=True, kw_only=True, rename=KEYS):
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
    """Local timeout of a QP, 1.024 us * 2^ack_timeout_exponent."""
    burst_packets: int
    """Packets that a burst sends on one EV."""
    cc: str
    """Congestion control."""
    plane_shares: str
    """How the planes share the load."""
    integrity: str
    """What protects the payload against corruption."""


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


def settings(ctx: mrc.Context, qp: mrc.QP, *, tcp_port: int) -> Settings:
    """Every parameter that affects the speed of a QP."""
    config = ctx.config
    return like(
        Settings,
        *(config.queues, config.retries, config.spraying),
        mrc_version=version_of("mrc-transport"),
        peer=qp.peer.host,
        tcp_port=tcp_port,
        udp_port=ctx.udp_port,
        path_mtu=qp.path_mtu,
        mpr=qp.mpr,
        cc=config.cc.name,
        plane_shares=config.plane_shares.name,
        integrity=config.integrity.name,
    )


def parameters(ctx: mrc.Context, qp: mrc.QP) -> str:
    """The parameters of a QP in one line, for -v."""
    config = ctx.config
    return (
        f"QP {qp.qpn:#x} to {qp.peer.host}: planes {', '.join(map(str, qp.planes))}, path MTU"
        f" {qp.path_mtu} B, window {counted(qp.mpr, 'PSN')}, cc {config.cc.name}, shares"
        f" {config.plane_shares.name}, integrity {config.integrity.name}"
    )


# ---- Goodput over time ---------------------------------------------------------------------------


def bins(recording: Recording) -> Bins:
    planes = sorted(recording.planes.items())
    return like(
        Bins,
        recording,
        planes=tuple(PlaneBins(plane=plane, bytes=tuple(each)) for plane, each in planes),
    )


def bins_lines(receiver: str, recording: Recording | Bins) -> list[str]:
    """Goodput in the bins, and the longest gap."""
    counts = recording.bytes
    if not any(counts):
        return [f"{receiver}: nothing arrived"]
    most_bps, mean_bps = (
        8e9 * count / recording.width_ns for count in (max(counts), sum(counts) / len(counts))
    )
    gap_ns, at_ns = recording.longest_gap_ns, recording.longest_gap_at_ns
    lines = [
        f"goodput at the {receiver}, {counted(len(counts), 'bin')} of"
        f" {scaled(recording.width_ns / 1e9, 's')}: {scaled(mean_bps, 'bit/s')} on average,"
        f" {scaled(most_bps, 'bit/s')} at most"
    ]
    if at_ns is not None:
        lines.append(f"longest gap {scaled(gap_ns / 1e9, 's')}, from {at_ns / 1e9:.6f} s on")
    tail_ns = recording.duration_ns - (recording.last_ns or 0)
    if tail_ns > gap_ns:
        lines.append(f"nothing arrived in the last {scaled(tail_ns / 1e9, 's')}")
    return lines


# ---- The bytes of each plane ---------------------------------------------------------------------


LEAST_BYTES = 64 << 20  # `sentence` requires this many from all planes together
LEAST_OTHER_BYTES = 8 << 20  # and this many from each plane that is not slow
SLOW_PERCENT = 50


def carried_percent(moved: Mapping[int, int]) -> dict[int, int | None]:
    """Each plane's bytes in percent of the mean of the other planes; None if that mean is 0.

    A single plane has 100.
    """
    total, others = sum(moved.values()), len(moved) - 1
    if others == 0:
        return dict.fromkeys(moved, 100)
    return {
        plane: round(100 * others * own / (total - own)) if total > own else None
        for plane, own in moved.items()
    }


def shares_text(moved: Mapping[int, int], marks: Mapping[int, str] = {}) -> str:
    """ "planes 1: 25% 2: 75%", each with its mark; empty if no plane moved bytes."""
    total = sum(moved.values())
    if total <= 0:
        return ""
    return "planes " + " ".join(
        f"{plane}: {own / total:.0%}{marks.get(plane, '')}" for plane, own in moved.items()
    )


def weight_text(weight: int) -> str:
    """ "backup" or "weight 50"; empty for a plane that carries all it can."""
    return "backup" if weight == 0 else f"weight {weight}" if weight < 100 else ""


def sentence(moved: Mapping[int, int], lost: Collection[int] = ()) -> str:
    """ "plane 2 carried 9% of the others"; empty if no plane is slow or too few bytes moved.

    Leaves out planes without any byte and those in `lost`: they were down, or have a weight.
    """
    moved = {plane: own for plane, own in moved.items() if own and plane not in lost}
    slow = {
        plane: percent
        for plane, percent in carried_percent(moved).items()
        if percent is not None and percent < SLOW_PERCENT
    }
    rest = [own for plane, own in moved.items() if plane not in slow]
    if not slow or sum(moved.values()) < LEAST_BYTES or min(rest) < LEAST_OTHER_BYTES:
        return ""
    (first, percent), *more = slow.items()
    parts = [f"plane {first} carried {percent}% of the others"]
    return ", ".join([*parts, *(f"plane {plane} {percent}%" for plane, percent in more)])
