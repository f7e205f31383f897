# SPDX-License-Identifier: Apache-2.0
"""The wire format of MRC: the fields of each header, and the names of their values.

It shares nothing with `csrc/core/wire.c`, so each checks the other. `packet.py` decodes by
these tables, and `tools/dissector` makes the tables of `mrc.lua` from them.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import NamedTuple

from mrc.errors import MrcError
from mrc.linux.files import write_whole

OPCODES = {
    0xC6: "WRITE_FIRST", 0xC7: "WRITE_MIDDLE", 0xC8: "WRITE_LAST", 0xC9: "WRITE_LAST_IMM",
    0xCA: "WRITE_ONLY", 0xCB: "WRITE_ONLY_IMM", 0xD1: "ACK", 0xD8: "ENDPOINT_REQUEST",
    0xD9: "ENDPOINT_RESPONSE", 0xDC: "SACK", 0xDD: "NACK", 0xDE: "PROBE",
}  # fmt: skip
DATA = range(0xC6, 0xCC)
WITH_IMM = (0xC9, 0xCB)
MARKS = {0: "NONE", 1: "SKIP_ONCE", 2: "ALWAYS_SKIP"}
REASONS = {
    0x01: "TRIMMED", 0x02: "TRIMMED_LASTHOP", 0x06: "NO_BITMAP", 0x07: "NO_PKT_BUFFER",
    0x0A: "NO_RESOURCE", 0x0B: "PSN_OOR_WINDOW", 0x19: "UNEXP_EVENT",
}  # fmt: skip
OPERATIONS = {0: "PORT_STATUS", 1: "EV_PROBE"}
SYNDROMES = {0x1F: "ACK", 0x61: "NAK_INV_REQ", 0x62: "NAK_REM_ACCESS", 0x63: "NAK_REM_OP"}
AUTH = 1
SEALS = {AUTH: "auth", 2: "aead"}

NAMES = {
    "opcode": OPCODES, "mark": MARKS, "reason": REASONS, "operation": OPERATIONS,
    "syndrome": SYNDROMES, "mode": SEALS,
}  # fmt: skip
"""Of the fields whose values have names."""

# name:bits; a minus sign: signed. Fields without a name are reserved.
_FORMATS = {
    "BTH": "opcode:8 se:1 m:1 pad:2 tver:4 pkey:16 var_res:8 dest_qpn:24 ack_req:1 :1 rtx:1 ts:1"
    " :4 psn:24",
    "METH": "rqmsn:16 msn:16",
    "TSETH": "tx_timestamp:16 tsr:1 :11 ftype:4",
    "RETH": "va:64 rkey:32 dma_bytes:32",
    "ImmDt": "imm:32",
    "SETH": "type:4 nh:5 mark:2 :3 pr:1 :1 ack_psn_offset:-16 ev:32 spdcid:16 dpdcid:16 :8"
    " cum_psn:24 cc_type:4 cc_fl:4 mpr:8 sack_offset:-16 bitmap:64",
    "CC_STATE": "tx_timestamp:16 :1 ooo_count:15 restore_cwnd:1 rcv_cwnd_pen:7 rcvd_units:24",
    "CC_TIMES": "tx_timestamp:16 sent_timestamp:16 restore_cwnd:1 rcv_cwnd_pen:7 rcvd_units:24",
    "NETH": "type_nh:16 reason:8 vendor_info:8 ev:32 spdcid:16 dpdcid:16 :8 nack_psn:24 cc_type:4"
    " cc_fl:4 :8 tx_timestamp:16",
    "PETH": "type_nh:16 :8 vendor:8 probe_id:16 :16 spdcid:16 dpdcid:16 tx_timestamp:16 tsr:1 :11"
    " ftype:4",
    "ERTH": "type_nh:14 operation:2 :8 vendor:8 port_status_mask:32 :32 tx_timestamp:16 tsr:1 :11"
    " ftype:4",
    "EETH": "type_nh:9 mark:2 :1 operation:2 :2 :208 tx_timestamp:16 :48",
    "AETH": "syndrome:8 msn:24",
    "SEAL": "mode:8 key_qpn:24 counter:64",
}


class Field(NamedTuple):
    """A field of a header; without a name it is reserved."""

    name: str
    bits: int
    signed: bool


TABLES = {
    header: [
        Field(name, abs(int(bits)), bits.startswith("-"))
        for name, _, bits in (word.partition(":") for word in text.split())
    ]
    for header, text in _FORMATS.items()
}
BYTES = {header: sum(field.bits for field in table) // 8 for header, table in TABLES.items()}
BEHIND = {0xD1: ["AETH"], 0xD8: ["ERTH"], 0xD9: ["EETH"], 0xDC: ["SETH", "CC_STATE"],
          0xDD: ["NETH"], 0xDE: ["PETH"]}  # fmt: skip
"""The headers behind the BTH, by opcode; those of DATA depend on its fields."""

WIRESHARK = {
    "BTH": ("bth", "Base transport header"), "METH": ("meth", "Message numbers"),
    "TSETH": ("tseth", "Timestamp"), "RETH": ("reth", "Target memory"),
    "ImmDt": ("immdt", "Immediate"), "SETH": ("sack", "Selective acknowledgement"),
    "CC_STATE": ("cc", "NSCC state"), "CC_TIMES": ("times", "Times and state"),
    "NETH": ("nack", "Refusal"), "PETH": ("probe", "Reliability probe"),
    "ERTH": ("request", "Endpoint request"), "EETH": ("response", "Endpoint response"),
    "AETH": ("aeth", "Transport ACK"), "SEAL": ("seal", "Seal"),
}  # fmt: skip
"""Name of each header in filters of Wireshark, such as mrc.sack, and its title there."""
SHORTER = {
    "dest_qpn": "qpn", "sack_offset": "offset", "nack_psn": "psn", "probe_id": "id",
    "port_status_mask": "ports", "key_qpn": "qpn",
}  # fmt: skip
"""Fields whose name in filters differs."""


# ---- The dissector for Wireshark, which is made from these tables --------------------------------


LUA = Path(__file__).parent / "mrc.lua"
_FOLDER = Path(".local", "lib", "wireshark", "plugins")  # where tshark is not there to ask


class PluginError(MrcError):
    """The dissector cannot be installed or removed."""


def plugin_folder() -> Path:
    """This user's folder of Lua plugins."""
    for line in _plugin_folders().splitlines():
        name, _, path = line.partition(":")
        if name == "Personal Lua Plugins" and path.strip():
            return Path(path.strip())
    return Path.home() / _FOLDER


def _plugin_folders() -> str:
    """What tshark says of its folders; nothing if it is not installed or does not run."""
    command = ["tshark", "-G", "folders"]
    try:
        done = subprocess.run(command, capture_output=True, check=False, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return os.fsdecode(done.stdout)


def install_dissector() -> Path:
    """Copies the dissector to the plugin folder; returns its place."""
    place = plugin_folder() / LUA.name
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        write_whole(place, LUA.read_bytes())
    except OSError as error:
        raise PluginError(f"{place}: {(error.strerror or str(error)).lower()}") from error
    return place


def remove_dissector() -> Path:
    """Removes it; returns its former place."""
    place = plugin_folder() / LUA.name
    try:
        place.unlink()
    except FileNotFoundError:
        raise PluginError(f"{place}: is not installed") from None
    except OSError as error:
        raise PluginError(f"{place}: {(error.strerror or str(error)).lower()}") from error
    return place
