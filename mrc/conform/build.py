# SPDX-License-Identifier: Apache-2.0
"""Makes MRC packets from the tables of `mrc/dissect/formats.py`, also wrong ones. Pure.

It shares no code with the engine's encoder.
"""

from __future__ import annotations

from collections.abc import Mapping

from mrc.dissect.formats import BYTES, OPCODES, TABLES
from mrc.dissect.packet import CC_TIMES, Flow, headers_behind, icrc
from mrc.enums import Reading

OPERATION_BYTE = 13  # of an endpoint response
ENDPOINT_QPN = 2
OPCODE = {name: code for code, name in OPCODES.items()}
_USUAL = {
    "BTH": {"pkey": 0xFFFF},
    "TSETH": {"tsr": 1, "ftype": 1},
    "NETH": {"cc_type": 2},
    "PETH": {"tsr": 1, "ftype": 1},
    "ERTH": {"tsr": 1, "ftype": 1},
}
"""Values of fields that have one usual value other than 0."""


def headers(kind: str, fields: Mapping[str, int]) -> bytes:
    """The BTH and the headers behind it. Raises ValueError for a field that none of them has."""
    bth = {"opcode": OPCODE[kind], "ts": 0, **fields}
    left = set(fields)
    made = b""
    for header in ("BTH", *headers_behind({**bth, "opcode": OPCODE[kind]})):
        if header == "CC_STATE" and bth.get("cc_type") == CC_TIMES:
            header = "CC_TIMES"
        values = {**_USUAL.get(header, {}), **bth}
        made += _header(header, values)
        left -= {field.name for field in TABLES[header]}
    if left:
        raise ValueError(f"{kind} has no field {', '.join(sorted(left))}")
    return made


def fields_of(kind: str, *, ts: bool) -> set[str]:
    """The names of all fields of a packet."""
    stack = ("BTH", *headers_behind({"opcode": OPCODE[kind], "ts": int(ts)}))
    return {field.name for header in stack for field in TABLES[header] if field.name}


def _header(header: str, values: Mapping[str, int]) -> bytes:
    number = 0
    for name, bits, signed in TABLES[header]:
        value = values.get(name, 0) if name else 0
        least, most = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)
        if not least <= value <= most:
            raise ValueError(f"{name}: {value} is not within {least}..{most}")
        number = number << bits | value & (1 << bits) - 1
    return number.to_bytes(BYTES[header], "big")


def endpoint_response(number: int, request: Mapping[str, int], readings: Reading) -> bytes:
    """The answer to an endpoint request with this ERTH, without its ICRC."""
    lifted = Reading.C6_B in readings
    fields = {
        "operation": 0 if lifted else request["operation"], "psn": number,
        "tx_timestamp": request["tx_timestamp"], "dest_qpn": ENDPOINT_QPN,
    }  # fmt: skip
    body = bytearray(headers("ENDPOINT_RESPONSE", fields))
    if lifted:
        body[OPERATION_BYTE] |= request["operation"] << 4
    return bytes(body)


def finished(body: bytes, flow: Flow) -> bytes:
    """The UDP payload: the body and its ICRC."""
    return body + icrc(body, flow)
