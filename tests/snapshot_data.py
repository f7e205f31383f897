# SPDX-License-Identifier: Apache-2.0
"""A snapshot of an endpoint, for tests of what shows it."""

from __future__ import annotations

from typing import Any

SNAPSHOT: dict[str, Any] = {
    "schema": 1,
    "host": "h0",
    "program": "mrc send",
    "pid": 7,
    "udp_port": 4791,
    "monotonic_ns": 10**9,
    "ports": [{"plane": 1, "nic": "p1", "address": "fd00::1"}],
    "qps_total": 1,
    "qps": [
        {
            "qpn": 0x1234,
            "id": None,
            "peer": "h1",
            "state": "RTS",
            "path_mtu_bytes": 8844,
            "outstanding": 3,
            "cwnd_bytes": 1 << 20,
            "inflight_bytes": 512,
            "rtt_ns": 250_000,
            "timeouts": 0,
            "acknowledged_bytes": 1000,
            "received_bytes": 0,
            "sent_packets": 10,
            "retransmitted_packets": 1,
            "retransmitted_bytes": 100,
            "spurious_packets": 0,
            "planes": [
                {
                    "plane": 1,
                    "suspended": True,
                    "slow": False,
                    "share_percent": 100,
                    "rtt_ns": None,
                    "sent_bytes": 1100,
                    "received_bytes": 0,
                    "lost_packets": 1,
                    "inflight_bytes": 512,
                }
            ],
            "evs": [
                {
                    "ev": 1,
                    "plane": 1,
                    "path": "t1:1.0",
                    "state": "ASSUMED_BAD",
                    "active": True,
                    "rtt_ns": None,
                    "sent_bytes": 1100,
                    "lost_packets": 1,
                }
            ],
        }
    ],
    "counters": {"TIMEOUTS": 2},
    "drops": {"SHORT": 3},
}
