# SPDX-License-Identifier: Apache-2.0
"""Golden packets: every kind of MRC packet in hex. See golden_writes.py for the form."""

from __future__ import annotations

from wire.golden_writes import V4, V6, WRITES, Golden

__all__ = ["GOLDEN", "V4", "V6", "Golden"]

GOLDEN = (
    *WRITES,
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
                "sent_timestamp": 0,
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
                "sent_timestamp": 0,
                "restore_cwnd": True,
                "rcv_cwnd_pen": 127,
                "rcvd_bytes": 0xFFFFFF,
            },
        },
    ),
    Golden(
        "sack-with-times",
        """
        dc 00 ffff  00 00beef  00 000010        | BTH   SACK
        00 00 0000                              | SETH  triggered by PSN 0x10
        c001abcd cdef beef                      | SETH  EV reflected, spdcid, dpdcid
        00 000010                               | SETH  reserved, cumulative PSN
        f0 08 0001                              | SETH  CC type 15, MPR 8 x 128, bitmap from 0x11
        0000000000000000                        | SETH  nothing beyond
        1234 fedc                               | CC    timestamp reflected, sent_timestamp
        00 0000ff                               | CC    no penalty, 255 x 256 bytes received
        dfb7e5f4                                | ICRC
        """,
        {
            "opcode": 0xDC,
            "dest_qpn": 0xBEEF,
            "psn": 0x10,
            "sack": {
                "ack_psn_offset": 0,
                "m": 0,
                "pr": False,
                "ev": 0xC001ABCD,
                "spdcid": 0xCDEF,
                "dpdcid": 0xBEEF,
                "cum_psn": 0x10,
                "cc_type": 15,
                "cc_fl": 0,
                "mpr": 8,
                "sack_offset": 1,
                "bitmap": 0,
                "tx_timestamp": 0x1234,
                "ooo_count": 0,
                "sent_timestamp": 0xFEDC,
                "restore_cwnd": False,
                "rcv_cwnd_pen": 0,
                "rcvd_bytes": 0xFF,
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
