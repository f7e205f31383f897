# SPDX-License-Identifier: Apache-2.0
"""Contexts on plain multi-homed hosts: the path source "interfaces" between two namespaces.

a  x1 ------ y1  b        each link is a veth pair; each test sets the addresses
   x2 ------ y2

NAT and firewalls between two hosts: what works, and what the user is told of the rest.

a 10.1.0.2 --- 10.1.0.1 r 10.2.0.1 --- 10.2.0.2 b       r forwards, and has the rules of the test
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import socket
import struct
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from ipaddress import IPv6Interface, ip_address
from pathlib import Path

import pytest
from netns.conftest import fresh_name
from netns.plain import BUDGET_SECONDS, Peer, address, ip, join, namespaces, run_in, until_running
from netns.processes import Start
from slowness import until

import mrc
from mrc import (
    QP,
    ConnectError,
    ContextConfig,
    EventReason,
    EvInfo,
    EvState,
    HostConfig,
    PathError,
    PlaneEvent,
    PortEvent,
    QpInfo,
    Region,
    RemoteMemory,
    Security,
)
from mrc.aio import qp as qp_module
from mrc.connect.proof import NEAR_BYTES
from mrc.enums import PlaneShares
from mrc.errors import PathMtuError
from mrc.fabric.hostconfig import HostPath, HostPeer, HostPort
from mrc.linux import netns
from mrc.testbed import findings
from mrc.testbed.netlink import Netlink

PREFIX = f"mrc-{fresh_name()}"
A, B, ROUTER, ROUTER_B = (f"{PREFIX}-{name}" for name in ("a", "b", "r", "rb"))
DATA = os.urandom(4 << 20)
OOB_PORT = 4791  # every namespace has its own ports


@pytest.fixture
def hosts() -> Iterator[None]:
    """Namespaces a, b and two routers between them, not yet joined."""
    with namespaces(A, B, ROUTER, ROUTER_B):
        yield


@pytest.fixture
def two_links(hosts: None) -> None:
    for n in (1, 2):
        join(A, f"x{n}", B, f"y{n}")
    until_running(A, "x1", "x2")
    until_running(B, "y1", "y2")


@pytest.fixture
def two_subnets(two_links: None) -> None:
    for n in (1, 2):
        address(A, f"x{n}", f"10.0.{n}.1/24")
        address(B, f"y{n}", f"10.0.{n}.2/24")


@dataclass(frozen=True)
class Outcome:
    """The connecting host's view of one write of DATA."""

    path_mtu: int
    info: QpInfo
    evs: tuple[EvInfo, ...]


@asynccontextmanager
async def connected(
    host: str, config: ContextConfig | None = None
) -> AsyncIterator[tuple[QP, Region, RemoteMemory]]:
    """A QP, memory that has DATA, and the peer's memory."""
    async with (
        mrc.open(config) as context,
        context.register(DATA) as region,
        context.connect(host, OOB_PORT) as qp,
    ):
        yield qp, region, RemoteMemory.from_dict(qp.peer.private["memory"])


async def send(config: ContextConfig, host: str) -> Outcome:
    async with connected(host, config) as (qp, region, target):
        await qp.write(region, target)
        return Outcome(qp.path_mtu, await qp.info(), await qp.evs())


EQUAL = ContextConfig(plane_shares=PlaneShares.EQUAL)
"""Measured shares depend on how busy this machine is."""


def transfer(
    host: str,
    *,
    config: ContextConfig = EQUAL,
    peer_config: ContextConfig = ContextConfig(),  # noqa: B008
) -> Outcome:
    """Sends DATA from a to b and checks that it arrived."""
    with Peer(B, len(DATA), peer_config) as peer:
        outcome = run_in(A, lambda: send(config, host)).result()
    assert peer.target == DATA
    return outcome


def undisturbed(host: str) -> Outcome:
    """The first transfer in which nothing is sent twice: planes of a peer that stands still come
    back one after the other.
    """
    while (outcome := transfer(host)).info.retransmitted_packets:
        pass
    return outcome


def shares(outcome: Outcome) -> list[float]:
    """The share of each plane of the QP in the bytes, in order."""
    total = sum(plane.sent_bytes for plane in outcome.info.planes)
    return [plane.sent_bytes / total for plane in outcome.info.planes]


@pytest.mark.parametrize(
    ("near", "far", "mtu"),
    [
        pytest.param("10.0.{n}.1/24", "10.0.{n}.2/24", 1428, marks=pytest.mark.default),
        ("10.0.0.{n}/24", "10.0.0.{m}/24", 1428),
        ("10.0.{n}.1/24 fd00:{n}::1/64", "10.0.{n}.2/24 fd00:{n}::2/64", 1408),
        ("fd00:{n}::1/64 10.0.{n}.1/24", "fd00:{n}::2/64 10.0.{n}.2/24", 1428),
    ],
    ids=["two subnets", "one subnet", "both IP versions, IPv6 named", "both, IPv4 named"],
)
def test_interfaces__two_links_are_two_planes(
    two_links: None, near: str, far: str, mtu: int
) -> None:
    """The last address of each link is named and used."""
    theirs = [far.format(n=n, m=n + 2).split() for n in (1, 2)]
    for n in (1, 2):
        address(A, f"x{n}", *near.format(n=n).split())
        address(B, f"y{n}", *theirs[n - 1])
    outcome = undisturbed(theirs[0][-1].partition("/")[0])
    assert (outcome.path_mtu, len(outcome.evs)) == (mtu, 16)
    found = sorted({(ev.plane, ev.destination) for ev in outcome.evs})
    assert [destination for _, destination in found] == [
        each[-1].partition("/")[0] for each in theirs
    ]
    assert min(shares(outcome)) > 0.4


@pytest.mark.parametrize("mtu", [68, 327])
@pytest.mark.parametrize("at", ["a", "b"])
def test_interfaces__a_link_that_is_too_small_is_left_out(
    two_subnets: None, caplog: pytest.LogCaptureFixture, at: str, mtu: int
) -> None:
    interface = {"a": "x2", "b": "y2"}[at]
    ip(f"-n {PREFIX}-{at} link set {interface} mtu {mtu}")
    outcome = transfer("10.0.1.2")
    assert outcome.path_mtu == 1428
    assert {ev.plane for ev in outcome.evs if ev.state is EvState.GOOD} == {1}
    assert f"{interface} (10.0.2.{1 + (at == 'b')}) carries too little: raise its MTU to 328" in (
        caplog.text
    )


def test_interfaces__link_local_addresses_only(hosts: None) -> None:
    """The links are crossed: x1 leads to y2. Link-local addresses do not show that."""
    join(A, "x1", B, "y2")
    join(A, "x2", B, "y1")
    until_running(A, "x1", "x2")
    until_running(B, "y1", "y2")
    for n in (1, 2):
        address(A, f"x{n}", f"fe80::a:{n}/64")
        address(B, f"y{n}", f"fe80::b:{n}/64")
    outcome = undisturbed("fe80::b:2%x1")
    assert outcome.path_mtu == 1408
    living = {(ev.plane, ev.destination) for ev in outcome.evs if ev.state is EvState.GOOD}
    assert living == {(1, "fe80::b:2"), (2, "fe80::b:1")}
    assert min(shares(outcome)) > 0.4


def test_interfaces__with_fq(two_subnets: None) -> None:
    with Netlink(A) as link:
        if not link.has_qdisc("fq"):
            pytest.skip("this kernel has no fq (CONFIG_NET_SCH_FQ)")
    for n in (1, 2):
        ip(f"netns exec {A} tc qdisc replace dev x{n} root fq")
        ip(f"netns exec {B} tc qdisc replace dev y{n} root fq")
    outcome = undisturbed("10.0.1.2")
    assert outcome.path_mtu == 1428
    assert min(shares(outcome)) > 0.4


def test_interfaces__a_link_of_the_peer_that_leads_elsewhere(hosts: None) -> None:
    join(A, "x1", B, "y1")
    join(ROUTER, "r2", B, "y2")
    until_running(A, "x1")
    until_running(B, "y1", "y2")
    address(A, "x1", "fd00:1::1/64")
    address(B, "y1", "fd00:1::2/64")
    address(B, "y2", "fd00:2::2/64")
    outcome = transfer("fd00:1::2")
    assert {ev.destination for ev in outcome.evs} == {"fd00:1::2"}


def srv6_host(name: str, peer: str, path: str, source: str, interface: str) -> HostConfig:
    """Paths of a host configuration; without segments, so that their routes need no SRv6."""
    own = "fd00:1::1/64" if name == "a" else "fd00:1::2/64"
    paths = tuple(HostPath(1, f"path {n}", ip_address(path)) for n in (1, 2))
    return HostConfig(
        host=name,
        source=HostConfig.Source.SRV6,
        ports=(HostPort(interface, IPv6Interface(own), 1500),),
        peers={peer: HostPeer(peer, path, (ip_address(source),), paths)},
    )


@pytest.fixture
def ipv6_link(two_links: None) -> None:
    address(A, "x1", "fd00:1::1/64")
    address(B, "y1", "fd00:1::2/64")


def refusal(a: HostConfig, b: HostConfig, host: str) -> str:
    """The error at the connecting host a."""
    with Peer(B, 1, ContextConfig(host=b)), pytest.raises(ConnectError) as caught:
        run_in(A, lambda: send(ContextConfig(host=a), host)).result()
    return str(caught.value)


@pytest.mark.parametrize(
    ("asked", "peer", "source", "told"),
    [
        ("b", "c", "fd00:1::1", "^b: TCP port 4791: the peer refused: "
                                "host a is not among the configured peers of b$"),
        ("b", "a", "fd00:1::99", "host a sends from addresses that are not configured"),
        ("c", "a", "fd00:1::1", "fd00:1::2 is host b, not c"),
    ],
    ids=[
        "a host that is not configured", "one that sends from elsewhere", "another than asked for",
    ],
)  # fmt: skip
def test_srv6__refused(ipv6_link: None, asked: str, peer: str, source: str, told: str) -> None:
    a = srv6_host("a", asked, "fd00:1::2", "fd00:1::2", "x1")
    b = srv6_host("b", peer, "fd00:1::1", source, "y1")
    assert re.search(told, refusal(a, b, asked))


@pytest.fixture
def routed(hosts: None) -> None:
    """Both hosts behind routers that do not tell what is too large for the link between them. On a
    host's own link the veth would report each drop to the host as a full queue.
    """
    join(A, "x1", ROUTER, "r1", mtu=9000)
    join(B, "y1", ROUTER_B, "r2", mtu=9000)
    join(ROUTER, "m1", ROUTER_B, "m2", mtu=9000)
    for router, host, interface, near, middle, n in (
        (ROUTER, A, "x1", "r1", "m1", 1),
        (ROUTER_B, B, "y1", "r2", "m2", 2),
    ):
        until_running(host, interface)
        until_running(router, near, middle)
        address(host, interface, f"10.0.{n}.1/24")
        address(router, near, f"10.0.{n}.254/24")
        address(router, middle, f"10.0.3.{n}/24")
        ip(f"-n {host} route add default via 10.0.{n}.254")
        ip(f"-n {router} route add default via 10.0.3.{3 - n} mtu lock 9000")
        ip(f"netns exec {router} sysctl -qw net.ipv4.ip_forward=1")


def test_stall__a_router_gets_a_smaller_mtu(routed: None) -> None:
    """Small packets still pass. A new connection finds the new size."""
    listening = threading.Event()

    async def write_and_shrink() -> int:
        async with connected("10.0.2.1") as (qp, region, target):
            await qp.write(region, target)
            for router, link in ((ROUTER, "m1"), (ROUTER_B, "m2")):
                ip(f"-n {router} link set {link} mtu 1500")
            with pytest.raises(PathMtuError, match=f"packets of {qp.path_mtu} bytes no longer"):
                while True:
                    await qp.write(region, target)
            with pytest.raises(PathMtuError):
                await qp.write(region, target)
            return qp.path_mtu

    async def receive_and_hear() -> str:
        async with (
            mrc.open() as context,
            context.register(bytearray(len(DATA)), writable=True) as region,
            context.listen(private={"memory": region.handle.to_dict()}) as listener,
        ):
            listening.set()
            async with listener.accept() as qp:
                with pytest.raises(PathError) as caught:
                    async for _ in qp.immediates():
                        pass
        return str(caught.value)

    received = run_in(B, receive_and_hear)
    assert listening.wait(BUDGET_SECONDS)
    assert run_in(A, write_and_shrink).result() == 8928
    assert "a link on the way has a smaller MTU now" in received.result()
    assert 1428 <= transfer("10.0.2.1").path_mtu <= 1432


def encrypt(near: str, far: str) -> None:
    """Sets up ESP between x1 and y1. Unencrypted packets are dropped."""
    key = "aead rfc4106(gcm(aes)) 0x" + "17" * 20 + " 128"
    for namespace, own, peer in ((A, near, far), (B, far, near)):
        for src, dst, spi in ((near, far, 1), (far, near, 2)):
            ip(f"-n {namespace} xfrm state add src {src} dst {dst} proto esp spi {spi} {key}")
        for src, dst, way in ((own, peer, "out"), (peer, own, "in")):
            for protocol in ("tcp", "udp"):
                ip(f"-n {namespace} xfrm policy add src {src} dst {dst} proto {protocol} dir {way} "
                   f"tmpl src {src} dst {dst} proto esp mode transport")  # fmt: skip


@pytest.mark.parametrize(
    ("near", "far", "bits"), [("10.0.1.1", "10.0.1.2", 24), ("fd00:1::1", "fd00:1::2", 64)]
)
def test_proof__ipsec_takes_room(two_links: None, near: str, far: str, bits: int) -> None:
    """Neither the interface nor the route has a smaller MTU, and ESP refuses UDP_SEGMENT."""
    if reason := findings.kernel()["ESP"]:
        pytest.skip(f"this kernel has no ESP: {reason}")
    address(A, "x1", f"{near}/{bits}")
    address(B, "y1", f"{far}/{bits}")
    encrypt(near, far)
    outcome = transfer(far)
    most = 1428 if bits == 24 else 1408  # without ESP, which takes up to 40 bytes
    assert most - 40 - NEAR_BYTES <= outcome.path_mtu < most


def test_connect__an_address_that_nobody_has(two_links: None) -> None:
    address(A, "x1", "10.0.1.1/24")
    # ARP does not give up first, even if the machine stands still for seconds.
    ip(f"netns exec {A} sysctl -qw net.ipv4.neigh.x1.mcast_solicit=1000")

    async def connect() -> None:
        async with mrc.open() as context:
            await context.connect("10.0.1.9", OOB_PORT, timeout=0.5)

    told = r"10\.0\.1\.9: no connection on TCP port 4791 in 0\.5 s"
    with pytest.raises(ConnectError, match=told):
        run_in(A, connect).result()


def test_monitor__a_link_that_goes_down_is_known_at_once(two_subnets: None) -> None:
    async def send_over_what_is_left() -> list[int]:
        async with connected("10.0.1.2") as (qp, region, target):
            events = qp.events()
            await asyncio.to_thread(ip, f"-n {A} link set x2 down")
            told = [await anext(events)]
            while not isinstance(told[-1], PlaneEvent):
                told.append(await anext(events))
            # The peer lost its carrier too: its report and our event may come in either order.
            suspended = told[-1]
            assert suspended == PlaneEvent(2, True, suspended.reason)
            assert PortEvent(2, False, suspended.reason) in told
            assert suspended.reason in (EventReason.OWN_PORT, EventReason.PEER_PORT)
            before = (await qp.info()).planes[1].sent_packets
            await qp.write(region, target)
            used = (await qp.info()).planes[1].sent_packets - before
            await asyncio.to_thread(ip, f"-n {A} link set x2 up")
            while told[-1] != PlaneEvent(2, False, EventReason.PROBES):
                told.append(await anext(events))
            own = EventReason.OWN_PORT
            ports = [e for e in told if isinstance(e, PortEvent) and e.reason is own]
            assert ports == [PortEvent(2, False, own), PortEvent(2, True, own)]
            return [used, (await qp.info()).planes[1].lost_packets]

    with Peer(B, len(DATA)) as peer:
        assert run_in(A, send_over_what_is_left).result() == [0, 0]
    assert peer.target == DATA


# ---- The address that a user names ---------------------------------------------------------------

FIREWALL = "table inet f { chain c { type filter hook input priority 0; %s; }; }"
OPEN_FOR = "meta l4proto { tcp, udp } %s daddr != %s drop"
VIP = "fd00:99::1"


def carried(outcome: Outcome) -> set[str]:
    """The addresses of the peer that have got data."""
    return {ev.destination for ev in outcome.evs if ev.sent_packets}


def until_carried(*addresses: str) -> None:
    """Transfers to VIP until just these addresses have got data: alternatives help out while the
    peer seems to be silent, because the machine is busy.
    """
    until(lambda: carried(transfer(VIP)) == set(addresses), "other addresses get data")


@pytest.fixture
def dual_stack(two_links: None) -> None:
    """Of link 1 only. Each host is the other one's router, because a host takes no solicitation for
    an address of its lo.
    """
    address(A, "x1", "10.0.1.1/24", "fd00:1::1/64", "fe80::1/64")
    address(B, "y1", "10.0.1.2/24", "fe80::2/64")
    ip(f"-n {A} route add {VIP} via fe80::2 dev x1")
    ip(f"-n {B} route add fd00:1::/64 via fe80::1 dev y1")


@pytest.mark.parametrize("interface", ["y1", "lo"])
@pytest.mark.parametrize("own", [(), ("fd00:1::2/64",)], ids=["IPv4", "both"])
def test_named__an_address_in_no_subnet(
    dual_stack: None, interface: str, own: tuple[str, ...]
) -> None:
    """Not the addresses of the subnet that both hosts share."""
    address(B, interface, f"{VIP}/128")
    address(B, "y1", *own)
    until_carried(VIP)


@pytest.mark.parametrize(
    ("family", "named", "own"),
    [
        pytest.param("ip6", VIP, "fd00:1::2/64", marks=pytest.mark.default),
        ("ip", "10.0.1.9", "10.0.1.9/24"),
    ],
)
def test_named__a_firewall_is_open_for_that_address_only(
    dual_stack: None, caplog: pytest.LogCaptureFixture, family: str, named: str, own: str
) -> None:
    if shutil.which("nft") is None:
        pytest.skip("nft is missing")
    address(B, "lo", f"{VIP}/128")
    address(B, "y1", own)
    rules = [
        FIREWALL % OPEN_FOR % (family, named),
        FIREWALL.replace("f {", "g {", 1)
        % (f"meta nfproto != {'ipv6' if family == 'ip6' else 'ipv4'} drop"),
    ]
    for each in rules:
        ip(f"netns exec {B} nft {each}")
    assert carried(transfer(named)) == {named}
    assert "does not answer" not in caplog.text


def test_named__the_address_from_which_a_host_calls(dual_stack: None) -> None:
    """Both hosts have theirs on lo, and nothing else passes."""
    own = "fd00:98::1"
    address(A, "lo", f"{own}/128")
    address(B, "lo", f"{VIP}/128")
    ip(f"-n {A} route replace {VIP} via fe80::2 dev x1 src {own}")
    ip(f"-n {B} route add {own} via fe80::1 dev y1")
    ip(f"netns exec {B} nft " + FIREWALL % f"meta l4proto {{ tcp, udp }} ip6 saddr != {own} drop")
    ip(f"netns exec {B} nft " + FIREWALL.replace("f {", "g {", 1) % "meta nfproto ipv4 drop")
    assert carried(transfer(VIP)) == {VIP}


def test_named__an_address_that_takes_no_udp(
    dual_stack: None, caplog: pytest.LogCaptureFixture
) -> None:
    """As that of a load balancer which passes on TCP only. The host's own address carries all."""
    address(B, "lo", f"{VIP}/128")
    ip(f"netns exec {B} nft " + FIREWALL % f"ip6 daddr {VIP} meta l4proto udp drop")
    assert carried(transfer(VIP)) == {"10.0.1.2"}


@pytest.mark.parametrize("own", [(), ("fd00:1::2/64",)], ids=["IPv4", "both"])
def test_named__an_address_that_moves_away_in_mid_transfer(
    dual_stack: None, own: tuple[str, ...]
) -> None:
    """The pair of addresses that it had replaced carries the rest."""
    address(B, "lo", f"{VIP}/128")
    address(B, "y1", *own)

    async def work() -> None:
        async with connected(VIP) as (qp, region, target):

            async def sent() -> int:
                evs = [ev for ev in await qp.evs() if ev.destination == VIP]
                return sum(ev.sent_packets for ev in evs)

            await qp.write(region, target)
            assert await sent()
            await asyncio.to_thread(ip, f"-n {B} addr flush dev lo to {VIP}")
            before = -1
            while before != (before := await sent()):
                await qp.write(region, target)

    with Peer(B, len(DATA)) as peer:
        run_in(A, work).result()
    assert peer.target == DATA


def test_named__the_other_links_carry_data_too(dual_stack: None) -> None:
    address(B, "lo", f"{VIP}/128")
    for host, interface, own in ((A, "x2", "fd00:2::1/64"), (B, "y2", "fd00:2::2/64")):
        address(host, interface, own)
    until_carried(VIP, "fd00:2::2")


# ---- NAT and firewalls ---------------------------------------------------------------------------


NAT = "table ip t { chain c { type nat hook %s priority %d; %s; }; }"
FILTER = "table ip f { chain c { type filter hook forward priority 0; %s drop; }; }"
NATS = {
    "masquerade": NAT % ("postrouting", 100, 'oifname "r2" masquerade'),
    "random ports": NAT % ("postrouting", 100, 'oifname "r2" masquerade fully-random'),
    "one to one": (
        "table ip t { chain c { type nat hook postrouting priority 100; ip saddr 10.1.0.2 snat to"
        " 10.2.0.1; }; chain d { type nat hook prerouting priority -100; iifname r2 ip daddr"
        " 10.2.0.1 dnat to 10.1.0.2; }; }"
    ),
}
CASES = {
    "forwarded port": (
        "10.1.0.1",
        NAT % ("prerouting", -100, "ip daddr 10.1.0.1 dnat to 10.2.0.2")
        + "; "
        + FILTER % 'oifname "r2" ct status & dnat == 0',  # the address itself leads nowhere
    ),
    "firewall": ("10.2.0.2", FILTER % 'oifname "r1" ct state != established'),
    "no UDP": ("10.2.0.2", FILTER % "meta l4proto udp"),
}


@pytest.fixture
def router(hosts: None) -> None:
    if shutil.which("nft") is None:
        pytest.skip("nft is missing")
    for host, ours, theirs, net in ((A, "a1", "r1", 1), (B, "b1", "r2", 2)):
        join(host, ours, ROUTER, theirs)
        address(host, ours, f"10.{net}.0.2/24")
        address(ROUTER, theirs, f"10.{net}.0.1/24")
        until_running(host, ours)
        until_running(ROUTER, theirs)
        ip(f"-n {host} route add default via 10.{net}.0.1")
    ip(f"netns exec {ROUTER} sysctl -qw net.ipv4.ip_forward=1")


@pytest.mark.parametrize(
    ("name", "rules"),
    [
        pytest.param(*rules, id=case, marks=[] if case == "firewall" else [pytest.mark.slow])
        for case, rules in CASES.items()
    ],
)
def test_send__names_both_ports(
    router: None, start: Start, name: str, rules: str, tmp_path: Path
) -> None:
    file = tmp_path / "a"
    file.write_bytes(b"hello")
    told = "" if name == "10.2.0.2" else f"{name} is forwarded to 10.2.0.2, which requires a VPN; "
    receiver = start(B, "recv", "--output", tmp_path / "inbox").until_listening()
    ip(f"netns exec {ROUTER} nft {rules}")
    commands = (("send", file, name), ("paths", name))
    for failed in [start(A, *command) for command in commands]:
        failed.ends(4)
        text = failed.complaint()
        assert f"(10.2.0.2) answers on UDP port 4791: {told}is UDP blocked?" in text
        assert f"TCP port 4791 of {name} answers: open both ports in the firewalls" in text
    receiver.until_says(f"(10.1.0.2) answers on UDP port 4791: {told}is UDP blocked?")
    ip(f"netns exec {ROUTER} nft flush ruleset")
    start(A, "send", file, "10.2.0.2").ends(0)
    assert (tmp_path / "inbox" / "a").read_bytes() == b"hello"


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    """A file with a secret that both hosts have: their packets are sealed."""
    file = tmp_path / "secret"
    file.write_bytes(os.urandom(32))
    file.chmod(0o600)
    return file


NETLINK_NETFILTER = 12  # Python has no name for it


def forget(namespace: str) -> None:
    """All connections that its NAT knows."""
    delete, request_and_acknowledge = 0x102, 5  # of ctnetlink
    with (
        netns.inside(namespace),
        socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_NETFILTER) as kernel,
    ):
        header = struct.pack("=IHHII", 20, delete, request_and_acknowledge, 1, 0)
        kernel.send(header + bytes(4))
        assert struct.unpack_from("=i", kernel.recv(4096), 16) == (0,)


@pytest.mark.parametrize(
    "rules",
    [
        pytest.param(rules, id=case, marks=[pytest.mark.default] if "random" in case else [])
        for case, rules in NATS.items()
    ],
)
def test_send__from_behind_a_nat(
    router: None, start: Start, rules: str, secret: Path, tmp_path: Path
) -> None:
    file = tmp_path / "a"
    file.write_bytes(DATA)
    receiver = start(B, "recv", "--secret", secret, "--output", tmp_path / "inbox")
    receiver.until_listening()
    ip(f"netns exec {ROUTER} nft {rules}")
    sender = start(A, "send", "--secret", secret, file, "10.2.0.2")
    sender.ends(0)
    assert (tmp_path / "inbox" / "a").read_bytes() == DATA
    assert not [line for line in sender.lines if "not answer" in line]


def test_qp__keeps_a_nat_open(router: None, secret: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(qp_module, "_NAT_SECONDS", 0.05)
    ip(f"netns exec {ROUTER} nft {NATS['masquerade']}")
    sealed = ContextConfig(security=Security(secret=secret.read_bytes()))

    async def idle() -> None:
        async with connected("10.2.0.2", sealed) as (qp, region, target):
            (ev,) = await qp.evs()
            while (await qp.evs())[0].sent_probes < ev.sent_probes + 3:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            await qp.write(region, target)

    with Peer(B, len(DATA), sealed) as peer:
        run_in(A, idle).result(BUDGET_SECONDS)
        assert peer.target == DATA


def test_qp__outlives_a_nat_that_forgets(router: None, secret: Path) -> None:
    """It gives the QP another port then; the TCP connection keeps its own."""
    rules = 'oifname "r2" meta l4proto udp masquerade fully-random; oifname "r2" masquerade'
    ip(f"netns exec {ROUTER} nft {NAT % ('postrouting', 100, rules)}")
    sealed = ContextConfig(security=Security(secret=secret.read_bytes()))

    async def work() -> None:
        async with connected("10.2.0.2", sealed) as (qp, region, target):
            for _ in range(3):
                await qp.write(region, target)
                forget(ROUTER)
            await qp.write(region, target)

    with Peer(B, len(DATA), sealed) as peer:
        run_in(A, work).result(BUDGET_SECONDS)
        assert peer.target == DATA
    assert len(peer.qps) == 1


def test_send__from_one_address_behind_two_nats(
    router: None, start: Start, secret: Path, tmp_path: Path
) -> None:
    """Two hosts with an address of the same private network, as at home, at the same time."""
    other = f"{PREFIX}-o"
    files = [tmp_path / "a", tmp_path / "o"]
    for file in files:
        file.write_bytes(os.urandom(1 << 20))
    with namespaces(other):
        join(other, "a1", ROUTER_B, "r1")
        join(ROUTER_B, "r2", ROUTER, "r3")
        for namespace, interface, its in (
            (other, "a1", "10.1.0.2/24"), (ROUTER_B, "r1", "10.1.0.1/24"),
            (ROUTER_B, "r2", "10.3.0.2/24"), (ROUTER, "r3", "10.3.0.1/24"),
        ):  # fmt: skip
            address(namespace, interface, its)
            until_running(namespace, interface)
        ip(f"-n {other} route add default via 10.1.0.1")
        ip(f"-n {ROUTER_B} route add default via 10.3.0.1")
        ip(f"netns exec {ROUTER_B} sysctl -qw net.ipv4.ip_forward=1")
        for each in (ROUTER, ROUTER_B):
            ip(f"netns exec {each} nft {NATS['masquerade']}")
        receiver = start(B, "recv", "--secret", secret, "--output", tmp_path / "inbox")
        receiver.until_listening()
        senders = [
            start(namespace, "send", "--secret", secret, file, "10.2.0.2")
            for namespace, file in zip((A, other), files, strict=True)
        ]
        for sender in senders:
            sender.ends(0)
        for file in files:
            assert (tmp_path / "inbox" / file.name).read_bytes() == file.read_bytes()


def test_send__from_behind_a_nat_of_ipv6(
    router: None, start: Start, secret: Path, tmp_path: Path
) -> None:
    for host, ours, theirs, net in ((A, "a1", "r1", 1), (B, "b1", "r2", 2)):
        address(host, ours, f"fd0{net}::2/64")
        address(ROUTER, theirs, f"fd0{net}::1/64")
        ip(f"-n {host} -6 route add default via fd0{net}::1")
    ip(f"netns exec {ROUTER} sysctl -qw net.ipv6.conf.all.forwarding=1")
    ip(f"netns exec {ROUTER} nft {NATS['random ports'].replace('table ip ', 'table ip6 ')}")
    file = tmp_path / "a"
    file.write_bytes(DATA)
    receiver = start(B, "recv", "--secret", secret, "--output", tmp_path / "inbox")
    receiver.until_listening()
    sender = start(A, "send", "--secret", secret, file, "fd02::2")
    sender.ends(0)
    assert (tmp_path / "inbox" / "a").read_bytes() == DATA
    assert not [line for line in sender.lines if "not answer" in line]


def test_send__plain_packets_pass_no_nat(router: None, start: Start, tmp_path: Path) -> None:
    file = tmp_path / "a"
    file.write_bytes(b"hello")
    receiver = start(B, "recv", "--output", tmp_path / "inbox").until_listening()
    ip(f"netns exec {ROUTER} nft {NATS['masquerade']}")
    failed = start(A, "send", file, "10.2.0.2")
    failed.ends(4)
    told = "a NAT shows 10.1.0.2 as 10.2.0.1, and only sealed packets pass it"
    assert told in failed.complaint()
    receiver.until_says(told)
