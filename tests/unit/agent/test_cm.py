# SPDX-License-Identifier: Apache-2.0
"""What agents say about rdma_cm, and the structs of libmrc-cm."""

from __future__ import annotations

import json
from ipaddress import ip_address
from typing import Any

import pytest

from mrc.agent.rdma_cm import (
    CmAddress,
    CmAnswer,
    CmDisconnect,
    CmParams,
    CmRequest,
    end_of,
    event_fields,
    gid_of,
    message_of,
    params_of,
    read,
)
from mrc.agent.steering import read_struct, struct_bytes
from mrc.enums import CmEvent
from mrc.errors import ProtocolError

PARAMS = CmParams(3, 4, True, 7, 6, True, "0102")
BY = CmAddress(ip_address("10.0.0.1"), 40000, 77, "ab" * 16)
REQUEST = CmRequest(ip_address("fd00::1"), 7471, BY, PARAMS)


@pytest.mark.parametrize(
    "said",
    [REQUEST, CmAnswer(BY, 0, PARAMS), CmAnswer(reason=28), CmAnswer(), CmDisconnect("cd" * 16)],
)
def test_messages__as_json(said: Any) -> None:
    message = json.loads(json.dumps(message_of(said)))
    assert read(message | {"type": "cm", "later": 1}, type(said)) == said


def changed(*path: str, to: object) -> dict[str, Any]:
    message = message_of(REQUEST)
    inner = message
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = to
    return message


@pytest.mark.parametrize(
    ("path", "to"),
    [
        (("port",), 0), (("port",), 65536), (("to",), "nowhere"), (("by", "qpn"), 2),
        (("by", "token"), "ab"), (("params", "private"), "00" * 197), (("params", "private"), "0"),
        (("params", "retry_count"), 8), (("params", "srq"), "yes"), (("by",), None),
    ],
)  # fmt: skip
def test_read__wrong_words(path: tuple[str, ...], to: object) -> None:
    with pytest.raises(ProtocolError, match="wrong words about rdma_cm: "):
        read(changed(*path, to=to), CmRequest)


def test_read__words_are_shown_safely() -> None:
    with pytest.raises(ProtocolError) as caught:
        read(changed("to", to="\x1b[31m" * 1000), CmRequest)
    assert "\x1b" not in str(caught.value) and len(str(caught.value)) < 500


def test_structs__both_ways() -> None:
    fields = event_fields(
        9, CmEvent.CONNECT_REQUEST, child=10, peer=BY, params=PARAMS, own={"port": 1}
    )
    found, _ = read_struct("mrc_agent_cm", struct_bytes("mrc_agent_cm", fields))
    assert (found.id, found.event, found.child, found.own.port) == (9, 4, 10, 1)
    assert end_of(found.peer) == BY
    assert params_of(found) == CmParams(4, 3, True, 7, 6, True, "0102")  # as the other side sees it
    assert gid_of(bytes(found.own.gid)) is None
    assert gid_of(bytes(found.peer.gid)) == BY.gid


def test_structs__of_a_program_that_errs() -> None:
    found, _ = read_struct("mrc_agent_cm", struct_bytes("mrc_agent_cm", {"private_bytes": 197}))
    with pytest.raises(ProtocolError, match="197 bytes"):
        params_of(found)
    with pytest.raises(ProtocolError):
        end_of(found.own)
