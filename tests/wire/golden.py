# SPDX-License-Identifier: Apache-2.0
"""What the golden packets hold: every kind of MRC packet. See golden_writes.py."""

from __future__ import annotations

from wire.golden_writes import V4, V6, WRITES, Golden

__all__ = ["GOLDEN", "V4", "V6", "Golden"]

GOLDEN = (
    *WRITES,
    Golden(
        "ack",
        {"opcode": 0xD1, "dest_qpn": 0xBEEF, "psn": 7, "aeth": {"syndrome": 0x1F, "msn": 12}},
    ),
    Golden(
        "nak-remote-access",
        {"opcode": 0xD1, "dest_qpn": 0xBEEF, "psn": 4, "aeth": {"syndrome": 0x62, "msn": 0xFFFFFF}},
    ),
    Golden(
        "port-status-update",
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
