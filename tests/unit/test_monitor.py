# SPDX-License-Identifier: Apache-2.0
"""Which changes of links reach the engine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from ipaddress import ip_interface

import pytest

from mrc.hostconfig import IpInterface
from mrc.monitor import link_snapshots, links_up, watch_links
from mrc.paths import LocalPort


@dataclass(frozen=True)
class Nic:
    name: str
    up: bool = True
    mtu: int = 1500
    addresses: Sequence[IpInterface] = ()


ADDRESS = ip_interface("10.0.0.1/24")
PORTS = [
    LocalPort(1, "eth0", ADDRESS, 1408, ifname="eth0"),
    LocalPort(2, "eth1", ADDRESS, 1408, ifname="eth1"),
    LocalPort(3, "lo", ADDRESS, 1408, loopback=True),
]


@pytest.mark.parametrize(
    ("interfaces", "expected"),
    [
        ([Nic("eth0"), Nic("eth1")], {1: True, 2: True}),
        ([Nic("eth0", up=False), Nic("eth1")], {1: False, 2: True}),
        ([Nic("eth1")], {1: False, 2: True}),  # eth0 was removed
        ([], {1: False, 2: False}),
    ],
)
def test_links_up__by_plane_and_only_of_tied_ports(
    interfaces: list[Nic], expected: dict[int, bool]
) -> None:
    assert links_up(PORTS, interfaces) == expected


async def test_watch_links__tells_changes_once() -> None:
    both, first = [Nic("eth0"), Nic("eth1")], [Nic("eth0")]

    async def snapshots() -> AsyncIterator[Sequence[Nic]]:
        for snapshot in (both, first, first, both, both):
            yield snapshot

    told: list[tuple[int, bool]] = []
    await watch_links(PORTS, snapshots(), lambda plane, up: told.append((plane, up)))
    assert told == [(2, False), (2, True)]


async def test_watch_links__a_link_that_is_down_from_the_start() -> None:
    async def snapshots() -> AsyncIterator[Sequence[Nic]]:
        yield [Nic("eth1")]

    told: list[tuple[int, bool]] = []
    await watch_links(PORTS, snapshots(), lambda plane, up: told.append((plane, up)))
    assert told == [(1, False)]


async def test_link_snapshots__begin_with_what_is_and_end_when_cancelled() -> None:
    snapshots = link_snapshots()
    assert "lo" in [interface.name for interface in await anext(snapshots)]
    waiting = asyncio.ensure_future(anext(snapshots))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
