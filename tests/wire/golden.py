# SPDX-License-Identifier: Apache-2.0
"""Golden packets: every kind of MRC packet in hex, written by hand from the format's tables.

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


GOLDEN = (
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
    Golden(
        "ack",
        """
        d1 00 ffff  00 00beef  00 000007        | BTH   Transport Acknowledge
        1f 00000c                               | AETH  ACK without credits, MSN 12
        887a8af6                                | ICRC
        """,
        {"opcode": 0xD1, "dest_qpn": 0xBEEF, "psn": 7, "aeth": {"syndrome": 0x1F, "msn": 12}},
    ),
    Golden(
        "nak-remote-access",
        """
        d1 00 ffff  00 00beef  00 000004        | BTH   Transport Acknowledge
        62 ffffff                               | AETH  NAK: remote access error
        20127721                                | ICRC
        """,
        {"opcode": 0xD1, "dest_qpn": 0xBEEF, "psn": 4, "aeth": {"syndrome": 0x62, "msn": 0xFFFFFF}},
    ),
    Golden(
        "port-status-update",
        """
        d8 00 ffff  00 000002  00 00beef        | BTH   Endpoint Request to QPN 2, private id 0xbeef
        00 00 00 00                             | ERTH  op 0, vendor
        0000000d 00000000                       | ERTH  ports 1, 3 and 4 are reachable, reserved
        0200 8001                               | ERTH  timestamp, tsr 1, ftype 1
        71ea50cf                                | ICRC
        """,
        {
            "opcode": 0xD8,
            "dest_qpn": 2,
            "psn": 0xBEEF,
            "endpoint": {
                "op": 0,
                "port_status_mask": 0x0D,
                "m": 0,
                "tx_timestamp": 0x0200,
                "tsr": True,
            },
        },
    ),
    Golden(
        "ev-probe",
        """
        d8 00 ffff  00 000002  00 000001        | BTH   Endpoint Request
        00 01 00 00  00000000 00000000          | ERTH  op 1
        0300 0001                               | ERTH  timestamp, tsr 0, ftype 1
        b05d3548                                | ICRC
        """,
        {
            "opcode": 0xD8,
            "dest_qpn": 2,
            "psn": 1,
            "endpoint": {
                "op": 1,
                "port_status_mask": 0,
                "m": 0,
                "tx_timestamp": 0x0300,
                "tsr": False,
            },
        },
    ),
    Golden(
        "ev-probe-filled-up",
        """
        d8 00 ffff  00 000002  00 000002        | BTH   Endpoint Request
        00 01 00 00  00000000 00000000          | ERTH  op 1
        0300 0001                               | ERTH
        00000000 00000000 00000000 00000000     | zeros up to a full packet: our extension
        ade57d5e                                | ICRC
        """,
        {
            "opcode": 0xD8,
            "dest_qpn": 2,
            "psn": 2,
            "endpoint": {
                "op": 1,
                "port_status_mask": 0,
                "m": 0,
                "tx_timestamp": 0x0300,
                "tsr": False,
            },
            "payload": bytes(16),
        },
    ),
    Golden(
        "port-status-answer",
        """
        d9 00 ffff  00 000002  00 00beef        | BTH   Endpoint Response, private id as asked
        00 00 0000 000000000000000000000000000000000000000000000000 | EETH  op 0, reserved
        0200 0000 00000000                      | EETH  timestamp reflected, reserved
        466854ff                                | ICRC
        """,
        {
            "opcode": 0xD9,
            "dest_qpn": 2,
            "psn": 0xBEEF,
            "endpoint": {
                "op": 0,
                "port_status_mask": 0,
                "m": 0,
                "tx_timestamp": 0x0200,
                "tsr": False,
            },
        },
    ),
    Golden(
        "ev-probe-answer",
        """
        d9 00 ffff  00 000002  00 000001        | BTH   Endpoint Response
        00 24 0000 000000000000000000000000000000000000000000000000 | EETH  m SKIP_ONCE, op 1 at 3:2
        0300 0000 00000000                      | EETH
        f625dbf8                                | ICRC
        """,
        {
            "opcode": 0xD9,
            "dest_qpn": 2,
            "psn": 1,
            "endpoint": {
                "op": 1,
                "port_status_mask": 0,
                "m": 1,
                "tx_timestamp": 0x0300,
                "tsr": False,
            },
        },
    ),
    Golden(
        "sack",
        """
        dc 00 ffff  00 00beef  00 000010        | BTH   SACK, PSN is the cumulative PSN
        00 20 0005                              | SETH  m SKIP_ONCE, triggered by PSN 0x10 + 5
        c001abcd cdef beef                      | SETH  EV reflected, spdcid, dpdcid
        00 000010                               | SETH  reserved, cumulative PSN
        00 08 0001                              | SETH  CC type 0, MPR 8 x 128, bitmap from 0x11
        8000000000000019                        | SETH  received: 0x11, 0x14, 0x15 and 0x50
        1234 0004                               | CC    timestamp reflected, ooo_count 4
        00 0000ff                               | CC    no penalty, 255 x 256 bytes received
        4da299e8                                | ICRC
        """,
        {
            "opcode": 0xDC,
            "dest_qpn": 0xBEEF,
            "psn": 0x10,
            "sack": {
                "ack_psn_offset": 5,
                "m": 1,
                "pr": False,
                "ev": 0xC001ABCD,
                "spdcid": 0xCDEF,
                "dpdcid": 0xBEEF,
                "cum_psn": 0x10,
                "cc_type": 0,
                "cc_fl": 0,
                "mpr": 8,
                "sack_offset": 1,
                "bitmap": 0x8000000000000019,
                "tx_timestamp": 0x1234,
                "ooo_count": 4,
                "restore_cwnd": False,
                "rcv_cwnd_pen": 0,
                "rcvd_bytes": 0xFF,
            },
        },
    ),
    Golden(
        "sack-of-probe",
        """
        dc 00 ffff  00 00beef  00 ffffff        | BTH   SACK
        00 42 fffe                              | SETH  m ALWAYS_SKIP, pr: offset is probe_id 0xfffe
        c0010000 cdef beef                      | SETH  EV, spdcid, dpdcid
        00 ffffff                               | SETH  cumulative PSN before the wrap
        0f ff ffc1                              | SETH  CC flags 15, MPR 255, offset -63
        ffffffffffffffff                        | SETH  all of them
        ffff 7fff                               | CC    timestamp, the largest ooo_count
        ff ffffff                               | CC    restore_cwnd, penalty 127, all bytes
        17c6f251                                | ICRC
        """,
        {
            "opcode": 0xDC,
            "dest_qpn": 0xBEEF,
            "psn": 0xFFFFFF,
            "sack": {
                "ack_psn_offset": -2,
                "m": 2,
                "pr": True,
                "ev": 0xC0010000,
                "spdcid": 0xCDEF,
                "dpdcid": 0xBEEF,
                "cum_psn": 0xFFFFFF,
                "cc_type": 0,
                "cc_fl": 15,
                "mpr": 255,
                "sack_offset": -63,
                "bitmap": 0xFFFFFFFFFFFFFFFF,
                "tx_timestamp": 0xFFFF,
                "ooo_count": 0x7FFF,
                "restore_cwnd": True,
                "rcv_cwnd_pen": 127,
                "rcvd_bytes": 0xFFFFFF,
            },
        },
    ),
    Golden(
        "nack-trimmed",
        """
        dd 00 ffff  00 00beef  00 000011        | BTH   NACK, PSN is the one refused
        0000 01 00                              | NETH  type/nh, TRIMMED, vendor
        c001abcd cdef beef                      | NETH  EV reflected, spdcid, dpdcid
        00 000011                               | NETH  reserved, refused PSN
        20 00 1234                              | NETH  CC type 2, reserved, timestamp reflected
        025b35ff                                | ICRC
        """,
        {
            "opcode": 0xDD,
            "dest_qpn": 0xBEEF,
            "psn": 0x11,
            "nack": {
                "reason": 0x01,
                "vendor_info": 0,
                "ev": 0xC001ABCD,
                "spdcid": 0xCDEF,
                "dpdcid": 0xBEEF,
                "nack_psn": 0x11,
                "cc_type": 2,
                "cc_fl": 0,
                "tx_timestamp": 0x1234,
            },
        },
    ),
    Golden(
        "nack-unexpected-event",
        """
        dd 00 ffff  00 00beef  00 800000        | BTH   NACK
        0000 19 5a                              | NETH  UNEXP_EVENT, vendor
        c0010000 cdef beef                      | NETH
        00 800000                               | NETH
        2f 00 ffff                              | NETH  CC type 2, flags 15
        ce832150                                | ICRC
        """,
        {
            "opcode": 0xDD,
            "dest_qpn": 0xBEEF,
            "psn": 0x800000,
            "nack": {
                "reason": 0x19,
                "vendor_info": 0x5A,
                "ev": 0xC0010000,
                "spdcid": 0xCDEF,
                "dpdcid": 0xBEEF,
                "nack_psn": 0x800000,
                "cc_type": 2,
                "cc_fl": 15,
                "tx_timestamp": 0xFFFF,
            },
        },
    ),
    Golden(
        "probe",
        """
        de 00 ffff  00 abcdef  00 000000        | BTH   Reliability Probe Request, takes no PSN
        0000 00 00                              | PETH  type/nh, reserved, vendor
        fffe 0000                               | PETH  probe_id, reserved
        beef cdef                               | PETH  spdcid, dpdcid
        1234 8001                               | PETH  timestamp, tsr 1, ftype 1
        5a5855ae                                | ICRC
        """,
        {
            "opcode": 0xDE,
            "dest_qpn": 0xABCDEF,
            "probe": {
                "probe_id": 0xFFFE,
                "spdcid": 0xBEEF,
                "dpdcid": 0xCDEF,
                "tx_timestamp": 0x1234,
                "tsr": True,
            },
        },
    ),
)
