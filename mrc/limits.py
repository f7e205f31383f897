# SPDX-License-Identifier: Apache-2.0
"""Limits and defaults: those of csrc/mrc.h, which a test compares with C, and of Python alone."""

from __future__ import annotations

UDP_PORT = 4791  # default UDP destination port
DSCP_TRIMMED = 7  # default code points of packets trimmed by a switch, and by the last one
DSCP_TRIMMED_LAST = 11
MAX_PORTS = 32  # per Context; one port per plane
MAX_EVS = 1024  # per QP
MAX_REDUNDANT = 65536  # bytes of a redundant write
MAX_PEER_SOURCES = 256  # source addresses and UDP ports (pairs) of one peer
MAX_BURST_PACKETS = 64
MIN_MTU = 256  # bytes of payload in a packet
MAX_MTU = 16384
MPR_UNIT = 128  # the window in PSNs is a multiple of this

# Limits of a CC profile; fractions are in units of CC_UNIT.
CC_UNIT = 1_000_000
CC_BASE_RTT_NS = 100_000  # default
CC_MIN_BASE_RTT_NS = 1000
CC_MAX_NS = 1_000_000_000
CC_MAX_BPS = 10_000_000_000_000
CC_MAX_BYTES = 1 << 30
CC_MAX_QA_GATE = 16
CC_MAX_FI_SCALE = 1_000_000_000

# Of Python alone.
MAX_MPR = 4096  # PSNs that a host grants at most, as OCP allows
MAX_ENGINES = 64  # per Context
MAX_BINS = 1 << 16  # of a recording; one that needs more gets bins of twice the width
MIN_BIN_NS = 1000
