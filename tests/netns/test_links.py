# SPDX-License-Identifier: Apache-2.0
"""Interfaces that come, go and come back while Contexts run on two plain hosts.

a  x1 ------ y1  b        each link is a veth pair with addresses 10.0.N.1 and 10.0.N.2
   x2 ------ y2
"""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager
from functools import wraps
from ipaddress import IPv6Interface, ip_address
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from netns.conftest import fresh_name
from netns.plain import Peer, address, ip, join, namespaces, run_in, until_running
from netns.processes import Start

import mrc
from mrc import (
    QP,
    ConnectError,
    Context,
    ContextConfig,
    EvState,
    HostConfig,
    PathError,
    Region,
    RemoteMemory,
)
from mrc.fabric.hostconfig import HostPath, HostPeer, HostPort

A, B = f"mrc-{fresh_name()}", f"mrc-{fresh_name()}"


def in_a(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Runs a test in host a."""

    @wraps(test)
    def run(**fixtures: Any) -> None:
        run_in(A, lambda: test(**fixtures)).result()

    return run


@pytest.fixture
def hosts() -> Iterator[None]:
    """Namespaces a and b without a link."""
    with namespaces(A, B):
        yield


def link(n: int) -> None:
    """Creates link n with its addresses."""
    join(A, f"x{n}", B, f"y{n}")
    address(A, f"x{n}", f"10.0.{n}.1/24")
    address(B, f"y{n}", f"10.0.{n}.2/24")
    until_running(A, f"x{n}")
    until_running(B, f"y{n}")


@pytest.fixture
def ipv4(hosts: None) -> None:
    """b has no link-local address: of a link that gets its other one late, it would be used."""
    ip(f"netns exec {B} sysctl -qw net.ipv6.conf.default.disable_ipv6=1")


def test_recv__started_before_its_links(ipv4: None, start: Start, tmp_path: Path) -> None:
    (tmp_path / "inbox").mkdir()
    (tmp_path / "file").write_bytes(os.urandom(100_000))
    receiver = start(B, "recv", "--once", "--output", tmp_path / "inbox")
    receiver.until_says("listening on TCP port 4791")
    receiver.until_says("no usable interface yet")
    link(1)
    receiver.until_says("in use now: y1 (10.0.1.2)")
    start(A, "send", tmp_path / "file", "10.0.1.2").ends(0)
    receiver.ends(0)
    assert (tmp_path / "inbox/file").read_bytes() == (tmp_path / "file").read_bytes()
    assert len(receiver.said()) == 3, "each reported once"


def test_perf__a_server_that_waits_for_the_interface_it_was_given(ipv4: None, start: Start) -> None:
    server = start(B, "perf", "--server", "--one-off", "-B", "y1")
    server.until_says("no usable interface yet: no interface y1; this host has lo")
    link(2)
    link(1)
    server.until_says("in use now: y1 (10.0.1.2)")
    start(A, "perf", "10.0.1.2", "-n", "1M").ends(0)
    server.ends(0)
    assert len(server.said()) == 3, "each reported once"


def test_send__without_any_interface(hosts: None, start: Start, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x")
    client = start(A, "send", tmp_path / "file", "10.0.1.2")
    client.ends(3)
    unreachable = "mrc send: 10.0.1.2: TCP port 4791: network is unreachable: check its address"
    assert client.complaint().startswith(unreachable)


# ---- While QPs run --------------------------------------------------------------------------

DATA = os.urandom(1 << 20)


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.fixture
def peer(hosts: None) -> Iterator[Peer]:
    """Accepts in host b, behind two links."""
    for n in (1, 2):
        link(n)
    with Peer(B, len(DATA)) as peer:
        yield peer


class Writer:
    """A QP from host a, with the memory for its writes."""

    def __init__(self, context: Context, region: Region, qp: QP) -> None:
        self.context, self.region, self.qp = context, region, qp

    async def write(self) -> None:
        target = RemoteMemory.from_dict(self.qp.peer.private["memory"])
        assert await self.qp.write(self.region, target) == len(DATA)

    async def until_planes_carry(self, *planes: int) -> None:
        """Writes until each of these planes, and no other, carries data."""
        while True:
            before = {plane.plane: plane.sent_packets for plane in (await self.qp.info()).planes}
            await self.write()
            after = {plane.plane: plane.sent_packets for plane in (await self.qp.info()).planes}
            if planes == tuple(plane for plane in after if after[plane] > before.get(plane, 0)):
                return

    async def until_ports(self, *wanted: str) -> None:
        """Waits until the Context has these ports, not counting loopback."""
        while wanted != tuple(
            f"{port.plane} {port.nic} {port.address.ip}"
            for port in self.context.ports
            if not port.loopback
        ):
            await self.qp.info()  # some turns of the event loop

    async def until_descriptors(self, most: int) -> None:
        """Waits until both ends have done what a change requires, and have left nothing open."""
        while descriptors() > most:
            await self.qp.info()


@asynccontextmanager
async def writing(
    config: ContextConfig | None = None, to: str = "10.0.1.2"
) -> AsyncIterator[Writer]:
    async with (
        mrc.open(config) as context,
        context.register(DATA) as region,
        context.connect(to) as qp,
    ):
        yield Writer(context, region, qp)


@pytest.mark.default
@in_a
async def test_follow__an_interface_made_again_in_the_middle_of_a_transfer(peer: Peer) -> None:
    """Both ends of link 2 are new interfaces with the old addresses; the QP uses them again."""
    async with writing() as writer:
        await writer.until_planes_carry(1, 2)
        index, before = writer.context.ports[1].index, descriptors()
        for _ in range(2):
            await asyncio.to_thread(ip, f"-n {A} link del x2")
            await writer.until_planes_carry(1)
            await writer.until_ports("1 x1 10.0.1.1")
            await writer.until_descriptors(before - 1)  # a port that is gone has no sockets
            await asyncio.to_thread(link, 2)
            await writer.until_planes_carry(1, 2)
        assert writer.context.ports[1].index != index
        await writer.until_descriptors(before)
    assert peer.target == DATA


@in_a
async def test_follow__a_link_that_comes_later_serves_new_qps(hosts: None) -> None:
    link(1)
    with Peer(B, len(DATA)):
        async with writing() as writer:
            await asyncio.to_thread(link, 2)
            await writer.until_ports("1 x1 10.0.1.1", "2 x2 10.0.2.1")
            await writer.until_planes_carry(1)
            while True:  # the peer's Context may notice a little later
                async with writer.context.connect("10.0.1.2") as qp:
                    if qp.planes == (1, 2):
                        break


@pytest.fixture
def ipv6(hosts: None) -> Iterator[Peer]:
    """Accepts in host b, behind one link with fd00:1::1 and fd00:1::2."""
    join(A, "x1", B, "y1")
    address(A, "x1", "fd00:1::1/64")
    address(B, "y1", "fd00:1::2/64")
    until_running(A, "x1")
    until_running(B, "y1")
    with Peer(B, len(DATA)) as peer:
        yield peer


@in_a
async def test_follow__an_address_of_vrrp_that_moves_to_another_host(ipv6: Peer) -> None:
    """It is deprecated, so that nothing uses it by itself, and the QP does not notice its move. The
    kernel lists it first.
    """
    virtual = "fd00:1::64/128"
    ip(f"-n {A} addr add {virtual} dev x1 preferred_lft 0 nodad")
    async with writing(to="fd00:1::2") as writer:
        await writer.until_planes_carry(1)
        await writer.until_ports("1 x1 fd00:1::1")
        await asyncio.to_thread(ip, f"-n {A} addr del {virtual} dev x1")
        await asyncio.to_thread(address, B, "y1", virtual)
        await writer.until_planes_carry(1)
        await writer.until_ports("1 x1 fd00:1::1")
    assert ipv6.target == DATA


@in_a
async def test_follow__an_address_that_becomes_deprecated(ipv6: Peer) -> None:
    """QPs that use it keep it, new ones take the other one."""
    async with writing(to="fd00:1::2") as writer:
        await writer.until_planes_carry(1)
        await asyncio.to_thread(address, A, "x1", "fd00:1::3/64")
        await asyncio.to_thread(ip, f"-n {A} addr change fd00:1::1/64 dev x1 preferred_lft 0")
        await writer.until_ports("1 x1 fd00:1::1", "2 x1 fd00:1::3")
        await writer.until_planes_carry(1)
        async with writer.context.connect("fd00:1::2") as qp:
            assert qp.planes == (2,)
        await writer.until_planes_carry(1)
        await asyncio.to_thread(ip, f"-n {A} addr del fd00:1::1/64 dev x1")
        await writer.until_ports("2 x1 fd00:1::3")


@in_a
async def test_follow__a_port_of_an_address_on_lo(ipv6: Peer) -> None:
    """It stays for the QPs of the peer that has named it, whatever interfaces do. Another QP does
    not use it.
    """
    ip(f"-n {B} addr add fd00:99::1/128 dev lo nodad")
    ip(f"-n {A} addr add fd00:98::1/128 dev lo nodad")
    for namespace, way in (
        (A, "fd00:99::1 via fd00:1::2 dev x1 src fd00:98::1"),
        (B, "fd00:98::1 via fd00:1::1 dev y1 src fd00:99::1"),
    ):
        ip(f"-n {namespace} route add {way}")
    async with writing(to="fd00:99::1") as writer:
        await writer.until_planes_carry(7)
        await asyncio.to_thread(link, 2)
        ports = ("1 x1 fd00:1::1", "2 x2 10.0.2.1", "7 x1 fd00:98::1")
        await writer.until_ports(*ports)
        await writer.until_planes_carry(7)
        async with writer.context.connect("fd00:1::2") as qp:
            assert 7 not in qp.planes
        await asyncio.to_thread(ip, f"-n {A} addr del fd00:98::1/128 dev lo")
        await writer.until_ports(*ports[:2])
        await writer.until_planes_carry(1)
    assert ipv6.target == DATA


def flap(*commands: str) -> None:
    """Runs the commands repeatedly in host a, as fast as ip can."""
    text = "\n".join(commands * 50)
    subprocess.run(["ip", "-n", A, "-batch", "-"], input=text, text=True, check=True)


@pytest.mark.parametrize(
    "commands",
    [
        pytest.param(("link set x2 down", "link set x2 up"), id="link"),
        pytest.param(("addr del 10.0.2.1/24 dev x2", "addr add 10.0.2.1/24 dev x2"), id="address"),
    ],
)
@in_a
async def test_follow__a_hundred_changes_in_a_row(peer: Peer, commands: tuple[str, ...]) -> None:
    """Transfers continue, the plane recovers, and nothing leaks."""
    async with writing() as writer:
        await writer.until_planes_carry(1, 2)
        before = descriptors()
        changing = asyncio.create_task(asyncio.to_thread(flap, *commands))
        while not changing.done():
            await writer.write()
        await changing
        await writer.until_planes_carry(1, 2)
        await writer.until_descriptors(before)


def srv6_host(name: str, peer: str, n: int) -> HostConfig:
    """Two planes with one address on lo; without segments, so that their routes need no SRv6."""
    paths = tuple(
        HostPath(plane, f"path {plane}", ip_address(f"fd00:{3 - n}::{plane}")) for plane in (1, 2)
    )
    nic = "xy"[n - 1]
    own = IPv6Interface(f"fd00:{n}::a/64")
    return HostConfig(
        host=name,
        source=HostConfig.Source.SRV6,
        ports=tuple(HostPort(f"{nic}{plane}", own, 1500) for plane in (1, 2)),
        peers={peer: HostPeer(peer, "10.0.1.2", (ip_address(f"fd00:{3 - n}::a"),), paths)},
    )


def srv6_link(n: int) -> None:
    """Link n, and the routes to each other's paths in plane n over it."""
    link(n)
    for namespace, nic, near, far in ((A, "x", 1, 2), (B, "y", 2, 1)):
        address(namespace, f"{nic}{n}", f"fd00:f{n}::{near}/64")
        where = f"via fd00:f{n}::{far} dev {nic}{n} src fd00:{near}::a"
        ip(f"-n {namespace} route replace fd00:{far}::{n}/128 {where}")
        ip(f"-n {namespace} route replace fd00:{far}::a/128 {where}")


def test_connect__srv6_paths_whose_port_is_not_there(hosts: None) -> None:
    for n, namespace in enumerate((A, B), 1):
        ip(f"-n {namespace} addr add fd00:{n}::a/64 dev lo nodad")
    srv6_link(1)
    host = srv6_host("a", "b", 1)
    second = replace(host.peers["b"], paths=host.peers["b"].paths[1:])

    async def work() -> None:
        async with mrc.open(host=replace(host, peers={"b": second})) as context:
            await context.connect("b")

    lacks = "no port with a path to host b is usable: no interface x2"
    config = ContextConfig(host=srv6_host("b", "a", 2))
    with Peer(B, 1, config), pytest.raises(PathError, match=lacks):
        run_in(A, work).result()


@in_a
async def test_follow__srv6_planes_late_and_made_again(hosts: None) -> None:
    for n, namespace in enumerate((A, B), 1):
        # Neighbour discovery needs a link-local address; with DAD it takes 1 to 2 s.
        ip(f"netns exec {namespace} sysctl -qw net.ipv6.conf.default.accept_dad=0")
        ip(f"-n {namespace} addr add fd00:{n}::a/64 dev lo nodad")
        ip(f"-n {namespace} route add local fd00:{n}::/64 dev lo")
    with Peer(B, len(DATA), ContextConfig(host=srv6_host("b", "a", 2))):
        srv6_link(2)
        srv6_link(1)
        config = ContextConfig(host=srv6_host("a", "b", 1))

        async def until_peer_has_both_links() -> None:
            while True:
                try:
                    async with writing(config, "b") as writer:
                        if all(ev.state is EvState.GOOD for ev in await writer.qp.evs()):
                            return
                except ConnectError as error:
                    assert "no network interface" in str(error)

        await until_peer_has_both_links()
        async with writing(config, "b") as writer:
            await writer.until_planes_carry(1, 2)
            await asyncio.to_thread(ip, f"-n {A} link del x2")
            await writer.until_planes_carry(1)
            await asyncio.to_thread(srv6_link, 2)
            await writer.until_planes_carry(1, 2)
