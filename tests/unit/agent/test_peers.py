# SPDX-License-Identifier: Apache-2.0
"""Requests of QPs between endpoints, as agents and as programs write them."""

from __future__ import annotations

from ipaddress import ip_address
from typing import Any

import pytest

from mrc.agent.peers import EndpointAddress, QpRequest, granted_qpn, qp_request_in, qp_request_of
from mrc.agent.steering import read_struct
from mrc.errors import ProtocolError

TO = EndpointAddress(ip_address("fd00:a:1::1"), "0123456789abcdef" * 2, 0x123456)
BY = EndpointAddress(ip_address("10.0.0.2"), "f" * 32, 3)
ASKED = QpRequest(TO, BY, 0xFFFFFF)


def test_message__there_and_back() -> None:
    assert qp_request_in({"type": "knock", **ASKED.message}) == ASKED


def test_body__there_and_back() -> None:
    fields, rest = read_struct("mrc_agent_qp_request", ASKED.body)
    assert qp_request_of(fields) == ASKED
    assert rest == b""


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("qpn",), 2),
        (("qpn",), 1 << 24),
        (("qpn",), "7"),
        (("to", "number"), 0),
        (("to", "number"), -1),
        (("to", "token"), "0" * 31),
        (("to", "token"), "G" * 32),
        (("to", "token"), "0" * 32 + "\n0"),
        (("by", "gid"), "nowhere"),
        (("by", "gid"), 7),
        (("by",), None),
    ],
)
def test_knock_in__refuses(place: tuple[str, ...], value: object) -> None:
    message: dict[str, Any] = ASKED.message
    inner = message
    for name in place[:-1]:
        inner = inner[name]
    inner[place[-1]] = value
    with pytest.raises(ProtocolError, match="a wrong knock"):
        qp_request_in(message)


def test_knock_of__refuses_what_no_program_may_write() -> None:
    fields, _ = read_struct("mrc_agent_qp_request", bytes(len(ASKED.body)))
    with pytest.raises(ProtocolError, match="a wrong knock"):
        qp_request_of(fields)


def test_admitted_in__a_qpn() -> None:
    assert granted_qpn({"type": "knock", "qpn": 3}) == 3
    for wrong in ({}, {"qpn": 0}, {"qpn": 1 << 24}, {"qpn": None}):
        with pytest.raises(ProtocolError, match="a wrong answer to a knock"):
            granted_qpn(wrong)
