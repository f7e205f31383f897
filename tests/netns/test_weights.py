# SPDX-License-Identifier: Apache-2.0
"""Links with a price: an interface that a user calls a backup, or gives a weight, at either end."""

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace
from netns.plain import Peer, ip
from netns.processes import Mrc, Start
from netns.test_links import DATA, A, B, hosts, in_a, srv6_host, srv6_link, writing
from netns.test_wirings import KNOWN, routed, transfer, until_carried
from netns.wirings import Built

from mrc import ContextConfig

__all__ = ["hosts"]  # a fixture

MIB = 1 << 20
# Of 16 MiB: probes, and a few bursts, since a busy host may take the other link for silent for a
# moment.
FEW_BYTES = MIB


def until_more(made: Built, program: Mrc, count: int, interface: str) -> dict[tuple[str, str], int]:
    """Waits until this interface of a has carried so many bytes more; returns what all carried."""
    before = made.carried_bytes()
    until_carried(made, program, before["a", interface] + count, ("a", interface))
    after = made.carried_bytes()
    return {link: after[link] - before[link] for link in before}


@pytest.mark.parametrize(
    ("here", "there"),
    [
        pytest.param("-B e0 -B e1:backup", "", marks=pytest.mark.default, id="sender"),
        pytest.param("", "-B e0 -B e1:backup", id="receiver"),
        pytest.param("-B e0 -B e1:backup", "-B e0 -B e1:50", id="both"),
    ],
)
def test_backup__carries_only_while_no_other_link_does(start: Start, here: str, there: str) -> None:
    options = "-t", "1000", *here.split()
    with transfer(KNOWN["cables"][0], start, *options, server=there.split()) as (made, client):
        until_more(made, client, MIB, "e0")
        assert until_more(made, client, 16 * MIB, "e0")["a", "e1"] < FEW_BYTES
        made.down("a", "e0")
        until_more(made, client, 4 * MIB, "e1")
        ip(f"-n {made.a} link set e0 up")
        until_more(made, client, MIB, "e0")
        assert until_more(made, client, 16 * MIB, "e0")["a", "e1"] < FEW_BYTES


def test_backup__of_a_link_that_falls_silent(start: Start) -> None:
    options = "-t", "1000", "-B", "e0", "-B", "e1:backup"
    with transfer(KNOWN["cables"][0], start, *options) as (made, client):
        until_more(made, client, MIB, "e0")
        made.silence("a", "e0")
        until_more(made, client, 4 * MIB, "e1")


def test_weight__is_a_part_of_what_the_other_link_carries(start: Start) -> None:
    options = "-t", "1000", "-B", "e0", "-B", "e1:50"
    with transfer(KNOWN["cables"][0], start, *options) as (made, client):
        until_more(made, client, 8 * MIB, "e0")
        carried = until_more(made, client, 64 * MIB, "e0")
    assert 0.4 < carried["a", "e1"] / carried["a", "e0"] < 0.6


def test_backup__at_opposite_ends_of_the_usual_pairs(start: Start) -> None:
    """Over a router, two links that no host calls a backup are another pair."""
    options = "-t", "1000", "-B", "e0:backup", "-B", "e1"
    server = "-B", "e0", "-B", "e1:backup"
    with transfer(routed(2, 2), start, *options, server=server) as (made, client):
        until_carried(made, client, MIB, ("a", "e1"), ("b", "e0"))
        until_more(made, client, MIB, "e1")
        carried = until_more(made, client, 16 * MIB, "e1")
        assert carried["a", "e0"] < FEW_BYTES and carried["b", "e1"] < FEW_BYTES


@in_a
async def test_backup__of_a_host_configuration_with_srv6(hosts: None) -> None:
    for n, namespace in enumerate((A, B), 1):
        ip(f"netns exec {namespace} sysctl -qw net.ipv6.conf.default.accept_dad=0")
        ip(f"-n {namespace} addr add fd00:{n}::a/64 dev lo nodad")
        ip(f"-n {namespace} route add local fd00:{n}::/64 dev lo")
    srv6_link(1)
    srv6_link(2)
    there = srv6_host("b", "a", 2)
    dear = replace(there.ports[1], weight=0)
    there = replace(there, ports=(there.ports[0], dear))
    with Peer(B, len(DATA), ContextConfig(host=there)):
        async with writing(ContextConfig(host=srv6_host("a", "b", 1)), "b") as writer:
            for _ in range(10):
                await writer.write()
            planes = (await writer.qp.info()).planes
            assert [(plane.weight, plane.sent_packets > 0) for plane in planes] == [
                (100, True), (0, False)
            ]  # fmt: skip
            await asyncio.to_thread(ip, f"-n {A} link set x1 down")
            await writer.until_planes_carry(2)
