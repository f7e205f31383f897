# SPDX-License-Identifier: Apache-2.0
"""Golden packets that write: each kind in hex, written by hand from the format's tables.

Each line is one header: its bytes, then a caption. The last line is the ICRC over the named flow.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from wire.codec import Fields, Flow

V6 = Flow("fd00:a:0::1", "fd00:a:1::1:0", sport=0xC001)
V4 = Flow("192.0.2.1", "198.51.100.2", sport=0xC002)


@dataclass(frozen=True, slots=True)
class Golden:
    """One packet."""

    name: str
    text: str  # lines of hex, "|", caption
    fields: Fields  # the decoded packet; omitted BTH and data members are 0, bytes are empty
    flow: Flow = field(default=V6)

    @property
    def packet(self) -> bytes:
        """The UDP payload."""
        return bytes.fromhex("".join(line.split("|")[0] for line in self.text.splitlines()))


WRITES = (
    Golden(
        "write-first",
        """
        c6 00 ffff  00 abcdef  00 ffffff        | BTH   First, to QPN 0xabcdef, PSN 0xffffff
        0000 0007                               | METH  RQMSN 0, MSN 7
        00007f0012345678 deadbeef 0000000b      | RETH  VA, rkey, 11 bytes in the message
        6669727374206461                        | payload "first da"
        770cc6c6                                | ICRC
        """,
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
        """
        c7 00 ffff  00 abcdef  10 000000        | BTH   Middle, ts, PSN 0 (wrapped)
        0000 0007                               | METH
        1234 0001                               | TSETH timestamp 0x1234, tsr 0 (128 ns), ftype 1
        00007f0012345680 deadbeef 00000100      | RETH  VA has moved on by the path MTU
        6d696464                                | payload "midd"
        a2e3cd70                                | ICRC
        """,
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
        """
        c8 30 ffff  00 abcdef  b0 000001        | BTH   Last, pad 3, ack-req, rtx, ts
        0000 0007                               | METH
        ffff 8001                               | TSETH tsr 1 (1.024 us)
        00007f0012345684 deadbeef 00000100      | RETH
        7a 000000                               | payload "z", pad
        94cb6b8e                                | ICRC
        """,
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
        """
        c9 20 ffff  00 000003  00 000002        | BTH   Last + Imm, pad 2
        ffff fffe                               | METH  RQMSN 0xffff, MSN 0xfffe
        fffffffffffffff0 00000001 ffffffff      | RETH  the longest message
        cafef00d                                | ImmDt
        7a7a 0000                               | payload "zz", pad
        47f45f91                                | ICRC
        """,
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
        """
        ca 00 ffff  00 000003  00 000003        | BTH   Only
        0000 0008                               | METH
        0000000000000000 00000000 00000000      | RETH  nothing to write
        3f75a9ab                                | ICRC
        """,
        {"opcode": 0xCA, "dest_qpn": 3, "psn": 3, "msn": 8},
    ),
    Golden(
        "write-only-padded",
        """
        ca b0 ffff  00 000003  80 000004        | BTH   Only, SE, pad 3, ack-req
        0000 0009                               | METH
        0000000000001000 0000002a 00000005      | RETH
        68656c6c6f 000000                       | payload "hello", pad
        689f70cd                                | ICRC
        """,
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
        """
        ca 00 ffff  00 000003  10 000005        | BTH   Only, ts
        0000 000a                               | METH
        0100 8001                               | TSETH
        0000000000001000 0000002a 00000004      | RETH
        69707634                                | payload "ipv4"
        661fd7b7                                | ICRC
        """,
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
        """
        cb 00 ffff  00 000003  10 000006        | BTH   Only + Imm, ts
        0001 000b                               | METH  the first immediate of the QP
        0000 0001                               | TSETH
        0000000000000000 00000000 00000000      | RETH
        00000007                                | ImmDt
        dc5cc6c9                                | ICRC
        """,
        {"opcode": 0xCB, "ts": True, "dest_qpn": 3, "psn": 6, "rqmsn": 1, "msn": 11, "imm": 7},
    ),
    Golden(
        "write-only-imm-padded",
        """
        cb 50 ffff  00 000003  00 000007        | BTH   Only + Imm, M, pad 1
        0002 000c                               | METH
        0000000000001000 0000002a 00000003      | RETH
        ffffffff                                | ImmDt
        616263 00                               | payload "abc", pad
        dde545b4                                | ICRC
        """,
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
