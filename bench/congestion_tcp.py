# SPDX-License-Identifier: Apache-2.0
"""TCP flows of a scenario: kernel TCP between the addresses of two hosts in one plane."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from itertools import accumulate
from typing import Any

from bed import enlarge_buffers
from compiled import program
from end import Commands, End

from mrc.results.sim import Traffic
from mrc.sim.scenario import Scenario
from mrc.sim.traffic import Flow
from mrc.testbed.bed import Testbed

_FIRST_PORT = 5001
_PATH = 0  # the T1 on the route to addresses of a plane
_SPARE_MS = 1000  # the receiver counts for this long after the scenario


def is_possible(traffic: Traffic) -> bool:
    return traffic.paths == (_PATH,) and traffic.start_ns == 0


def prepare(bed: Testbed, flows: Sequence[Flow]) -> None:
    """The hosts of these flows."""
    for host in {host for flow in flows for host in (flow.sender, flow.receiver)}:
        enlarge_buffers(bed, host)


class TcpFlow:
    """One flow, from its first byte to the end of the scenario."""

    def __init__(self, stack: ExitStack, hosts: Commands, bed: Testbed, number: int, flow: Flow):
        self._number, self._plane = number, flow.traffic.plane
        self._until_ns = 0
        self._planes = bed.shape.planes
        self._route = [
            str(bed.shape.addresses.in_plane(host, self._plane))
            for host in (flow.sender, flow.receiver)
        ]
        words = (program("flow"), "receive", _FIRST_PORT + number, "tcp")
        self._receiver = End(hosts, flow.receiver, *words)
        stack.callback(self._receiver.close)
        self._sender = End(hosts, flow.sender, program("flow"), "send", *words[2:])
        stack.callback(self._sender.close)

    def start(self, scenario: Scenario) -> None:
        self._until_ns = scenario.until_ns
        ms = scenario.until_ns // 1_000_000
        self._receiver.start("watch", 1, ms + _SPARE_MS)
        self._sender.start("send", "cubic", "write", ms, *self._route)

    def result(self, start_ns: int) -> dict[str, Any]:
        """The flow's result in the form of a congestion_end, for its sender and receiver."""
        sent, got = self._sender.result(), self._receiver.result()
        (bins,) = got["flows"]
        width_ns, first_ns = got["width_ns"], got["start_monotonic_ns"] - start_ns
        n = (self._until_ns - first_ns) // width_ns  # later bins do not count
        samples = [
            [first_ns + (i + 1) * width_ns, total, *self._by_plane(total)]
            for i, total in enumerate(accumulate(bins[:n]))
        ]
        counts = {
            "first_ns": first_ns,
            "last_ns": first_ns + sent["ns"],
            "posted": 1,
            "completed": 0,  # the flow sends until the scenario ends
            "failed": 0,
            "sent_packets": sent["packets"],
            "retransmitted_packets": sent["retransmissions"],
            "spurious_packets": 0,
            "rtt_ns": None,
        }
        return {"sent": {str(self._number): counts}, "samples": {str(self._number): samples}}

    def _by_plane(self, total: int) -> list[int]:
        return [total if plane == self._plane else 0 for plane in range(1, self._planes + 1)]
