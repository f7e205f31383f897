# SPDX-License-Identifier: Apache-2.0
"""Hypothesis strategies for valid packets of every kind, and for flows."""

from __future__ import annotations

from collections.abc import Mapping
from ipaddress import ip_address
from typing import Literal

from hypothesis import strategies as st
from wire.codec import Fields, Flow

PARTS = (0xC6, 0xC7, 0xC8, 0xC9)
ONLY = (0xCA, 0xCB)
WITH_IMM = (0xC9, 0xCB)
NACK_REASONS = (0x01, 0x02, 0x06, 0x07, 0x0A, 0x0B, 0x19)
MAX_PAYLOAD = 70


def unsigned(bits: int) -> st.SearchStrategy[int]:
    return st.integers(0, (1 << bits) - 1)


def signed(bits: int) -> st.SearchStrategy[int]:
    return st.integers(-(1 << bits - 1), (1 << bits - 1) - 1)


def bth(opcodes: tuple[int, ...]) -> dict[str, st.SearchStrategy[object]]:
    flags = {name: st.booleans() for name in ("se", "m", "ack_req", "rtx")}
    return {
        "opcode": st.sampled_from(opcodes),
        "pad": st.just(0),
        "ts": st.just(False),
        "dest_qpn": unsigned(24),
        "psn": unsigned(24),
        "payload": st.just(b""),
        **flags,
    }


@st.composite
def data(draw: st.DrawFn) -> Fields:
    """A data packet whose payload fits its opcode and its message."""
    fields: Fields = draw(st.fixed_dictionaries(bth(PARTS + ONLY) | {"ts": st.booleans()}))
    only = fields["opcode"] in ONLY
    payload = draw(st.binary(min_size=0 if only else 1, max_size=MAX_PAYLOAD))
    n = len(payload)
    return fields | {
        "pad": -n % 4,
        "payload": payload,
        "rqmsn": draw(unsigned(16)),
        "msn": draw(unsigned(16)),
        "tx_timestamp": draw(unsigned(16)) if fields["ts"] else 0,
        "tsr": draw(st.booleans()) if fields["ts"] else False,
        "rkey": draw(unsigned(32)),
        "va": draw(unsigned(64)),
        "dma_bytes": n if only else draw(st.integers(n + 1, 0xFFFFFFFF)),
        "imm": draw(unsigned(32)) if fields["opcode"] in WITH_IMM else 0,
    }


def pdcids() -> dict[str, st.SearchStrategy[int]]:
    return {"spdcid": unsigned(16), "dpdcid": unsigned(16)}


def sack() -> st.SearchStrategy[Fields]:
    members = {
        "ack_psn_offset": signed(16),
        "m": st.integers(0, 2),
        "pr": st.booleans(),
        "ev": unsigned(32),
        **pdcids(),
        "cum_psn": unsigned(24),
        "cc_type": st.just(0),
        "cc_fl": unsigned(4),
        "mpr": unsigned(8),
        "sack_offset": signed(16),
        "bitmap": unsigned(64),
        "tx_timestamp": unsigned(16),
        "ooo_count": unsigned(15),
        "sent_timestamp": st.just(0),
        "restore_cwnd": st.booleans(),
        "rcv_cwnd_pen": unsigned(7),
        "rcvd_bytes": unsigned(24),
    }
    times = {**members, "cc_type": st.just(15), "ooo_count": st.just(0)}
    times["sent_timestamp"] = unsigned(16)
    return control(0xDC, "sack", members) | control(0xDC, "sack", times)


def nack() -> st.SearchStrategy[Fields]:
    members = {
        "reason": st.sampled_from(NACK_REASONS),
        "vendor_info": unsigned(8),
        "ev": unsigned(32),
        **pdcids(),
        "nack_psn": unsigned(24),
        "cc_type": st.just(2),
        "cc_fl": unsigned(4),
        "tx_timestamp": unsigned(16),
    }
    return control(0xDD, "nack", members)


def probe() -> st.SearchStrategy[Fields]:
    members = {
        "probe_id": unsigned(16),
        **pdcids(),
        "tx_timestamp": unsigned(16),
        "tsr": st.booleans(),
    }
    return control(0xDE, "probe", members)


def request() -> st.SearchStrategy[Fields]:
    members = {
        "op": st.integers(0, 1),
        "port_status_mask": unsigned(32),
        "m": st.just(0),
        "tx_timestamp": unsigned(16),
        "tsr": st.booleans(),
    }
    return control(0xD8, "endpoint", members, dest_qpn=st.just(2), psn=unsigned(16))


def response() -> st.SearchStrategy[Fields]:
    members = {
        "op": st.integers(0, 1),
        "port_status_mask": st.just(0),
        "m": st.integers(0, 2),
        "tx_timestamp": unsigned(16),
        "tsr": st.just(False),
    }
    return control(0xD9, "endpoint", members, dest_qpn=st.just(2), psn=unsigned(16))


def ack() -> st.SearchStrategy[Fields]:
    syndromes = st.sampled_from((0x1F, 0x61, 0x62, 0x63))
    return control(0xD1, "aeth", {"syndrome": syndromes, "msn": unsigned(24)})


def control(
    opcode: int,
    member: str,
    members: Mapping[str, st.SearchStrategy[object]],
    **header: st.SearchStrategy[object],
) -> st.SearchStrategy[Fields]:
    return st.fixed_dictionaries(bth((opcode,)) | header | {member: st.fixed_dictionaries(members)})


def packets() -> st.SearchStrategy[Fields]:
    """Any valid packet, with every member that the decoder returns."""
    return st.one_of(data(), sack(), nack(), probe(), request(), response(), ack())


def flows() -> st.SearchStrategy[Flow]:
    def flow(version: Literal[4, 6]) -> st.SearchStrategy[Flow]:
        address = st.ip_addresses(v=version).map(lambda a: str(ip_address(a)))
        return st.builds(Flow, src=address, dst=address, sport=unsigned(16), dport=unsigned(16))

    return st.one_of(flow(4), flow(6))
