# SPDX-License-Identifier: Apache-2.0
"""Our rtnetlink messages, checked with ip(8) and tc(8), and named namespaces.

namespace a                 namespace b
  p1 (fe80::2) ------------ h0 (fe80::1)
"""

from __future__ import annotations

import dataclasses
import errno
import os
import socket
import struct
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from ipaddress import (
    IPv4Address,
    IPv4Interface,
    IPv6Address,
    IPv6Interface,
    IPv6Network,
    ip_address,
)
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from pyroute2.netlink.rtnl.ifinfmsg import ifinfmsg
from pyroute2.netlink.rtnl.rtmsg import rtmsg
from slowness import PATIENCE, until

from mrc.errors import NetlinkError
from mrc.linux import netns
from mrc.linux.rtnetlink import Interface, attributes
from mrc.testbed import netlink
from mrc.testbed.netlink import (
    NLM_F_CREATE,
    NLM_F_EXCL,
    NLM_F_REPLACE,
    Netlink,
    NetlinkRequest,
    encode_route,
)
from mrc.testbed.routes import Route, Srv6Action

from .conftest import fresh_name

pytestmark = pytest.mark.default

VIA = IPv6Address("fe80::1")
OWN = IPv6Address("fd00:a::1")
CARRIER, OTHER = IPv6Address("fcbb:1:100:201:e000::"), IPv6Address("fcbb:1:7::")

# False for root of a user namespace, which maps fewer users.
IS_MACHINES_ROOT = Path("/proc/self/uid_map").read_text().split() == ["0", "0", str(2**32 - 1)]

Pair = tuple[Netlink, Netlink]


def over(*carriers: IPv6Address) -> Srv6Action:
    return Srv6Action("encap.red", carriers)


ROUTES = {
    "plain": (
        Route(IPv6Network("fcbb:1::/32"), "p1", via=VIA),
        "unicast fcbb:1::/32 via fe80::1 dev p1 table main proto static scope global",
    ),
    "default": (
        Route(IPv6Network("::/0"), "p1", via=VIA),
        "unicast default via fe80::1 dev p1 table main proto static scope global",
    ),
    "encap.red": (
        Route(IPv6Network("fd00:a:1::1:0/128"), "p1", VIA, OWN, over(CARRIER)),
        "unicast fd00:a:1::1:0  encap seg6 mode encap.red segs 1 [ fcbb:1:100:201:e000:: ] "
        "via fe80::1 dev p1 table main proto static scope global src fd00:a::1",
    ),
    "encap.red, two carriers": (
        Route(IPv6Network("fd00:a:1::1:1/128"), "p1", VIA, OWN, over(CARRIER, OTHER)),
        "unicast fd00:a:1::1:1  encap seg6 mode encap.red "
        "segs 2 [ fcbb:1:100:201:e000:: fcbb:1:7:: ] via fe80::1 dev p1",
    ),
    "End": (
        Route(IPv6Network("fcbb:1:100::/48"), "p1", action=Srv6Action("End")),
        "unicast fcbb:1:100::/48  encap seg6local action End "
        "flavors next-csid lblen 32 nflen 16 dev p1",
    ),
    "End, other lengths": (
        Route(IPv6Network("fcbb:1:2:100::/56"), "p1", action=Srv6Action("End", (), 48, 8)),
        "unicast fcbb:1:2:100::/56  encap seg6local action End "
        "flavors next-csid lblen 48 nflen 8 dev p1",
    ),
    "End.DT6": (
        Route(IPv6Network("fcbb:1:e000::/48"), "p1", action=Srv6Action("End.DT6")),
        "unicast fcbb:1:e000::/48  encap seg6local action End.DT6 table local dev p1",
    ),
    "local": (
        Route(IPv6Network("fd00:a::/64"), "lo", local=True),
        "local fd00:a::/64 dev lo table local proto static scope global",
    ),
}


@pytest.fixture
def pair(namespace_pair: tuple[str, str]) -> Iterator[Pair]:
    a, b = namespace_pair
    with Netlink(a) as here, Netlink(b) as there:
        here.add_veth("p1", "h0", b, 9000, "02:00:00:00:00:02", "02:00:00:00:00:01")
        here.set_links(["lo", "p1"], up=True)
        there.set_links(["h0"], up=True)
        here.add_addresses([("lo", IPv6Interface(OWN)), ("p1", IPv6Interface("fe80::2/64"))])
        yield here, there


@pytest.fixture
def here(pair: Pair) -> Netlink:
    return pair[0]


def run(link: Netlink, *command: str) -> str:
    argv = ["ip", "netns", "exec", str(link.namespace), *command]
    return subprocess.run(argv, check=True, capture_output=True, text=True).stdout


def test_interfaces__of_a_pair(pair: Pair) -> None:
    here, there = pair
    Netlink.wait_until_up([(here, ["p1"]), (there, ["h0"])], timeout=PATIENCE)
    lo, p1 = Interface.all(str(here.namespace))
    assert (lo.name, lo.index, lo.mtu, lo.up) == ("lo", 1, 65536, True)
    assert {IPv4Interface("127.0.0.1/8"), IPv6Interface("fd00:a::1/128")} <= set(lo.addresses)
    assert (p1.name, p1.mtu, p1.up) == ("p1", 9000, True)
    assert IPv6Interface("fe80::2/64") in p1.addresses


async def test_interfaces__beside_a_running_loop() -> None:
    assert "lo" in {each.name for each in Interface.all()}


@pytest.mark.parametrize(
    "use",
    [
        Interface.all,
        lambda name: Netlink.set_tunnel_source(name, OWN),
        lambda name: netns.inside(name).__enter__(),
    ],
    ids=["interfaces", "tunnel source", "inside"],
)
def test_namespace__that_is_missing_is_named(use: Callable[[str], object]) -> None:
    with pytest.raises(NetlinkError, match="no namespace mrc-test-nowhere"):
        use("mrc-test-nowhere")


def test_wait_until_up__names_the_interface(pair: Pair) -> None:
    here, there = pair
    there.set_links(["h0"], up=False)
    with pytest.raises(NetlinkError, match=f"interface p1 in {here.namespace} stays down"):
        Netlink.wait_until_up([(here, ["p1"])], timeout=0.05)


def test_set_links__down_is_seen_on_both_ends(pair: Pair) -> None:
    here, there = pair
    Netlink.wait_until_up([(here, ["p1"]), (there, ["h0"])], timeout=PATIENCE)
    there.set_links(["h0"], up=False)
    assert not there.is_up("h0")
    assert not here.is_up("p1")


def test_add_veth__refuses_a_taken_name(pair: Pair) -> None:
    here, there = pair
    veth = ("p1", "h1", str(there.namespace), 9000, "02:00:00:00:00:02", "02:00:00:00:00:01")
    with pytest.raises(NetlinkError, match=r"cannot make veth p1 to h1 in .*: File exists"):
        here.add_veth(*veth)


def test_interfaces__without_addresses_that_are_not_usable_yet(here: Netlink) -> None:
    """Sockets cannot bind to an address before its duplicate address detection is done."""
    run(here, "sysctl", "-qw", "net.ipv6.conf.p1.dad_transmits=1000")
    run(here, "ip", "addr", "add", "fd00:8::8/64", "dev", "p1")
    (p1,) = [each for each in here.interfaces() if each.name == "p1"]
    assert IPv6Interface("fd00:8::8/64") not in p1.addresses


@pytest.mark.parametrize("use_tempaddr", [1, 2])
def test_interfaces__addresses_in_the_order_of_the_kernel(here: Netlink, use_tempaddr: int) -> None:
    """The first address of each version is the one that the kernel itself takes as source."""
    run(here, "sysctl", "-qw", f"net.ipv6.conf.p1.use_tempaddr={use_tempaddr}",
        "net.ipv6.conf.p1.accept_dad=0", "net.ipv6.conf.p1.dad_transmits=0")  # fmt: skip
    run(here, "ip", "addr", "add", "fd00:8::1/64", "dev", "p1", "mngtmpaddr", "nodad")
    run(here, "ip", "addr", "add", "fd00:8::f/64", "dev", "p1", "preferred_lft", "0", "nodad")
    for each in ("10.0.8.15/24", "10.0.9.1/24"):
        lifetime = ["preferred_lft", "0"] * (each == "10.0.8.15/24")
        run(here, "ip", "addr", "add", each, "dev", "p1", *lifetime)

    def found() -> list[str]:
        (p1,) = [each for each in here.interfaces() if each.name == "p1"]
        assert {str(each) for each in p1.deprecated} == {"fd00:8::f", "10.0.8.15"}
        return [str(each.ip) for each in p1.addresses if not each.ip.is_link_local]

    until(lambda: len(found()) == 5, "the kernel has made no temporary address")
    addresses = found()
    first = next(each for each in addresses if ":" in each)
    assert (first != "fd00:8::1") is (use_tempaddr == 2)
    way = run(here, "ip", "route", "get", "fd00:8::99").split()
    assert way[way.index("src") + 1] == first
    assert [each for each in addresses if "." in each] == ["10.0.9.1", "10.0.8.15"]
    assert addresses.index("fd00:8::f") > addresses.index("fd00:8::1")


@pytest.mark.parametrize(
    ("peer", "own"), [("fd00:8::9", "fd00:8::1"), ("10.0.8.9", "10.0.8.1"), ("fd00:8::9", str(OWN))]
)
def test_towards__the_interface_of_the_route(here: Netlink, peer: str, own: str) -> None:
    run(here, "ip", "addr", "add", "10.0.8.1/24", "dev", "p1")
    run(here, "ip", "addr", "add", "fd00:8::1/64", "dev", "p1", "nodad")
    (index,) = (each.index for each in here.interfaces() if each.name == "p1")
    with netns.inside(str(here.namespace)):
        assert Interface.towards(ip_address(peer), ip_address(own)) == index
        with pytest.raises(NetlinkError, match="cannot find the route to 192"):
            Interface.towards(ip_address("192.0.2.1"), ip_address("10.0.8.1"))


def test_move__with_a_new_name_and_without_addresses(pair: Pair) -> None:
    here, there = pair
    assert here.namespace and there.namespace
    here.move("p1", there.namespace, "far")
    assert "p1" not in {each.name for each in here.interfaces()}
    (found,) = (each for each in there.interfaces() if each.name == "far")
    assert (found.enabled, found.addresses) == (False, ())
    with pytest.raises(NetlinkError, match=r"cannot move far .* as h0: ") as refused:
        there.move("far", there.namespace, "h0")
    assert refused.value.code == errno.EEXIST


def test_add_bridge__joins_interfaces(here: Netlink) -> None:
    here.set_mtu("p1", 1400)
    here.add_bridge("br", ["p1"])
    shown = run(here, "ip", "-d", "link", "show", "master", "br")
    assert "p1" in shown and "mtu 1400" in shown
    assert " UP" in run(here, "ip", "-br", "link", "show", "br")
    here.remove_link("br")
    assert "br" not in {each.name for each in here.interfaces()}


def test_add_gateway__is_the_ipv4_default_route(here: Netlink) -> None:
    here.add_ipv4([("p1", IPv4Interface("192.0.2.2/24"), None)])
    here.add_gateway("p1", IPv4Address("192.0.2.1"))
    assert run(here, "ip", "route", "show", "default").split() == [
        "default", "via", "192.0.2.1", "dev", "p1", "proto", "static",
    ]  # fmt: skip


def test_add_addresses__are_usable_at_once(here: Netlink) -> None:
    here.add_addresses([("p1", IPv6Interface("fd00:9::9/64"))])
    shown = run(here, "ip", "-6", "address", "show", "dev", "p1", "to", "fd00:9::9")
    assert "tentative" not in shown


def test_add_neighbours__are_permanent(here: Netlink) -> None:
    here.add_neighbours([("p1", VIA, "02:00:00:00:00:01")])
    shown = run(here, "ip", "-6", "neighbour", "show", "dev", "p1")
    assert shown.strip() == "fe80::1 lladdr 02:00:00:00:00:01 PERMANENT"


def test_add_shaper__as_tc_shows_it(here: Netlink) -> None:
    here.add_shaper("p1", rate_bps=500_000_000, burst_bytes=81_920, limit_bytes=706_920)
    shown = run(here, "tc", "-raw", "qdisc", "show", "dev", "p1")
    assert "tbf" in shown and "rate 500Mbit" in shown
    assert "limit 706920b" in shown


@pytest.mark.parametrize("kind", ROUTES)
def test_add_routes__as_ip_shows_it(here: Netlink, kind: str) -> None:
    """Goal: the kernel has the requested route, as our own reader and ip(8) show it."""
    route, shown = ROUTES[kind]
    here.add_routes([route])
    assert route in here.routes()
    table = run(here, "ip", "-d", "-6", "route", "show", "table", "all").splitlines()
    assert [line for line in table if line.startswith(shown)], "\n".join(table)


def ours(link: Netlink) -> list[Route]:
    """The routes of the test, without those that the kernel adds itself."""
    wanted = {route.dst for route, _ in ROUTES.values()}
    return [route for route in link.routes() if route.dst in wanted]


def test_add_routes__may_be_repeated(here: Netlink) -> None:
    routes = [route for route, _ in ROUTES.values()]
    here.add_routes(routes)
    before = ours(here)
    here.add_routes(routes)
    assert ours(here) == before


def test_add_routes__replaces_a_carrier(here: Netlink) -> None:
    route, _ = ROUTES["encap.red"]
    here.add_routes([route])
    other = Route(route.dst, "p1", VIA, OWN, over(IPv6Address("fcbb:1:101:201:e000::")))
    here.add_routes([other])
    assert other in here.routes() and route not in here.routes()


def test_add_routes__that_share_a_destination(here: Netlink) -> None:
    """Each may be added again, alone or with the others. The last one left is an ordinary route."""
    dst = IPv6Network("fd00:a:1::1/128")
    carriers = [IPv6Address(f"fcbb:1:{t1:x}:201:e000::") for t1 in (0x100, 0x101, 0x102)]
    shared = [Route(dst, "p1", VIA, OWN, over(carrier), shared=True) for carrier in carriers]
    for few in (shared[:1], shared, shared[1:]):
        here.add_routes(few)
    found = [route for route in here.routes() if route.dst == dst]
    assert (found, [route.shared for route in found]) == (shared, [True, True, True])
    shown = run(here, "ip", "-6", "route", "show", str(dst))
    assert [shown.count(f"segs 1 [ {carrier} ] via fe80::1") for carrier in carriers] == [1, 1, 1]


def test_add_routes__many_in_one_call(here: Netlink) -> None:
    """Requests and answers each take more than one datagram."""
    routes = [
        Route(IPv6Network(f"fd00:a:1::1:{n:x}/128"), "p1", VIA, OWN, over(CARRIER))
        for n in range(300)
    ]
    here.add_routes(routes)
    assert set(routes) <= set(here.routes())


@pytest.mark.parametrize("kind", ["encap.red", "End"])
def test_add_routes__notices_what_was_dropped_on_the_way(
    here: Netlink, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: detects a kernel that ignores what it does not support."""

    def without_action(route: Route, index: int) -> bytes:
        return encode_route(dataclasses.replace(route, action=None), index)

    monkeypatch.setattr(netlink, "encode_route", without_action)
    route, _ = ROUTES[kind]
    with pytest.raises(NetlinkError, match=f"route {route.dst} dev p1: the kernel has action None"):
        here.add_routes([route])


def test_add_shaper__again_changes_it_in_place(here: Netlink) -> None:
    for rate in (10_000_000, 5_000_000):
        here.add_shaper("p1", rate_bps=rate, burst_bytes=80_000, limit_bytes=100_000)
    shown = run(here, "tc", "qdisc", "show", "dev", "p1")
    assert shown.count("tbf") == 1 and "rate 5Mbit" in shown
    for _ in range(2):
        here.remove_qdisc("p1")
    assert "tbf" not in run(here, "tc", "qdisc", "show", "dev", "p1")


def test_counters__are_those_of_the_queue(pair: Pair) -> None:
    """One message of 20 KB, segmented by the interface: the queue counts its packets."""
    here, there = pair
    Netlink.wait_until_up([(here, ["p1"]), (there, ["h0"])], timeout=PATIENCE)
    here.add_shaper("p1", rate_bps=10_000_000, burst_bytes=80_000, limit_bytes=100_000)
    here.add_neighbours([("p1", IPv6Address("fe80::1"), "02:00:00:00:00:01")])
    (index,) = (each.index for each in here.interfaces() if each.name == "p1")
    before = here.counters()["p1"]
    with netns.inside(str(here.namespace)):
        sock = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
    with sock:
        sock.setsockopt(socket.SOL_UDP, 103, 1000)  # UDP_SEGMENT
        sock.sendto(bytes(20_000), ("fe80::1", 9, 0, index))
    after = here.counters()["p1"]
    assert after.packets - before.packets >= 20
    assert after.bytes - before.bytes >= 20 * (1000 + 62)
    assert (after.dropped - before.dropped, after.queue_bytes) == (0, 0)


def test_has_qdisc__leaves_nothing(here: Netlink) -> None:
    assert here.has_qdisc("tbf")
    assert not here.has_qdisc("nonsense")
    assert "noqueue" in run(here, "tc", "qdisc", "show", "dev", "lo")


def test_add_routes__names_the_route_and_the_reason(here: Netlink) -> None:
    good = ROUTES["plain"][0]
    bad = Route(IPv6Network("fd00:b::/64"), "p1", via=IPv6Address("fd00:77::1"))
    with pytest.raises(NetlinkError, match="cannot add route fd00:b::/64 dev p1: No route to host"):
        here.add_routes([bad, good, bad])
    assert good in here.routes()


def test_add_routes__names_a_missing_interface(here: Netlink) -> None:
    with pytest.raises(NetlinkError, match=f"no interface p9 in {here.namespace}"):
        here.add_routes([Route(IPv6Network("fd00:b::/64"), "p9", via=VIA)])


def test_netlink__belongs_to_its_namespace(pair: Pair) -> None:
    here, there = pair
    with netns.inside(str(there.namespace)):
        assert {each.name for each in here.interfaces()} == {"lo", "p1"}
    assert "p1" not in {each.name for each in Interface.all()}


def test_set_tunnel_source__as_ip_shows_it(pair: Pair) -> None:
    namespace = pair[0].namespace
    assert namespace is not None
    granted = Netlink.set_tunnel_source(namespace, OWN)
    assert granted is IS_MACHINES_ROOT
    if granted:  # otherwise nobody may even look
        assert run(pair[0], "ip", "sr", "tunsrc", "show") == f"tunsrc addr {OWN}\n"


# ---- Requests that the kernel refuses ------------------------------------------------------------


RTM_NEWLINK, RTM_GETLINK, RTM_NEWROUTE, RTM_GETROUTE = 16, 18, 24, 26
LOOPBACK = 1
LINK = struct.Struct("=4xi8x")  # struct ifinfomsg: the index
IFLA_IFNAME, RTA_DST = 3, 1


@pytest.fixture
def rtnetlink(namespace_pair: tuple[str, str]) -> Iterator[Netlink]:
    with Netlink(namespace_pair[0]) as made:
        yield made


def loopback(*, up: bool) -> NetlinkRequest:
    message = ifinfmsg()
    message["index"] = LOOPBACK
    message["flags"], message["change"] = int(up), 1
    return NetlinkRequest("set lo", RTM_NEWLINK, message)


def route(prefix: str, *more: tuple[str, object]) -> NetlinkRequest:
    message = rtmsg()
    message["family"] = socket.AF_INET6
    message["dst_len"] = 64
    message["table"], message["type"], message["proto"] = 254, 1, 4
    message["attrs"] = [("RTA_DST", prefix), ("RTA_OIF", LOOPBACK), *more]
    flags = NLM_F_CREATE | NLM_F_EXCL
    return NetlinkRequest(f"add {prefix}", RTM_NEWROUTE, message, flags, "CONFIG_SOMETHING")


def test_request__says_what_the_kernel_says_and_what_it_needs(rtnetlink: Netlink) -> None:
    rtnetlink.request([loopback(up=True)])
    unknown = ("RTA_ENCAP_TYPE", 250), ("RTA_ENCAP", b"")
    expected = r"^cannot add fd00:3::: .*\(.*encapsulation type.*\); it requires CONFIG_SOMETHING$"
    with pytest.raises(NetlinkError, match=expected):
        rtnetlink.request([route("fd00:3::", *unknown)])


@pytest.mark.parametrize(("times", "seconds"), [(2, PATIENCE), (10_000, 0.0)])
def test_request__is_repeated_while_the_kernel_has_no_memory(
    rtnetlink: Netlink, monkeypatch: pytest.MonkeyPatch, times: int, seconds: float
) -> None:
    """The kernel refuses one of three; the others are carried out once."""
    told: list[str] = []
    refusal = Netlink._refusal

    def without_memory(answer: bytes, what: Any, *more: Any) -> NetlinkError | None:
        told.append(what)
        is_refused = told[-1] == "add fd00:2::" and told.count(told[-1]) <= times
        return (
            NetlinkError("no memory", errno.ENOMEM) if is_refused else refusal(answer, what, *more)
        )

    monkeypatch.setattr(Netlink, "_refusal", staticmethod(without_memory))
    monkeypatch.setattr(netlink, "_MEMORY_SECONDS", seconds)
    rtnetlink.request([loopback(up=True)])
    wanted = [replace(route(f"fd00:{n}::"), flags=NLM_F_CREATE | NLM_F_REPLACE) for n in (1, 2, 3)]
    with pytest.raises(NetlinkError, match="no memory") if times > 2 else nullcontext():
        rtnetlink.request(wanted)
    assert (told.count("add fd00:1::"), told.count("add fd00:3::")) == (1, 1)
    assert told.count("add fd00:2::") == min(times + 1, 2 + (seconds > 0))


def test_get__one_object(rtnetlink: Netlink) -> None:
    found = rtnetlink.get(RTM_GETLINK, LINK.pack(LOOPBACK), "read lo")
    assert attributes(found, LINK.size)[IFLA_IFNAME] == b"lo\0"


def test_get__of_none_says_what_for(rtnetlink: Netlink) -> None:
    with pytest.raises(NetlinkError, match=r"^cannot read it: No such device$"):
        rtnetlink.get(RTM_GETLINK, LINK.pack(4711), "read it")


def test_dump__refused_is_an_error(rtnetlink: Netlink) -> None:
    with pytest.raises(NetlinkError, match=r"^cannot read from the kernel: "):
        rtnetlink.dump(RTM_NEWROUTE + 1000, bytes(12))


# ---- Named namespaces ----------------------------------------------------------------------------


KEPT, GONE, STUMP = (f"mrc-{fresh_name()}" for _ in range(3))


def identity() -> str:
    return os.readlink("/proc/thread-self/ns/net")


def test_create__as_ip_would(namespace_pair: tuple[str, str]) -> None:
    listed = subprocess.run(["ip", "netns"], check=True, capture_output=True, text=True).stdout
    assert set(namespace_pair) <= {line.split()[0] for line in listed.splitlines()}
    assert set(namespace_pair) <= set(netns.names())


def test_create__refuses_a_taken_name(namespace_pair: tuple[str, str]) -> None:
    with pytest.raises(NetlinkError, match=f"{namespace_pair[0]} exists already"):
        netns.create(namespace_pair[0])
    assert namespace_pair[0] in netns.names()


def test_keep__names_the_namespace_of_the_caller(namespace_pair: tuple[str, str]) -> None:
    """Once: from another namespace, the name stays what it is."""
    try:
        for each in namespace_pair:
            with netns.inside(each):
                netns.keep(KEPT)
        with netns.inside(namespace_pair[0]):
            expected = identity()
        with netns.inside(KEPT):
            assert identity() == expected
    finally:
        netns.remove(KEPT)


def test_create__and_remove_leave_the_caller_where_it_was() -> None:
    before = identity()
    netns.create(GONE)
    assert identity() == before
    for _ in range(2):
        netns.remove(GONE)
    assert GONE not in netns.names() and identity() == before


def test_remove__clears_a_name_that_never_became_a_namespace() -> None:
    """The state after a crash between the two steps of create."""
    (netns.FOLDER / STUMP).touch()
    netns.remove(STUMP)
    assert STUMP not in netns.names()


def test_inside__moves_one_thread_and_its_children(namespace_pair: tuple[str, str]) -> None:
    before = identity()
    with ThreadPoolExecutor(1) as other:
        assert other.submit(identity).result() == before
        with netns.inside(namespace_pair[0]):
            within = identity()
            assert other.submit(identity).result() == before
            command = ["readlink", "/proc/self/ns/net"]
            child = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert within != before
    assert child.strip() == within
    assert identity() == before
    with pytest.raises(RuntimeError), netns.inside(namespace_pair[0]):
        raise RuntimeError
    assert identity() == before


def test_inside__sees_the_sysctls_of_the_namespace(namespace_pair: tuple[str, str]) -> None:
    key = Path("/proc/sys/net/ipv6/conf/default/seg6_enabled")
    before = key.read_text()
    with netns.inside(namespace_pair[0]):
        key.write_text("1")
        assert key.read_text() == "1\n"
    assert key.read_text() == before
