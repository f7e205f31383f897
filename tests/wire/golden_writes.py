# SPDX-License-Identifier: Apache-2.0
"""What the golden packets that write hold. Their bytes are in mrc/dissect/packets.txt."""

from __future__ import annotations

from dataclasses import dataclass

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


WRITES = (
    Golden(
        "write-first",
        {
            "opcode": 0xC6,
            "dest_qpn": 0xABCDEF,
            "psn": 0xFFFFFF,
            "msn": 7,
            "va": 0x7F0012345678,
            "rkey": 0xDEADBEEF,
            "dma_bytes": 11,
            "payload": b"first da",
        },
    ),
    Golden(
        "write-middle-timestamp",
        {
            "opcode": 0xC7,
            "ts": True,
            "dest_qpn": 0xABCDEF,
            "msn": 7,
            "tx_timestamp": 0x1234,
            "va": 0x7F0012345680,
            "rkey": 0xDEADBEEF,
            "dma_bytes": 256,
            "payload": b"midd",
        },
    ),
    Golden(
        "write-last-retransmitted",
        {
            "opcode": 0xC8,
            "pad": 3,
            "ack_req": True,
            "rtx": True,
            "ts": True,
            "dest_qpn": 0xABCDEF,
            "psn": 1,
            "msn": 7,
            "tx_timestamp": 0xFFFF,
            "tsr": True,
            "va": 0x7F0012345684,
            "rkey": 0xDEADBEEF,
            "dma_bytes": 256,
            "payload": b"z",
        },
    ),
    Golden(
        "write-last-imm",
        {
            "opcode": 0xC9,
            "pad": 2,
            "dest_qpn": 3,
            "psn": 2,
            "rqmsn": 0xFFFF,
            "msn": 0xFFFE,
            "va": 0xFFFFFFFFFFFFFFF0,
            "rkey": 1,
            "dma_bytes": 0xFFFFFFFF,
            "imm": 0xCAFEF00D,
            "payload": b"zz",
        },
    ),
    Golden(
        "write-only-empty",
        {"opcode": 0xCA, "dest_qpn": 3, "psn": 3, "msn": 8},
    ),
    Golden(
        "write-only-padded",
        {
            "opcode": 0xCA,
            "se": True,
            "pad": 3,
            "ack_req": True,
            "dest_qpn": 3,
            "psn": 4,
            "msn": 9,
            "va": 0x1000,
            "rkey": 42,
            "dma_bytes": 5,
            "payload": b"hello",
        },
    ),
    Golden(
        "write-only-ipv4",
        {
            "opcode": 0xCA,
            "ts": True,
            "dest_qpn": 3,
            "psn": 5,
            "msn": 10,
            "tx_timestamp": 0x0100,
            "tsr": True,
            "va": 0x1000,
            "rkey": 42,
            "dma_bytes": 4,
            "payload": b"ipv4",
        },
        V4,
    ),
    Golden(
        "write-only-imm-empty-timestamp",
        {"opcode": 0xCB, "ts": True, "dest_qpn": 3, "psn": 6, "rqmsn": 1, "msn": 11, "imm": 7},
    ),
    Golden(
        "write-only-imm-padded",
        {
            "opcode": 0xCB,
            "m": True,
            "pad": 1,
            "dest_qpn": 3,
            "psn": 7,
            "rqmsn": 2,
            "msn": 12,
            "va": 0x1000,
            "rkey": 42,
            "dma_bytes": 3,
            "imm": 0xFFFFFFFF,
            "payload": b"abc",
        },
    ),
)
