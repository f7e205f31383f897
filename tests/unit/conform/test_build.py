# SPDX-License-Identifier: Apache-2.0
"""Packets from the tables of formats.py are the golden packets."""

from __future__ import annotations

from ipaddress import ip_address

import pytest
from wire.golden import GOLDEN, Golden

from mrc.conform.packets import finished, headers
from mrc.dissect.formats import OPCODES
from mrc.dissect.packet import UdpFlow, decode


def flow_of(golden: Golden) -> UdpFlow:
    flow = golden.flow
    return UdpFlow(ip_address(flow.src), ip_address(flow.dst), flow.sport, flow.dport)


@pytest.mark.parametrize("golden", GOLDEN, ids=lambda golden: golden.name)
def test_headers__of_the_golden_packets(golden: Golden) -> None:
    """What `decode` found in a golden packet makes the same packet again."""
    flow = flow_of(golden)
    packet = decode(golden.packet, flow)
    fields = {name: value for header in packet.headers.values() for name, value in header.items()}
    kind = OPCODES[fields.pop("opcode")]
    made = headers(kind, fields)
    payload = golden.packet[len(made) : -4]
    assert finished(made + payload, flow).hex() == golden.packet.hex()


def test_headers__refuse_what_does_not_fit() -> None:
    with pytest.raises(ValueError, match="psn: 16777216 is not within"):
        headers("SACK", {"psn": 1 << 24})
    with pytest.raises(ValueError, match="ACK has no field bitmap"):
        headers("ACK", {"bitmap": 1})
