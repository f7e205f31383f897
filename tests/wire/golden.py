# SPDX-License-Identifier: Apache-2.0
"""What the golden packets hold: every kind of MRC packet; their bytes are in
mrc/dissect/packets.txt. Captures of MRC packets, for the tools that read them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from scapy.layers.inet import IP, UDP
from scapy.layers.inet6 import IPv6
from scapy.layers.l2 import Ether
from scapy.packet import Packet, Raw
from scapy.utils import wrpcap
from wire.codec import Fields, Flow

from mrc.dissect import vectors

VECTORS = vectors.load()


def flow(name: str) -> Flow:
    """A flow of the golden packets."""
    found = vectors.FLOWS[name]
    return Flow(str(found.source), str(found.destination), found.sport, found.dport)


V6, V4 = flow("v6"), flow("v4")


@dataclass(frozen=True, slots=True)
class Golden:
    """One packet."""

    name: str
    fields: Fields  # the decoded packet; omitted BTH and data members are 0, bytes are empty
    flow: Flow = V6

    @property
    def packet(self) -> bytes:
        """The UDP payload."""
        return VECTORS[self.name].payload


GOLDEN = (
    Golden("write-first", {"opcode": 0xC6, "dest_qpn": 0xABCDEF, "psn": 0xFFFFFF, "msn": 7, "va":
           0x7F0012345678, "rkey": 0xDEADBEEF, "dma_bytes": 11, "payload": b"first da"}),
    Golden("write-middle-timestamp", {"opcode": 0xC7, "ts": True, "dest_qpn": 0xABCDEF, "msn": 7,
           "tx_timestamp": 0x1234, "va": 0x7F0012345680, "rkey": 0xDEADBEEF, "dma_bytes": 256,
           "payload": b"midd"}),
    Golden("write-last-retransmitted", {"opcode": 0xC8, "pad": 3, "ack_req": True, "rtx": True,
           "ts": True, "dest_qpn": 0xABCDEF, "psn": 1, "msn": 7, "tx_timestamp": 0xFFFF, "tsr":
           True, "va": 0x7F0012345684, "rkey": 0xDEADBEEF, "dma_bytes": 256, "payload": b"z"}),
    Golden("write-last-imm", {"opcode": 0xC9, "pad": 2, "dest_qpn": 3, "psn": 2, "rqmsn": 0xFFFF,
           "msn": 0xFFFE, "va": 0xFFFFFFFFFFFFFFF0, "rkey": 1, "dma_bytes": 0xFFFFFFFF, "imm":
           0xCAFEF00D, "payload": b"zz"}),
    Golden("write-only-empty", {"opcode": 0xCA, "dest_qpn": 3, "psn": 3, "msn": 8}),
    Golden("write-only-padded", {"opcode": 0xCA, "se": True, "pad": 3, "ack_req": True, "dest_qpn":
           3, "psn": 4, "msn": 9, "va": 0x1000, "rkey": 42, "dma_bytes": 5, "payload": b"hello"}),
    Golden("write-only-ipv4", {"opcode": 0xCA, "ts": True, "dest_qpn": 3, "psn": 5, "msn": 10,
           "tx_timestamp": 0x0100, "tsr": True, "va": 0x1000, "rkey": 42, "dma_bytes": 4, "payload":
           b"ipv4"}, V4),
    Golden("write-only-imm-empty-timestamp", {"opcode": 0xCB, "ts": True, "dest_qpn": 3, "psn": 6,
           "rqmsn": 1, "msn": 11, "imm": 7}),
    Golden("write-only-imm-padded", {"opcode": 0xCB, "m": True, "pad": 1, "dest_qpn": 3, "psn": 7,
           "rqmsn": 2, "msn": 12, "va": 0x1000, "rkey": 42, "dma_bytes": 3, "imm": 0xFFFFFFFF,
           "payload": b"abc"}),
    Golden("ack", {"opcode": 0xD1, "dest_qpn": 0xBEEF, "psn": 7, "aeth": {"syndrome": 0x1F, "msn":
           12}}),
    Golden("nak-remote-access", {"opcode": 0xD1, "dest_qpn": 0xBEEF, "psn": 4, "aeth": {"syndrome":
           0x62, "msn": 0xFFFFFF}}),
    Golden("port-status-update", {"opcode": 0xD8, "dest_qpn": 2, "psn": 0xBEEF, "endpoint": {"op":
           0, "port_status_mask": 0x0D, "m": 0, "tx_timestamp": 0x0200, "tsr": True}}),
    Golden("ev-probe", {"opcode": 0xD8, "dest_qpn": 2, "psn": 1, "endpoint": {"op": 1,
           "port_status_mask": 0, "m": 0, "tx_timestamp": 0x0300, "tsr": False}}),
    Golden("ev-probe-filled-up", {"opcode": 0xD8, "dest_qpn": 2, "psn": 2, "endpoint": {"op": 1,
           "port_status_mask": 0, "m": 0, "tx_timestamp": 0x0300, "tsr": False}, "payload":
           bytes(16)}),
    Golden("port-status-answer", {"opcode": 0xD9, "dest_qpn": 2, "psn": 0xBEEF, "endpoint": {"op":
           0, "port_status_mask": 0, "m": 0, "tx_timestamp": 0x0200, "tsr": False}}),
    Golden("ev-probe-answer", {"opcode": 0xD9, "dest_qpn": 2, "psn": 1, "endpoint": {"op": 1,
           "port_status_mask": 0, "m": 1, "tx_timestamp": 0x0300, "tsr": False}}),
    Golden("sack", {"opcode": 0xDC, "dest_qpn": 0xBEEF, "psn": 0x10, "sack": {"ack_psn_offset": 5,
           "m": 1, "pr": False, "ev": 0xC001ABCD, "spdcid": 0xCDEF, "dpdcid": 0xBEEF, "cum_psn":
           0x10, "cc_type": 0, "cc_fl": 0, "mpr": 8, "sack_offset": 1, "bitmap": 0x8000000000000019,
           "tx_timestamp": 0x1234, "ooo_count": 4, "sent_timestamp": 0, "restore_cwnd": False,
           "rcv_cwnd_pen": 0, "rcvd_bytes": 0xFF}}),
    Golden("sack-of-probe", {"opcode": 0xDC, "dest_qpn": 0xBEEF, "psn": 0xFFFFFF, "sack":
           {"ack_psn_offset": -2, "m": 2, "pr": True, "ev": 0xC0010000, "spdcid": 0xCDEF, "dpdcid":
           0xBEEF, "cum_psn": 0xFFFFFF, "cc_type": 0, "cc_fl": 15, "mpr": 255, "sack_offset": -63,
           "bitmap": 0xFFFFFFFFFFFFFFFF, "tx_timestamp": 0xFFFF, "ooo_count": 0x7FFF,
           "sent_timestamp": 0, "restore_cwnd": True, "rcv_cwnd_pen": 127, "rcvd_bytes":
           0xFFFFFF}}),
    Golden("sack-with-times", {"opcode": 0xDC, "dest_qpn": 0xBEEF, "psn": 0x10, "sack":
           {"ack_psn_offset": 0, "m": 0, "pr": False, "ev": 0xC001ABCD, "spdcid": 0xCDEF, "dpdcid":
           0xBEEF, "cum_psn": 0x10, "cc_type": 15, "cc_fl": 0, "mpr": 8, "sack_offset": 1, "bitmap":
           0, "tx_timestamp": 0x1234, "ooo_count": 0, "sent_timestamp": 0xFEDC, "restore_cwnd":
           False, "rcv_cwnd_pen": 0, "rcvd_bytes": 0xFF}}),
    Golden("nack-trimmed", {"opcode": 0xDD, "dest_qpn": 0xBEEF, "psn": 0x11, "nack": {"reason":
           0x01, "vendor_info": 0, "ev": 0xC001ABCD, "spdcid": 0xCDEF, "dpdcid": 0xBEEF, "nack_psn":
           0x11, "cc_type": 2, "cc_fl": 0, "tx_timestamp": 0x1234}}),
    Golden("nack-unexpected-event", {"opcode": 0xDD, "dest_qpn": 0xBEEF, "psn": 0x800000, "nack":
           {"reason": 0x19, "vendor_info": 0x5A, "ev": 0xC0010000, "spdcid": 0xCDEF, "dpdcid":
           0xBEEF, "nack_psn": 0x800000, "cc_type": 2, "cc_fl": 15, "tx_timestamp": 0xFFFF}}),
    Golden("probe", {"opcode": 0xDE, "dest_qpn": 0xABCDEF, "probe": {"probe_id": 0xFFFE, "spdcid":
           0xBEEF, "dpdcid": 0xCDEF, "tx_timestamp": 0x1234, "tsr": True}}),
)  # fmt: skip


# ---- Captures ------------------------------------------------------------------------------------


CARRIER = "fcbb:1:100:201:e000::"  # outer destination of the encapsulated packets
FLOW_LABEL = 0x7ABCD
BY_NAME = {golden.name: golden for golden in GOLDEN}


def sealed(name: str, mode: int) -> bytes:
    """A golden packet with a seal of counter 77 in place of its ICRC; nothing is encrypted."""
    packet = bytearray(BY_NAME[name].packet[:-4])
    packet[1] |= 1
    seal = mode.to_bytes(1, "big") + packet[5:8] + (77).to_bytes(8, "big")
    return bytes(packet + seal) + b"\xee" * 16


def frame(payload: bytes, flow: Flow, *, via: str | None = None, tclass: int = 2) -> Packet:
    """An Ethernet frame with a UDP payload; `via`: inside IPv6 to that address."""
    if flow.family == 4:
        ip: Packet = IP(src=flow.src, dst=flow.dst, tos=tclass)
    else:
        ip = IPv6(src=flow.src, dst=flow.dst, tc=tclass, fl=FLOW_LABEL)
    if via is not None:
        ip = IPv6(src="fd00:f::1", dst=via, tc=tclass, fl=FLOW_LABEL) / ip
    ethernet = Ether(src="02:00:00:00:00:01", dst="02:00:00:00:00:02")
    return ethernet / ip / UDP(sport=flow.sport, dport=flow.dport) / Raw(payload)


def write(path: Path, frames: Sequence[Packet]) -> Path:
    """Frame i is captured i milliseconds after the first."""
    for i, one in enumerate(frames):
        one.time = 1_000_000 + i / 1000
    wrpcap(str(path), list(frames))
    return path
