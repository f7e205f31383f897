# SPDX-License-Identifier: Apache-2.0
"""Hosts with several interfaces, in wirings that are made by hand or drawn from a seed: mrc uses
all that plain UDP reaches, and survives the death of each link.

The wiring of a seed is the first line of a failure: `pytest 'test_wirings.py' -k 'goodput and 17'`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from itertools import chain
from pathlib import Path

import pytest
from netns.processes import Mrc, Start
from netns.wirings import HOSTS, Built, Firewall, Link, Pair, Reach, Segment, Wiring, built
from printed import printed
from slowness import PATIENCE, until

from mrc.linux import netns

SWITCH, ROUTED, CABLE = Segment(), Segment(routed=True), Segment(cable=True)
TRANSPORT_BYTES = 48 + 44  # IPv6, UDP and the headers of a write
CONNECT_BYTES = 500_000  # more than all probes of a connect
ETHERNET_BYTES = 14  # which the rates of links count, too


def routed(ports_a: int, ports_b: int, **more: object) -> Wiring:
    """Hosts whose interfaces have a subnet each, joined by the router."""
    a, b = (tuple(map(Link, range(first, last))) for first, last in
            ((0, ports_a), (ports_a, ports_a + ports_b)))  # fmt: skip
    return Wiring((ROUTED,) * (ports_a + ports_b), a, b, **more)  # type: ignore[arg-type]


def pairs(text: str) -> list[Pair]:
    return [(near, far) for near, far in (each.split("-") for each in text.split())]


ALL_OF_TWO = "e0-e0 e0-e1 e1-e0 e1-e1"
TWO = (Link(0), Link(1))
ONE_SUBNET = (Link(0), Link(0))
KNOWN = {
    "cables": (Wiring((CABLE, CABLE), TWO, TWO), "e0-e0 e1-e1", 100),
    "one IPv4 subnet": (Wiring((SWITCH,), ONE_SUBNET, ONE_SUBNET), ALL_OF_TWO, 100),
    "one IPv6 subnet": (Wiring((Segment((6,)),), ONE_SUBNET, ONE_SUBNET), ALL_OF_TWO, 100),
    "two switches": (Wiring((SWITCH, SWITCH), TWO, TWO), "e0-e0 e1-e1", 100),
    "router 2:1": (routed(2, 1), "e0-e0 e1-e0", 50),
    "router 1:2": (routed(1, 2), "e0-e0 e0-e1", 50),
    "router 3:2": (routed(3, 2), "e0-e0 e0-e1 e1-e0 e1-e1 e2-e0 e2-e1", 100),
    "router and one subnet": (
        Wiring((ROUTED, ROUTED), ONE_SUBNET, (Link(1), Link(1))), ALL_OF_TWO, 100,
    ),
    "strict filter of sources": (routed(2, 1, rp_filter=1), "e0-e0", 50),
    "firewall": (routed(2, 1, firewalls=(Firewall(("e1", "e0")),)), "e0-e0", 50),
    "overlay": (Wiring((CABLE,), (Link(0),), (Link(0),), ("e0", "e0")), "e0-e0 vx-vx", 50),
}  # fmt: skip


@pytest.mark.parametrize(
    "name",
    [pytest.param(each, marks=pytest.mark.default) if each == "router 3:2" else each
     for each in KNOWN],
)  # fmt: skip
def test_reach__of_known_wirings(name: str) -> None:
    wiring, reached, most = KNOWN[name]
    with built(wiring) as made:
        reach = Reach(made)
    assert reach.pairs == pairs(reached)
    assert wiring.most(reach.pairs) == most


@pytest.mark.default
def test_most__is_that_of_links_not_of_pairs() -> None:
    wiring = Wiring((SWITCH,), (Link(0, 50), Link(0, 30)), (Link(0, 40), Link(0, 20)))
    assert wiring.most(pairs(ALL_OF_TWO)) == 60, "b's links"
    assert wiring.most(pairs("e0-e0 e1-e1")) == 60
    assert wiring.most(pairs("e0-e1 e1-e0")) == 50
    assert wiring.most(pairs("e0-e0 e0-e1")) == 50, "a's first link"
    assert wiring.most(pairs("e1-e0 e0-e0 e0-e1")) == 60, "only if e0 leaves b's e0 to e1"
    assert wiring.most(pairs(ALL_OF_TWO), ("a", "e0")) == 30
    assert wiring.most([]) == 0
    cable = Wiring((CABLE,), (Link(0),), (Link(0),), ("e0", "e0"))
    assert cable.most(pairs("e0-e0 vx-vx")) == cable.most(pairs("vx-vx")) == 50
    assert cable.most(pairs("vx-vx"), ("b", "e0")) == 0


@pytest.mark.default
def test_drawn__one_to_four_interfaces_and_the_same_of_one_seed() -> None:
    drawn = [Wiring.drawn(seed) for seed in range(300)]
    assert drawn == [Wiring.drawn(seed) for seed in range(300)]
    assert len(set(map(str, drawn))) > 290
    for host in HOSTS:
        assert {len(each.links(host)) for each in drawn} == {1, 2, 3, 4}
    assert all("\n" not in str(each) for each in drawn)
    for has in (
        lambda each: each.overlay,
        lambda each: each.firewalls,
        lambda each: any(segment.cable for segment in each.segments),
        lambda each: any(segment.routed for segment in each.segments),
        lambda each: any(segment.versions == (6,) for segment in each.segments),
    ):
        assert 30 < sum(map(bool, map(has, drawn))) < 270


# ---- Transfers -----------------------------------------------------------------------------------


@cache
def reach_of(wiring: Wiring) -> Reach:
    with built(wiring) as made:
        return Reach(made)


@contextmanager
def transfer(
    wiring: Wiring, start: Start, *arguments: str, server: Sequence[str] = ()
) -> Iterator[tuple[Built, Mrc]]:
    """A built wiring in which a writes to b, which has the options of `server`."""
    print(wiring)
    named = [*reach_of(wiring).tcp, *chain(*wiring.addresses("b").values())][0]
    with built(wiring) as made:
        start(made.b, "perf", "--server", "--one-off", *server).until_listening()
        yield made, start(made.a, "perf", named, *arguments)


def until_carried(made: Built, program: Mrc, count: int, *links: tuple[str, str]) -> None:
    """Waits until each of these links, a host and an interface, has carried so many bytes."""

    def carried() -> bool:
        assert program.process.poll() is None, program.lines
        now = made.carried_bytes()
        return all(now[link] >= count for link in links)

    until(carried, program.lines, pause=0.05)


def links(wiring: Wiring) -> list[tuple[str, str]]:
    return [(host, name) for host in HOSTS for name in wiring.names(host)]


def needed(wiring: Wiring) -> list[tuple[str, str]]:
    """The links without which less could be carried."""
    reached = reach_of(wiring).pairs
    most = wiring.most(reached)
    return [link for link in links(wiring) if wiring.most(reached, link) < most]


SEEDS = (0, 5, 6)
"""a few that differ"""


@pytest.mark.parametrize("seed", SEEDS)
def test_perf__uses_all_links(start: Start, seed: int) -> None:
    wiring = Wiring.drawn(seed)
    carries(wiring, start, needed(wiring))


@pytest.mark.default
def test_perf__uses_both_links_of_one_ipv4_subnet(start: Start) -> None:
    """By the kernel's defaults each interface answers ARP requests for the addresses of both."""
    wiring = KNOWN["one IPv4 subnet"][0]
    carries(wiring, start, links(wiring))


@pytest.mark.parametrize("name", ["router 2:1", "router 1:2", "router 3:2"])
def test_perf__uses_all_uplinks_over_a_router(start: Start, name: str) -> None:
    wiring = KNOWN[name][0]
    carries(wiring, start, links(wiring))


@pytest.mark.parametrize("ports", [(2, 1), (1, 2)])
def test_perf__uses_an_uplink_with_a_smaller_mtu(start: Start, ports: tuple[int, int]) -> None:
    mtus = (9000, 1500, 9000) if ports == (2, 1) else (9000, 9000, 1500)
    wiring = routed(*ports)
    segments = tuple(Segment(mtu=mtu, routed=True) for mtu in mtus)
    wiring = replace(wiring, segments=segments)
    carries(wiring, start, links(wiring))


def test_perf__uses_both_named_uplinks_over_a_router(start: Start) -> None:
    wiring = KNOWN["router 2:1"][0]
    carries(wiring, start, links(wiring), "-B", "e0", "-B", "e1")


def test_perf__a_link_that_answers_to_the_other_one_only(start: Start) -> None:
    """It is said not to answer, and then that it does."""
    wiring = routed(2, 2, firewalls=(Firewall(("e0", "e0")),))
    with transfer(wiring, start, "-t", "1000") as (made, client):
        until_carried(made, client, 1 << 20, *links(wiring))
        client.until_says("plane 1 (e0) to 10.0.2.101 does not answer")
        client.until_says("(e0) to 10.0.2.101 answers: it is used")


def carries(wiring: Wiring, start: Start, links: list[tuple[str, str]], *arguments: str) -> None:
    """Each of these links carries data."""
    with transfer(wiring, start, "-t", "1000", *arguments) as (made, client):
        until_carried(made, client, 1 << 20, *links)


@pytest.mark.parametrize(
    ("name", "dying", "kind"),
    [
        ("router 2:1", "a e0", "down"),
        ("router 2:1", "a e1", "silence"),
        ("router 1:2", "b e0", "silence"),
        ("router 3:2", "a e0", "down"),
        ("one IPv4 subnet", "b e1", "down"),
        ("one IPv4 subnet", "a e0", "down"),
    ],
)
def test_perf__goes_on_when_a_link_dies(start: Start, name: str, dying: str, kind: str) -> None:
    host, interface = dying.split()
    survives(KNOWN[name][0], start, (host, interface), kind)


@pytest.mark.parametrize(("seed", "kind"), [(0, "down"), (5, "silence")])
def test_perf__survives_the_death_of_a_link(start: Start, seed: int, kind: str) -> None:
    wiring = Wiring.drawn(seed)
    dying = next(each for each in needed(wiring) if wiring.most(reach_of(wiring).pairs, each))
    survives(wiring, start, dying, kind)


def survives(wiring: Wiring, start: Start, dying: tuple[str, str], kind: str) -> None:
    """A link dies in the middle of a transfer, which lasts two seconds or more without it."""
    count = wiring.most(reach_of(wiring).pairs) * 1_000_000 // 8 * 2
    with transfer(wiring, start, "-n", str(count)) as (made, client):
        until_carried(made, client, CONNECT_BYTES, dying)
        getattr(made, kind)(*dying)
        client.ends(0)


def test_perf__both_ends_learn_the_end_when_their_connection_has_gone(start: Start) -> None:
    """The TCP connection leads to a link of the listener that goes down: it is opened again."""
    wiring = KNOWN["cables"][0]
    with built(wiring) as made:
        server = start(made.b, "perf", "--server", "--one-off").until_listening()
        client = start(made.a, "perf", "10.0.0.101", "-n", str(25_000_000))
        until_carried(made, client, CONNECT_BYTES, *links(wiring))
        made.down("b", "e0")
        client.ends(0)
        server.ends(0)


# ---- All seeds -----------------------------------------------------------------------------------

ALL_SEEDS = range(300)


def efficiency(wiring: Wiring) -> float:
    """The share of payload in what the links carry: all planes use the smallest packets."""
    payload = min(map(wiring.mtu, reach_of(wiring).pairs)) - TRANSPORT_BYTES
    return payload / (payload + TRANSPORT_BYTES + ETHERNET_BYTES)


@pytest.mark.slow
@pytest.mark.parametrize("seed", ALL_SEEDS)
def test_goodput__of_a_drawn_wiring(start: Start, seed: int) -> None:
    wiring = Wiring.drawn(seed)
    with transfer(wiring, start, "-O", "1", "-t", "4", "-J") as (_, client):
        if not reach_of(wiring).tcp or not reach_of(wiring).pairs:
            # Or mrc does, with packets that came in at another interface than a plain socket reads.
            assert client.process.wait(PATIENCE) in (0, 3, 4), "nothing joins these hosts"
            return
        result = json.loads(client.ends(0))
    goodput = result["results"][0]["goodput_bits_per_second"] / 1e6
    assert goodput >= 0.9 * wiring.most(reach_of(wiring).pairs) * efficiency(wiring), client.lines


@pytest.mark.slow
@pytest.mark.parametrize("seed", ALL_SEEDS)
def test_death__of_each_link_of_a_drawn_wiring(start: Start, seed: int) -> None:
    wiring = Wiring.drawn(seed)
    for number, dying in enumerate(needed(wiring), seed):
        if reach_of(wiring).tcp and wiring.most(reach_of(wiring).pairs, dying):
            survives(wiring, start, dying, ("down", "silence")[number % 2])


# ---- mrc paths --why -----------------------------------------------------------------------------


@contextmanager
def receiving(wiring: Wiring, start: Start, folder: Path) -> Iterator[Built]:
    """A built wiring in which b runs mrc recv."""
    print(wiring)
    with built(wiring) as made:
        start(made.b, "recv", "--output", folder).until_says("listening on TCP port")
        yield made


def why(made: Built, start: Start) -> tuple[dict[str, tuple[str, str]], Mrc]:
    """The state of each pair of interfaces, and why, as `mrc paths --why` prints it."""
    named = next(chain(*made.wiring.addresses("b").values()))
    look = start(made.a, "paths", "--why", "--json", named)
    told = printed("paths", look.ends(0))["pairs"]
    return {f"{p['nic']}-{p['peer_nic']}": (p["state"], p["why"]) for p in told}, look


@pytest.mark.default
def test_why__names_each_pair_of_interfaces(start: Start, tmp_path: Path) -> None:
    wiring = Wiring((SWITCH, Segment((6,)), SWITCH), (Link(0), Link(1), Link(2)), (Link(0),))
    with receiving(wiring, start, tmp_path) as made:
        made.down("a", "e2")
        shown = start(made.a, "paths", "--why", made.wiring.addresses("b")["e0"][0]).ends(0)
    rows = [line.split(maxsplit=7) for line in shown.splitlines() if line.startswith("e")]
    named = [(row[0], row[2], row[4], row[5]) for row in rows]
    assert named == [("e0", "e0", "1", "USED"), ("e1", "e0", "-", "UNFIT")]
    assert shown.count("no common IP version") == 1
    assert "not used: e2 is down" in shown


def test_why__a_firewall_and_another_way(start: Start, tmp_path: Path) -> None:
    wiring = routed(2, 2, firewalls=(Firewall(("e0", "e0")),))
    with receiving(wiring, start, tmp_path) as made:
        found, _ = why(made, start)
    assert found["e0-e0"] == ("SILENT", "no answer over UDP")
    assert found["e1-e1"] == ("USED", "")
    assert {found["e0-e1"][0], found["e1-e0"][0]} <= {"USED", "WAITS"}


def test_why__of_hosts_that_no_path_joins(start: Start, tmp_path: Path) -> None:
    wiring = routed(1, 1, firewalls=(Firewall(("e0", "e0")),))
    with receiving(wiring, start, tmp_path) as made:
        look = start(made.a, "paths", "--why", made.wiring.addresses("b")["e0"][0])
        shown = look.ends(4)
    assert "SILENT  0 of 8  no answer over UDP" in shown


def test_why__names_arp_where_interfaces_share_a_network(start: Start, tmp_path: Path) -> None:
    """Without IPv6. A firewall stands for ARP, whose race has no certain end."""
    crossed = (("e1", "e1"), ("e0", "e1"), ("e1", "e0"))
    wiring = Wiring((SWITCH,), ONE_SUBNET, ONE_SUBNET, firewalls=tuple(map(Firewall, crossed)))
    with built(wiring) as made:
        for name in (made.a, made.b):
            netns.set_sysctls(name, {f"net/ipv6/conf/{which}/disable_ipv6": "1"
                                     for which in ("all", "default")})  # fmt: skip
        start(made.b, "recv", "--output", tmp_path).until_says("listening on TCP port")
        found, look = why(made, start)
        doctor = printed("doctor", start(made.a, "doctor", "--json").ends(0))
    assert found["e0-e0"] == ("USED", "")
    state, reason = found["e1-e1"]
    assert state == "SILENT" and "because of ARP: run mrc doctor on this host and 10.0" in reason
    assert "answer ARP for its address" in look.complaint()
    (arp,) = [each for each in doctor["findings"] if each["name"] == "ARP"]
    assert (arp["state"], arp["found"]) == ("limited", "e0 and e1 are in one IPv4 network")
    assert "without IPv6" in arp["consequence"]
