# SPDX-License-Identifier: Apache-2.0
"""Chooses the window of a QP: how many PSNs may be in flight.

The receiving side grants 4096 PSNs, the most that OCP allows; this costs it three bits per PSN. The
sending side keeps 24 bytes per PSN, so it uses only as many as its links and the round trip need.
It knows the round trips from the probes of the exchange.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from mrc.limits import MPR_UNIT

LEAST = 1024
MOST = 4096
# 2048 PSNs speed up bulk transfers at MTU 1500 even with a short round trip.
LEAST_BYTES = 2_800_000
# A lost packet also blocks the window for the round trip of its retransmission.
ROUND_TRIPS = 2
# A busy host answers this much later. The window need not cover queueing delay: a smaller window
# only shortens queues.
LATE_NS = 500_000
UNKNOWN_BPS = 10_000_000_000


def psns_for(link_bps: int, rtt_ns: int, path_mtu: int) -> int:
    """The window in PSNs: a multiple of MPR_UNIT from LEAST to MOST.

    `link_bps` is the rate of all links together. `rtt_ns` is the round trip of the longest plane,
    which blocks the window longest.
    """
    covered_ns = ROUND_TRIPS * rtt_ns + LATE_NS
    window_bytes = max(link_bps * covered_ns // 8_000_000_000, LEAST_BYTES)
    units = -(-window_bytes // (path_mtu * MPR_UNIT))
    return min(max(units * MPR_UNIT, LEAST), MOST)


def links_bps(nics: Iterable[str], sysfs: Path = Path("/sys/class/net")) -> int:
    """Sum of the interfaces' rates. An interface without a known rate counts as 10 Gbit/s."""
    return sum(_link_bps(sysfs / nic / "speed") for nic in sorted(set(nics)))


def _link_bps(speed: Path) -> int:
    try:
        mbps = int(speed.read_text())
    except (OSError, ValueError):  # a virtual or wireless interface, or in another namespace
        return UNKNOWN_BPS
    return mbps * 1_000_000 if mbps > 0 else UNKNOWN_BPS
