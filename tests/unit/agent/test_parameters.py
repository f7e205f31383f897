# SPDX-License-Identifier: Apache-2.0
"""What a program asks for with a QP: the bounds of its numbers."""

from __future__ import annotations

from ipaddress import ip_address
from typing import Any

import pytest
from attached import connect_body, gid_of

from mrc.agent.parameters import QpParameters, emulated_in, qp_parameters
from mrc.agent.steering import read_struct
from mrc.config import MAX_MPR
from mrc.connect.oob import Inbox
from mrc.errors import ConnectError, ProtocolError
from mrc.limits import MAX_MTU, MIN_MTU, MPR_UNIT

GID = gid_of(ip_address("10.0.0.1"))


def parameters(qpn: int = 3, dest_qpn: int = 0xFFFFFF, **fields: int) -> QpParameters:
    body = connect_body(qpn, dest_qpn, GID, GID, **fields)
    return qp_parameters(read_struct("mrc_agent_connect", body)[0])


@pytest.mark.parametrize("number", [0, 2, 0x1000000, 0xFFFFFFFF])
def test_qp_parameters__no_qpn(number: int) -> None:
    for qpns in ((number, 3), (3, number)):
        with pytest.raises(ProtocolError, match="not a QPN"):
            parameters(*qpns)


@pytest.mark.parametrize(
    ("name", "asked", "found"),
    [
        ("sq_depth", 65536, 65536),
        ("sq_depth", 65537, 65536),
        ("max_wimm", 1025, 1024),
        ("mpr", 1, MPR_UNIT),
        ("mpr", MPR_UNIT, MPR_UNIT),
        ("mpr", MAX_MPR + 1, MAX_MPR),
        ("path_mtu", 0, 0),
        ("path_mtu", 1, 0),
        ("path_mtu", MIN_MTU - 4, MIN_MTU),
        ("path_mtu", 1027, 1024),
        ("path_mtu", 65532, MAX_MTU),
        ("timeout", 0, 0),
        ("timeout", 1, 14),
        ("timeout", 31, 24),
        ("retry_exp", 0, 0),
        ("retry_exp", 1, 1),
        ("retry_exp", 200, 25),
    ],
)
def test_qp_parameters__what_the_engine_can_do(name: str, asked: int, found: int) -> None:
    fields: Any = {name: asked}
    assert getattr(parameters(**fields), name) == found


@pytest.mark.parametrize("inbox", [{}, {"address": 4096}, {"rkey": 9}])
def test_qp_parameters__messages_without_an_inbox(inbox: dict[str, int]) -> None:
    with pytest.raises(ProtocolError, match="has no inbox"):
        parameters(messages=1, **inbox)


def test_qp_parameters__messages() -> None:
    inbox = {"peer": 5, "address": 4096, "rkey": 9}
    assert parameters(messages=1, **inbox).messages == (5, Inbox(4096, 9))
    assert parameters(**inbox).messages is None


# ---- Emulated RC ------------------------------------------------------------------------------

RC = {"emulated": 1, "address": 4096, "rkey": 9}


def test_private__has_the_inbox_of_emulated_rc() -> None:
    found = parameters(**RC, shared=1)
    assert found.private["rc"] == {"address": 4096, "rkey": 9, "shared": True}
    assert emulated_in(found.private) == found.emulated
    assert "rc" not in parameters().private


@pytest.mark.parametrize("field", ["address", "rkey"])
def test_qp_parameters__emulated_rc_without_an_inbox(field: str) -> None:
    with pytest.raises(ProtocolError, match=field):
        parameters(**RC | {field: 0})


def test_admit__emulated_rc_at_both_ends_or_none() -> None:
    ends = {"from": 0xFFFFFF, "to": 3}
    inbox = {"rc": {"address": 1, "rkey": 1, "shared": False}}
    parameters().admit(ends)
    parameters(**RC).admit(ends | inbox)
    for mine, theirs in ((parameters(), ends | inbox), (parameters(**RC), ends)):
        with pytest.raises(ConnectError, match="start both with mrc run --rc, or neither"):
            mine.admit(theirs)


@pytest.mark.parametrize("inbox", [1, {}, {"address": 0, "rkey": 1, "shared": False}, [[]]])
def test_admit__refuses_a_wrong_inbox(inbox: object) -> None:
    with pytest.raises(ProtocolError, match="emulated RC: "):
        parameters(**RC).admit({"from": 0xFFFFFF, "to": 3, "rc": inbox})
