# SPDX-License-Identifier: Apache-2.0
"""Readings that packets show, and `mrc dissect --readings`, which prints them."""

from __future__ import annotations

import io
import subprocess
import sys
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest
from printed import printed

from mrc.conform import packets
from mrc.conform.inference import PacketInference
from mrc.conform.packets import finished, headers
from mrc.conform.readings import READINGS
from mrc.dissect import vectors
from mrc.dissect.capture import ETHERNET, udp_of
from mrc.dissect.packet import UdpFlow, decode, icrc

A, B = ip_address("2001:db8::1"), ip_address("2001:db8::2")
FLOW = UdpFlow(A, B, 50000, 4791)
MARKED = UdpFlow(A, B, 50000, 4791, ce=True)
TRIMMED = UdpFlow(A, B, 50000, 4791, trimmed=True)
Sent = tuple[UdpFlow, bytes]


def packet(kind: str, flow: UdpFlow = FLOW, payload: bytes = b"", **fields: int) -> Sent:
    return flow, finished(headers(kind, fields) + payload, flow)


def shown(*sent: Sent) -> set[str]:
    traits = PacketInference()
    return {name for flow, data in sent for name in traits.shown(flow, decode(data, flow))}


def middle(*, byte_1: int) -> Sent:
    """A Middle packet with these bits in byte 1 of its BTH."""
    body = bytearray(headers("WRITE_MIDDLE", {"dma_bytes": 64}) + bytes(4))
    body[1] = byte_1
    return FLOW, finished(bytes(body), FLOW)


PROBE: dict[str, Any] = {"operation": 1, "psn": 7}
CUT = (TRIMMED, headers("WRITE_ONLY", {"dest_qpn": 0xB0001, "psn": 5})[:26])


@pytest.mark.parametrize(
    ("sent", "names"),
    [
        ((packet("ACK", UdpFlow(A, B, 50000, 4971), syndrome=0x1F),), {"C1-A", "G13-A"}),
        ((packet("ACK", syndrome=0x61),), {"C1-B"}),
        ((packet("ENDPOINT_REQUEST", operation=0),), {"C1-B", "C2-B"}),
        ((middle(byte_1=0x40),), {"C1-B", "C7-A"}),
        ((middle(byte_1=0x80),), {"C1-B", "C7-B"}),
        ((middle(byte_1=0xC0),), {"C1-B"}),
        ((packet("WRITE_ONLY", payload=bytes(4), dma_bytes=3, pad=1),), {"C1-B", "G16-A"}),
        ((packet("SACK", mark=2),), {"C1-B", "S4-B"}),
        ((packet("SACK", mark=1),), {"C1-B"}),
        ((CUT, packet("NACK", reason=1, spdcid=1, nack_psn=5)), {"C1-B", "G10-A"}),
        ((CUT, packet("NACK", reason=1, spdcid=1, nack_psn=6)), {"C1-B"}),
        ((packet("ENDPOINT_REQUEST", MARKED, **PROBE), packet("ENDPOINT_RESPONSE", **PROBE)),
         {"C1-B", "C6-A", "S8-B"}),
        ((packet("ENDPOINT_REQUEST", MARKED, **PROBE),
          packet("ENDPOINT_RESPONSE", **PROBE, mark=1)), {"C1-B", "C6-A", "S8-A"}),
    ],
)  # fmt: skip
def test_shown__by_packets(sent: tuple[Sent, ...], names: set[str]) -> None:
    assert shown(*sent) == names


@pytest.mark.parametrize("name", ["S6-A", "S6-B"])
def test_shown__what_the_icrc_covers(name: str) -> None:
    """The identification of the header is in the capture, so its ICRC can be checked both ways."""
    flow = vectors.FLOWS["v4"]
    body = headers("ACK", {"syndrome": 0x1F})
    fragment = packets.frame(flow, body + bytes(4))[14 + 4 : 14 + 8]
    check = icrc(body, flow) if name == "S6-A" else icrc(body, flow, fragment=fragment)
    found = udp_of(packets.frame(flow, body + check), ETHERNET)
    assert found is not None
    assert name in shown(found)


def test_dissect__prints_the_readings(tmp_path: Path) -> None:
    file, made = tmp_path / "a.pcap", io.BytesIO()
    sent = [packet("SACK", mark=2), packet("ENDPOINT_REQUEST", operation=0)]
    packets.write_capture(made, ((n, flow, data) for n, (flow, data) in enumerate(sent)))
    file.write_bytes(made.getvalue())
    command = [sys.executable, "-m", "mrc", "dissect", "--readings"]
    done = subprocess.run(
        [*command, "--json", str(file)], capture_output=True, check=True, text=True
    )
    found = printed("dissect --readings", done.stdout)
    assert [(one["reading"], one["packets"], one["ours"]) for one in found["readings"]] == [
        ("C1-B", 2, True), ("C2-B", 1, True), ("S4-B", 1, False),
    ]  # fmt: skip
    assert len(found["hidden"]) == len(READINGS) - 3 and "C3" in found["hidden"]
    told = subprocess.run([*command, str(file)], capture_output=True, check=True, text=True).stdout
    assert "S4-B         1 packets  ALWAYS_SKIP: sent by a criterion" in told
    wrong = subprocess.run([*command, "-i", "lo"], capture_output=True, check=False, text=True)
    assert wrong.returncode == 2 and "needs a capture in a FILE" in wrong.stderr
