# SPDX-License-Identifier: Apache-2.0
"""tshark's RoCE dissector, which does not support MRC, agrees on the BTH and on the nesting."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import wireshark
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scapy.packet import Packet
from wire.capture import CARRIER, FLOW_LABEL, frame, write
from wire.codec import Codec, Fields, Flow
from wire.golden import GOLDEN
from wire.strategies import flows, packets

pytestmark = wireshark.required

PORT = 4971  # not RoCE's own port, so the test selects the dissector
COLUMNS = (
    "frame.protocols",
    "infiniband.bth.opcode",
    "infiniband.bth.se",
    "infiniband.bth.m",
    "infiniband.bth.padcnt",
    "infiniband.bth.tver",
    "infiniband.bth.p_key",
    "infiniband.bth.destqp",
    "infiniband.bth.a",
    "infiniband.bth.reserved7",
    "infiniband.bth.psn",
    "infiniband.vendor",
)


def ask(path: Path) -> list[list[str]]:
    """tshark's columns for every packet of a capture."""
    options = [option for column in COLUMNS for option in ("-e", column)]
    port = ("-d", f"udp.port=={PORT},infiniband")
    done = wireshark.tshark("-r", str(path), *port, "-T", "fields", *options)
    return [[plain(cell) for cell in line.split("\t")] for line in done.stdout.splitlines()]


def plain(cell: str) -> str:
    """tshark versions print a bool differently; the bytes after the BTH appear twice."""
    return {"True": "1", "False": "0"}.get(cell, cell.split(",")[-1])


def expected(fields: Fields, packet: bytes, nesting: str) -> list[str]:
    """The same columns, from the C codec."""
    bth = {name: int(fields.get(name, 0)) for name in ("se", "m", "pad", "ack_req", "rtx", "ts")}
    return [
        f"eth:ethertype:{nesting}:udp:infiniband",
        *map(str, (fields["opcode"], bth["se"], bth["m"], bth["pad"], 0, 0xFFFF)),
        f"0x{fields['dest_qpn']:06x}",
        str(bth["ack_req"]),
        str(bth["rtx"] << 5 | bth["ts"] << 4),
        str(fields.get("psn", 0)),
        packet[12:].hex(),
    ]


def to_port(flow: Flow) -> Flow:
    return Flow(flow.src, flow.dst, flow.sport, PORT)


def test_bth__golden(tmp_path: Path) -> None:
    frames = [frame(golden.packet, to_port(golden.flow)) for golden in GOLDEN]
    rows = ask(write(tmp_path / "a.pcap", frames))
    nesting = ["ip" if golden.flow.family == 4 else "ipv6" for golden in GOLDEN]
    assert rows == [
        expected(golden.fields, golden.packet, outer)
        for golden, outer in zip(GOLDEN, nesting, strict=True)
    ]


def encapsulated(packet: bytes, flow: Flow) -> Packet:
    return frame(packet, to_port(flow), via=CARRIER)


@settings(max_examples=2, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(flow=flows(), generated=st.lists(packets(), min_size=20, max_size=60))
def test_bth__any_packet_through_srv6(
    codec: Codec, tmp_path: Path, flow: Flow, generated: Sequence[Fields]
) -> None:
    data = [codec.packet(fields, to_port(flow)) for fields in generated]
    rows = ask(write(tmp_path / "a.pcap", [encapsulated(packet, flow) for packet in data]))
    inner = "ipv6:ip" if flow.family == 4 else "ipv6:ipv6"
    assert rows == [
        expected(fields, packet, inner) for fields, packet in zip(generated, data, strict=True)
    ]


def test_flow_label__is_where_the_ev_goes(tmp_path: Path) -> None:
    """The EV of mrc dissect is the source port and the low half of tshark's flow label."""
    golden = GOLDEN[0]
    path = write(tmp_path / "a.pcap", [frame(golden.packet, golden.flow)])
    columns = ("-e", "udp.srcport", "-e", "ipv6.flow")
    done = wireshark.tshark("-r", str(path), "-T", "fields", *columns)
    sport, label = (int(text, 0) for text in done.stdout.split())
    assert (sport, label) == (golden.flow.sport, FLOW_LABEL)
