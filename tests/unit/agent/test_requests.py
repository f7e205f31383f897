# SPDX-License-Identifier: Apache-2.0
"""Probes of EVs towards hosts: which QPs the agent keeps for them."""

from __future__ import annotations

import asyncio
import errno
from typing import Any

import pytest
from msgspec import Struct

from mrc.agent import requests
from mrc.agent.profiles import EvValue, RequestError, ev_of
from mrc.agent.requests import EvProbe, EvProbeAnswer, EvProber
from mrc.errors import ConnectError

PLANE, SPORT = 2, 40000
EV = ev_of(PLANE, (), SPORT)


class Path(Struct):
    index: int = 0
    plane: int = PLANE
    usids: tuple[str, ...] = ()
    ev: int = SPORT << 16


class Result(Struct):
    rtt_ns: int | None


class Peer:
    """A QP to a host. It answers probes, unless it is silent."""

    def __init__(self, host: str, *, silent: bool = False) -> None:
        self.host, self.silent, self.closed = host, silent, False

    async def evs(self) -> list[Path]:
        return [Path()]

    async def probe_evs(self, indices: list[int], *, timeout: float) -> list[Result]:
        assert indices == [0] and timeout == 1.0 and not self.closed
        return [Result(None if self.silent else 1000)]

    async def close(self) -> None:
        self.closed = True


class Peers:
    """The QPs that were connected, in this order. Hosts in `away` have no agent."""

    def __init__(self) -> None:
        self.made: list[Peer] = []
        self.away: set[str] = set()

    async def connect(self, host: str) -> Any:
        if host in self.away:
            raise ConnectError(f"{host}: no program listens") from ConnectionRefusedError()
        self.made.append(Peer(host))
        return self.made[-1]

    @property
    def open(self) -> list[str]:
        return [peer.host for peer in self.made if not peer.closed]


def probes(*hosts: str, ev: EvValue = EV) -> list[EvProbe]:
    return [EvProbe(number, host, ev) for number, host in enumerate(hosts)]


@pytest.fixture
def peers(monkeypatch: pytest.MonkeyPatch) -> Peers:
    monkeypatch.setattr(requests, "_MOST_QPS", 2)
    return Peers()


async def test_probe__those_that_answer(peers: Peers) -> None:
    asked = EvProber(peers.connect)
    one, other = EvProbeAnswer(0, PLANE, 1000), EvProbeAnswer(1, PLANE, 1000)
    assert await asked.probe(probes("a", "b"), 1.0) == [one, other]
    peers.made[0].silent = True
    assert await asked.probe(probes("a", "b"), 1.0) == [other]
    assert peers.open == ["a", "b"]


async def test_probe__another_qp_when_the_peer_has_closed_the_former(peers: Peers) -> None:
    asked = EvProber(peers.connect)
    await asked.probe(probes("a"), 1.0)
    peers.made[0].closed = True
    assert len(await asked.probe(probes("a"), 1.0)) == 1
    assert len(peers.made) == 2


async def test_probe__keeps_the_qps_to_hosts_that_were_probed_lately(peers: Peers) -> None:
    asked = EvProber(peers.connect)
    for host in ("a", "b", "a", "c"):
        await asked.probe(probes(host), 1.0)
    assert peers.open == ["a", "c"]


async def test_probe__of_more_hosts_than_it_keeps_qps_to(peers: Peers) -> None:
    """Each host is probed before its QP is closed."""
    assert len(await EvProber(peers.connect).probe(probes(*"abcde"), 1.0)) == 5
    assert peers.open == ["d", "e"]


async def test_probe__of_a_host_without_an_agent(peers: Peers) -> None:
    asked = EvProber(peers.connect)
    peers.away = {"b"}
    with pytest.raises(RequestError, match="b: no program listens; does mrc agent") as refused:
        await asked.probe(probes(*"abcde"), 1.0)
    assert refused.value.number == errno.EHOSTUNREACH
    peers.away.clear()
    assert len(await asked.probe(probes("b"), 1.0)) == 1
    assert len(peers.open) == 2


async def test_probe__of_an_ev_that_leads_nowhere(peers: Peers) -> None:
    elsewhere = ev_of(PLANE, (), SPORT + 1)
    with pytest.raises(RequestError, match="no path to a has EV") as refused:
        await EvProber(peers.connect).probe(probes("a", ev=elsewhere), 1.0)
    assert refused.value.number == errno.EINVAL


async def test_probe__whose_program_ends_before_its_host_refuses(peers: Peers) -> None:
    refused, begun = asyncio.get_running_loop().create_future(), asyncio.Event()

    async def connect(host: str) -> Any:
        begun.set()
        return await (refused if host == "a" else peers.connect(host))

    asked = EvProber(connect)
    cancelled = asyncio.create_task(asked.probe(probes("a"), 1.0))
    await begun.wait()
    cancelled.cancel()
    await asyncio.wait([cancelled])
    refused.set_exception(ConnectError("a: no program listens"))
    for host in "bcd":
        assert len(await asked.probe(probes(host), 1.0)) == 1
    assert peers.open == ["c", "d"]
