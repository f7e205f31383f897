# SPDX-License-Identifier: Apache-2.0
"""How many PSNs a QP may have under way: as many as the links carry in the round trips that a
packet may take to be acknowledged.

The receiving side grants all that OCP allows, which costs it three bits for each PSN. The sending
side, which keeps 24 bytes for each, takes from that what its links and the way call for: it has
measured the round trips by then, with the probes of the exchange.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from mrc.limits import MPR_UNIT

LEAST = 1024
MOST = 4096
# Bulk at MTU 1500 gains from 2048 PSNs even where the way is short.
LEAST_BYTES = 2_800_000
# A packet that is lost holds the window for the round trip of its retransmission too.
ROUND_TRIPS = 2
# A busy host answers so much later. Queues need no room: a window that ends them sooner is enough.
LATE_NS = 500_000
UNKNOWN_BPS = 10_000_000_000


def psns_for(link_bps: int, rtt_ns: int, path_mtu: int) -> int:
    """PSNs of a window: a multiple of MPR_UNIT from LEAST to MOST.

    `link_bps` is the rate of all links together, `rtt_ns` the round trip by the longest plane, from
    which the window is held up.
    """
    covered_ns = ROUND_TRIPS * rtt_ns + LATE_NS
    window_bytes = max(link_bps * covered_ns // 8_000_000_000, LEAST_BYTES)
    units = -(-window_bytes // (path_mtu * MPR_UNIT))
    return min(max(units * MPR_UNIT, LEAST), MOST)


def links_bps(nics: Iterable[str], sysfs: Path = Path("/sys/class/net")) -> int:
    """The rate of some interfaces together. One that does not know its own counts as 10 Gbit/s."""
    return sum(_link_bps(sysfs / nic / "speed") for nic in sorted(set(nics)))


def _link_bps(speed: Path) -> int:
    try:
        mbps = int(speed.read_text())
    except (OSError, ValueError):  # a virtual or wireless one, or of another namespace
        return UNKNOWN_BPS
    return mbps * 1_000_000 if mbps > 0 else UNKNOWN_BPS
