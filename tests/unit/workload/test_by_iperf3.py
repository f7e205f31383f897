# SPDX-License-Identifier: Apache-2.0
"""What iperf3 prints."""

from __future__ import annotations

import socket
from typing import Any

from mrc.workload import transports


def test_samples__of_a_server() -> None:
    intervals = [{"sum": {"end": 0.1, "bytes": 30}}, {"sum": {"end": 0.15, "bytes": 12}}]
    told: dict[str, Any] = {"intervals": intervals, "end": {}}
    assert transports._iperf3_samples(told) == [(0, 0), (100_000_000, 30), (150_000_000, 42)]
    told["end"] = {"sum_received": {"seconds": 0.14, "bytes": 50}}
    assert transports._iperf3_samples(told)[-1] == (150_000_001, 50)
    assert transports._iperf3_samples({"error": "no route"}) == [(0, 0)]


def test_listens__when_the_port_is_open() -> None:
    with socket.socket(socket.AF_INET6) as server:
        server.bind(("::", 0))
        port = server.getsockname()[1]
        assert not transports._listens(port)
        server.listen()
        assert transports._listens(port)
