# SPDX-License-Identifier: Apache-2.0
"""A connection that is opened again: which QP gets it, and what stays of the one before."""

from __future__ import annotations

import asyncio
import random
import socket
from ipaddress import ip_address
from types import SimpleNamespace
from unittest.mock import AsyncMock, Mock

import pytest

from mrc.connect import dial
from mrc.connect.dial import REJOIN, Rejoins, new_token, rejoined
from mrc.connect.oob import Channel
from mrc.errors import ConnectError, ConnectRefusedError, ResolveError
from mrc.linux.namespace import OWN


def qp(identity: str = "", *, closed: bool = False) -> Mock:
    return Mock(peer=SimpleNamespace(identity=identity), closed=closed)


def channel(token: object, identity: str = "") -> Mock:
    return Mock(
        peer_identity=identity,
        expect=AsyncMock(return_value={"type": REJOIN, "token": token}),
        send=AsyncMock(),
    )


async def test_take__the_qp_of_the_token() -> None:
    rejoins, its, token = Rejoins(), qp("a"), new_token()
    rejoins.add(token, its)
    again = channel(token, "a")
    await rejoins.take(again)
    again.send.assert_awaited_once_with(REJOIN)
    its._take_channel.assert_called_once_with(again)


@pytest.mark.parametrize(
    ("token", "identity", "closed"),
    [("0" * 32, "a", False), (None, "a", False), ("right", "b", False), ("right", "a", True)],
)
async def test_take__refuses_others(token: str | None, identity: str, closed: bool) -> None:
    rejoins, its, right = Rejoins(), qp("a", closed=closed), new_token()
    rejoins.add(right, its)
    again = channel(right if token == "right" else token, identity)
    with pytest.raises(ConnectError, match="no such QP"):
        await rejoins.take(again)
    its._take_channel.assert_not_called()
    again.send.assert_not_awaited()


async def test_take__no_qp_that_is_gone() -> None:
    rejoins, token = Rejoins(), new_token()
    rejoins.add(token, qp())
    with pytest.raises(ConnectError, match="no such QP"):
        await rejoins.take(channel(token))


async def test_rejoined__tries_until_it_works(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dial, "_FIRST_PAUSE_SECONDS", 0)
    refused = Mock(send=AsyncMock(), expect=AsyncMock(side_effect=ConnectRefusedError("busy")))
    works = channel("")
    ways = AsyncMock(side_effect=[OSError("no route"), refused, works])
    assert await rejoined(ways, None, "t", random.Random(1)) is works
    refused.abort.assert_called_once()
    works.send.assert_awaited_once_with(REJOIN, token="t")


def opened() -> Channel:
    writer = Mock()
    tcp = Mock(fileno=Mock(return_value=0))
    known = {"sockname": ("127.0.0.1", 1), "peername": ("127.0.0.1", 2), "socket": tcp}
    writer.get_extra_info.side_effect = known.get
    return Channel(Mock(), writer)


async def test_dial__other_addresses_although_no_name_server_answers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    silent = AsyncMock(side_effect=socket.gaierror(-3, "Temporary failure in name resolution"))
    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", silent, raising=False)
    first = AsyncMock(side_effect=OSError("nobody listens"))
    monkeypatch.setattr(dial, "_first", first)
    others = [ip_address("192.0.2.1"), ip_address("fe80::1")]
    with pytest.raises(ConnectError):
        await dial.dial(None, "peer.example", 4791, None, others)
    first.assert_awaited_once_with([("192.0.2.1", None)], 4791, OWN)
    with pytest.raises(ResolveError):
        await dial.dial(None, "peer.example", 4791)


def test_hand_over__keeps_what_is_of_the_qp() -> None:
    """A connection's place is free again, however often a peer comes; its claims stay."""
    before, after, place, claims = opened(), opened(), Mock(), Mock()
    before.at_end(place)
    before.at_end(claims, of_qp=True)
    before.hand_over(after)
    place.assert_called_once_with()
    claims.assert_not_called()
    after.abort()
    claims.assert_called_once_with()
    place.assert_called_once_with()
