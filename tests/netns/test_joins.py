# SPDX-License-Identifier: Apache-2.0
"""Links and addresses that come while a QP runs, and join it. The hosts are those of test_links."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from netns.plain import Peer, address, ip
from netns.test_links import DATA, A, B, hosts, in_a, ipv4, link, writing

__all__ = ["hosts", "ipv4"]  # fixtures


@pytest.mark.default
@in_a
async def test_join__a_link_that_comes_later(ipv4: None) -> None:
    """Both hosts get it while the QP runs; it leaves and comes again."""
    link(1)
    with Peer(B, len(DATA)) as peer:
        async with writing() as writer:
            await writer.until_planes_carry(1)
            await asyncio.to_thread(link, 2)
            await writer.until_planes_carry(1, 2)
            await asyncio.to_thread(ip, f"-n {A} link del x2")
            await writer.until_planes_carry(1)
            await asyncio.to_thread(link, 2)
            await writer.until_planes_carry(1, 2)
    assert peer.target == DATA


@in_a
async def test_join__the_first_link_leaves_after_the_second_came(ipv4: None) -> None:
    """The TCP connection of the exchange dies with it."""
    link(1)
    with Peer(B, len(DATA)) as peer:
        async with writing() as writer:
            await writer.until_planes_carry(1)
            await asyncio.to_thread(link, 2)
            await writer.until_planes_carry(1, 2)
            await asyncio.to_thread(ip, f"-n {A} link del x1")
            await writer.until_planes_carry(2)
    assert peer.target == DATA


@pytest.fixture
def only_ipv4(ipv4: None) -> None:
    """Neither host takes a link-local address while it has no other."""
    ip(f"netns exec {A} sysctl -qw net.ipv6.conf.default.disable_ipv6=1")
    ip(f"netns exec {A} sysctl -qw net.ipv4.conf.default.promote_secondaries=1")


def renumber_a() -> None:
    ip(f"-n {A} addr del 10.0.1.1/24 dev x1")
    address(A, "x1", "10.0.1.7/24")


def renumber_a_in_turn() -> None:
    address(A, "x1", "10.0.1.7/24")
    ip(f"-n {A} addr del 10.0.1.1/24 dev x1")


@pytest.mark.parametrize("renumber", [renumber_a, renumber_a_in_turn])
@in_a
async def test_join__the_only_link_is_renumbered(
    only_ipv4: None, renumber: Callable[[], None]
) -> None:
    """It goes on without a new QP, at the host that has connected."""
    link(1)
    with Peer(B, len(DATA)) as peer:
        async with writing() as writer:
            await writer.until_planes_carry(1)
            await asyncio.to_thread(renumber)
            await writer.until_ports("2 x1 10.0.1.7")
            await writer.until_planes_carry(2)
            await writer.write()
    assert peer.target == DATA
