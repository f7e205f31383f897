# SPDX-License-Identifier: Apache-2.0
"""Golden exchanges: their bytes do not change, and others decode them."""

from __future__ import annotations

import hashlib

import pytest
from wire.codec import Codec
from wire.codec import Flow as Covered

from mrc.conform import exchanges
from mrc.conform.exchanges import ExchangePacket
from mrc.conform.history import Judge
from mrc.dissect.formats import OPCODES
from mrc.dissect.packet import decode

EXCHANGES = exchanges.load_exchanges()
EVERY = [pytest.param(sent, id=f"{each.name}-{n}")
         for each in EXCHANGES for n, sent in enumerate(each.packets)]  # fmt: skip
DIGEST = {1: "3608ecb5dbad5bef7a108173437a644051e0d034baef3c59ef49341023343648"}
"""Of all bytes of a version. Exchanges may be added without a new version; then it changes, too."""


def test_load__bytes_of_the_version() -> None:
    digest = hashlib.sha256()
    for each in EXCHANGES:
        for sent in each.packets:
            digest.update(sent.payload)
    assert digest.hexdigest() == DIGEST[exchanges.VERSION]


def test_load__shows_every_opcode() -> None:
    kinds = {OPCODES[sent.payload[0]] for each in EXCHANGES for sent in each.packets}
    assert set(OPCODES.values()) - kinds == {"WRITE_LAST_IMM"}


@pytest.mark.parametrize("sent", EVERY)
def test_load__the_engine_accepts_each_packet(sent: ExchangePacket) -> None:
    flow = sent.flow
    covered = Covered(str(flow.source), str(flow.destination), flow.sport, flow.dport)
    if not flow.trimmed:
        assert Codec().icrc(covered, sent.payload[:-4]) == sent.payload[-4:]
    wire = Codec().decode(sent.payload, trimmed=flow.trimmed)
    assert wire["psn"] == decode(sent.payload, flow).headers["BTH"]["psn"]


@pytest.mark.parametrize("each", EXCHANGES, ids=lambda each: each.name)
def test_load__breaks_no_invariant(each: exchanges.Exchange) -> None:
    judge = Judge()
    for sent in each.packets:
        judge.take(sent.at_ns / 1e9, sent.flow, decode(sent.payload, sent.flow))
    judge.finish()
    assert [way.findings for way in judge.directions.values() if way.findings] == []
