# SPDX-License-Identifier: Apache-2.0
"""Messages of rtnetlink, with pyroute2 as the second opinion on every byte."""

from __future__ import annotations

import errno
import socket
import struct
from collections.abc import Mapping
from ipaddress import IPv6Address, IPv6Interface, IPv6Network
from typing import Any

import pytest
from pyroute2.netlink import nla, nlmsg
from pyroute2.netlink.rtnl.ifaddrmsg import ifaddrmsg
from pyroute2.netlink.rtnl.ifinfmsg import ifinfmsg
from pyroute2.netlink.rtnl.ndmsg import ndmsg
from pyroute2.netlink.rtnl.rtmsg import rtmsg
from pyroute2.netlink.rtnl.tcmsg import sched_tbf, tcmsg

from mrc import nlsocket
from mrc.errors import NetlinkError
from mrc.netlink import Veth, links, qdiscs, routes
from mrc.nlsocket import pack, unpack
from mrc.srv6 import LOCAL_TABLE, EncapRed, End, EndDT6, Route

VIA, OWN = IPv6Address("fe80::1"), IPv6Address("fd00:a::1")
CARRIERS = (IPv6Address("fcbb:1:100:201:e000::"), IPv6Address("fcbb:1:7::"))
INDEX = 7
ROOT = 0xFFFFFFFF
MAC, PEER_MAC = "02:00:00:00:00:02", "02:00:00:00:00:01"


def body(message: nlmsg) -> bytes:
    message.reset()
    message.encode()
    return bytes(message.data)[16:]


def test_unpack__what_was_packed() -> None:
    values = {1: b"", 2: b"a", 3: b"1234", 0x3FFF: b"12345"}
    assert unpack(pack(*values.items())) == values
    assert unpack(pack((0x8001, b"nested"))) == {1: b"nested"}


@pytest.mark.parametrize("length", range(6))
def test_unpack__rubbish_ends(length: int) -> None:
    unpack(struct.pack("=HH", length, 1) * 3)


def test_request__again_when_memory_was_short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: neither is the request that was carried out repeated, nor one that is refused."""
    ours, kernel = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    monkeypatch.setattr(nlsocket, "_open", lambda protocol: ours)

    def answer(sequence: int, code: int) -> bytes:
        return struct.pack("=IHHIIi16x", 36, 2, 0, sequence, 0, -code)

    with ours, kernel:
        link = nlsocket.NetlinkSocket()
        for answers in ([(1, 0), (2, errno.ENOMEM)], [(3, errno.ENOMEM)], [(4, errno.EEXIST)]):
            kernel.send(b"".join(answer(*each) for each in answers))
        with pytest.raises(NetlinkError, match="cannot add b: File exists"):
            link.request([nlsocket.Request(f"add {name}", 24, name.encode()) for name in "ab"])
        sent = [kernel.recv(1000) for _ in range(3)]
    assert [datagram[-1:] for datagram in sent] == [b"b"] * 3
    assert [len(datagram) for datagram in sent] == [2 * 17, 17, 17]


# ---- Routes ---------------------------------------------------------------------------------


class Seg6Encap(rtmsg.seg6_encap_info):  # type: ignore[misc]
    """With the mode that pyroute2 takes for plain encap."""

    class ipv6_sr_hdr(rtmsg.seg6_encap_info.ipv6_sr_hdr):  # type: ignore[misc]
        encapmodes: Mapping[str, int] = {"encap": 1, "encap.red": 3}
        r_encapmodes: Mapping[int, str] = {1: "encap", 3: "encap.red"}


class Seg6Local(rtmsg.seg6local_encap_info):  # type: ignore[misc]
    """With the attributes that came after VRFTABLE."""

    nla_map = (
        *rtmsg.seg6local_encap_info.nla_map,
        ("SEG6_LOCAL_COUNTERS", "hex"),
        ("SEG6_LOCAL_FLAVORS", "flavors"),
    )

    class flavors(nla):  # type: ignore[misc]
        nla_map = (
            ("SEG6_LOCAL_FLV_UNSPEC", "none"),
            ("SEG6_LOCAL_FLV_OPERATION", "uint32"),
            ("SEG6_LOCAL_FLV_LCBLOCK_BITS", "uint8"),
            ("SEG6_LOCAL_FLV_LCNODE_FN_BITS", "uint8"),
        )


class RouteMessage(rtmsg):  # type: ignore[misc]
    encaps: Mapping[int, type] = {**rtmsg.encaps, 5: Seg6Encap, 7: Seg6Local}


def end(block_bits: int, usid_bits: int) -> list[tuple[str, Any]]:
    flavors = [
        ("SEG6_LOCAL_FLV_OPERATION", 1 << 4),
        ("SEG6_LOCAL_FLV_LCBLOCK_BITS", block_bits),
        ("SEG6_LOCAL_FLV_LCNODE_FN_BITS", usid_bits),
    ]
    return [("SEG6_LOCAL_ACTION", {"value": "End"}), ("SEG6_LOCAL_FLAVORS", {"attrs": flavors})]


def encap(*carriers: IPv6Address) -> list[tuple[str, Any]]:
    segments = [str(each) for each in reversed(carriers)]
    return [("SEG6_IPTUNNEL_SRH", {"mode": "encap.red", "segs": segments})]


DT6 = [("SEG6_LOCAL_ACTION", {"value": "End.DT6"}), ("SEG6_LOCAL_TABLE", {"value": LOCAL_TABLE})]
PREFIX = IPv6Network("fcbb:1:100::/48")

# Route, type of its action and the action's attributes as pyroute2 takes them.
ROUTES: list[tuple[Route, int | None, list[tuple[str, Any]]]] = [
    (Route(PREFIX, "p1", via=VIA), None, []),
    (Route(IPv6Network("::/0"), "p1", via=VIA, metric=77), None, []),
    (Route(IPv6Network("fd00:a::/64"), "p1", local=True), None, []),
    (Route(PREFIX, "p1", VIA, OWN, EncapRed(CARRIERS[:1])), 5, encap(*CARRIERS[:1])),
    (Route(PREFIX, "p1", VIA, OWN, EncapRed(CARRIERS)), 5, encap(*CARRIERS)),
    (Route(PREFIX, "p1", action=End()), 7, end(32, 16)),
    (Route(PREFIX, "p1", action=End(48, 8)), 7, end(48, 8)),
    (Route(PREFIX, "p1", action=EndDT6(LOCAL_TABLE)), 7, DT6),
]


@pytest.mark.parametrize(("route", "tunnel", "action"), ROUTES, ids=lambda each: str(each)[:60])
def test_routes__as_pyroute2_and_back(
    route: Route, tunnel: int | None, action: list[tuple[str, Any]]
) -> None:
    message = RouteMessage()
    message["family"], message["proto"] = socket.AF_INET6, 4
    message["dst_len"] = route.dst.prefixlen
    message["table"], message["type"] = (255, 2) if route.local else (254, 1)
    attributes: list[tuple[str, Any]] = [
        ("RTA_DST", str(route.dst.network_address)),
        ("RTA_OIF", INDEX),
        ("RTA_PRIORITY", route.metric),
    ]
    if route.via:
        attributes.append(("RTA_GATEWAY", str(route.via)))
    if route.src:
        attributes.append(("RTA_PREFSRC", str(route.src)))
    if tunnel:
        attributes += [("RTA_ENCAP_TYPE", tunnel), ("RTA_ENCAP", {"attrs": action})]
    message["attrs"] = attributes
    encoded = routes.encode(route, INDEX)
    assert encoded == body(message)
    assert routes.decode(encoded, {INDEX: "p1"}) == route
    assert routes.decode(encoded, {INDEX + 1: "p1"}) is None


@pytest.mark.parametrize(
    ("table", "kind"), [(254, 3), (253, 1)], ids=["multicast", "another table"]
)
def test_decode__leaves_other_routes_out(table: int, kind: int) -> None:
    message = rtmsg()
    message["family"], message["table"], message["type"] = socket.AF_INET6, table, kind
    message["attrs"] = [("RTA_OIF", INDEX)]
    assert routes.decode(body(message), {INDEX: "p1"}) is None


@pytest.mark.parametrize("action", ["End.X", "End.DX6"])
def test_decode__no_action_of_ours(action: str) -> None:
    message = RouteMessage()
    message["family"], message["table"], message["type"] = socket.AF_INET6, 254, 1
    attributes = [("SEG6_LOCAL_ACTION", {"value": action})]
    message["attrs"] = [
        ("RTA_OIF", INDEX), ("RTA_ENCAP_TYPE", 7), ("RTA_ENCAP", {"attrs": attributes})
    ]  # fmt: skip
    assert routes.decode(body(message), {INDEX: "p1"}) == Route(IPv6Network("::/0"), "p1", metric=0)


# ---- Links ----------------------------------------------------------------------------------


@pytest.mark.parametrize("gso_max_segs", [None, 1])
def test_veth__as_pyroute2(gso_max_segs: int | None) -> None:
    peer = [
        ("IFLA_IFNAME", "h0"), ("IFLA_MTU", 9000), ("IFLA_ADDRESS", PEER_MAC),
        ("IFLA_NET_NS_FD", 5),
    ]  # fmt: skip
    data = {"attrs": [("VETH_INFO_PEER", {"attrs": peer})]}
    kind = {"attrs": [("IFLA_INFO_KIND", "veth"), ("IFLA_INFO_DATA", data)]}
    message = ifinfmsg()
    message["attrs"] = [
        ("IFLA_IFNAME", "p1"), ("IFLA_MTU", 9000), ("IFLA_ADDRESS", MAC), ("IFLA_LINKINFO", kind)
    ]  # fmt: skip
    if gso_max_segs:
        message["attrs"].append(("IFLA_GSO_MAX_SEGS", gso_max_segs))
    wanted = Veth("p1", "h0", "elsewhere", 9000, MAC, PEER_MAC, gso_max_segs)
    assert links.veth(wanted, 5) == body(message)


@pytest.mark.parametrize("up", [True, False])
def test_set_link__as_pyroute2(up: bool) -> None:
    message = ifinfmsg()
    message["index"], message["flags"], message["change"] = INDEX, int(up), 1
    assert links.set_link(INDEX, up=up) == body(message)


@pytest.mark.parametrize(
    ("flags", "state", "up"),
    [(1, "UP", True), (1, "UNKNOWN", True), (1, "DOWN", False), (0, "UP", False)],
)
def test_decode__an_interface_that_is_up(flags: int, state: str, up: bool) -> None:
    message = ifinfmsg()
    message["index"], message["flags"] = INDEX, flags
    message["attrs"] = [("IFLA_IFNAME", "p1"), ("IFLA_MTU", 1500), ("IFLA_OPERSTATE", state)]
    assert links.decode(body(message)) == links.Interface("p1", INDEX, 1500, up)


def test_address__as_pyroute2_and_back() -> None:
    message = ifaddrmsg()
    message["family"], message["prefixlen"], message["index"] = socket.AF_INET6, 64, INDEX
    message["attrs"] = [("IFA_ADDRESS", str(OWN)), ("IFA_LOCAL", str(OWN)), ("IFA_FLAGS", 2)]
    own = IPv6Interface((OWN, 64))
    assert links.address(INDEX, own) == body(message)
    assert links.decode_address(body(message)) == (INDEX, own)


def test_decode_address__ours_of_a_link_between_two_and_none_without_ip() -> None:
    message = ifaddrmsg()
    message["family"], message["prefixlen"], message["index"] = socket.AF_INET6, 128, INDEX
    message["attrs"] = [("IFA_ADDRESS", "fd00::2"), ("IFA_LOCAL", "fd00::1")]
    assert links.decode_address(body(message)) == (INDEX, IPv6Interface("fd00::1/128"))
    assert links.decode_address(bytes(8) + pack((2, b"\x08"))) is None  # as that of MCTP


def test_neighbour__as_pyroute2() -> None:
    message = ndmsg()
    message["family"], message["ifindex"], message["state"] = socket.AF_INET6, INDEX, 0x80
    message["attrs"] = [("NDA_DST", str(VIA)), ("NDA_LLADDR", MAC)]
    assert links.neighbour(INDEX, VIA, MAC) == body(message)


# ---- Queues ---------------------------------------------------------------------------------


class TbfMessage(tcmsg):  # type: ignore[misc]
    """With a burst in bytes."""

    nla_map = (("TCA_UNSPEC", "none"), ("TCA_KIND", "asciiz"), ("TCA_OPTIONS", "tbf"))

    class tbf(nla):  # type: ignore[misc]
        nla_map = (
            ("TCA_TBF_UNSPEC", "none"),
            ("TCA_TBF_PARMS", "parms"),
            ("TCA_TBF_RTAB", "hex"),
            ("TCA_TBF_PTAB", "hex"),
            ("TCA_TBF_RATE64", "uint64"),
            ("TCA_TBF_PRATE64", "uint64"),
            ("TCA_TBF_BURST", "uint32"),
        )

        class parms(nla):  # type: ignore[misc]
            fields = sched_tbf.options.tbf_parms.fields


@pytest.mark.parametrize(
    ("rate_bps", "rate", "rate64"), [(10**9, 125_000_000, None), (10**12, 2**32 - 1, 125 * 10**9)]
)
def test_shaper__as_pyroute2(rate_bps: int, rate: int, rate64: int | None) -> None:
    parms = {"rate___reserved": 1, "rate": rate, "limit": 100_000}
    options: list[tuple[str, Any]] = [("TCA_TBF_PARMS", parms), ("TCA_TBF_BURST", 80_000)]
    if rate64:
        options.append(("TCA_TBF_RATE64", rate64))
    message = TbfMessage()
    message["index"], message["parent"], message["handle"] = INDEX, ROOT, 0x10000
    message["attrs"] = [("TCA_KIND", "tbf"), ("TCA_OPTIONS", {"attrs": options})]
    encoded = qdiscs.shaper(INDEX, rate_bps=rate_bps, burst_bytes=80_000, limit_bytes=100_000)
    assert encoded == body(message)


def test_at_root__as_pyroute2() -> None:
    message = tcmsg()
    message["index"], message["parent"] = INDEX, ROOT
    assert qdiscs.at_root(INDEX) == body(message)
    message["handle"] = 0x20000
    message["attrs"] = [("TCA_KIND", "htb")]
    assert qdiscs.empty(INDEX, "htb") == body(message)


def test_counters__are_the_queues_where_there_is_one() -> None:
    sent = struct.pack("=8Q", 0, 10, 0, 1000, 0, 0, 0, 3)  # packets, bytes, dropped
    names = [(INDEX, "p1"), (INDEX + 1, "p2")]
    of_links = [
        links.by_index(index) + pack((3, name.encode()), (4, bytes(4)), (23, sent))
        for index, name in names
    ]
    queue = struct.pack("=Q7I", 2000, 20, 4, 0, 0, 0, 1, 500)
    head = struct.pack("=BxxxiIII", 0, INDEX, 0x10000, ROOT, 0)
    below = struct.pack("=BxxxiIII", 0, INDEX, 0x20000, 0x10001, 0)
    of_queues = [
        head + pack((1, b"tbf\0"), (3, queue)),
        below + pack((1, b"netem\0"), (3, bytes(40))),
    ]
    assert qdiscs.counters(of_links, of_queues) == {
        "p1": qdiscs.Counters(20, 2000, 3 + 4, 500),
        "p2": qdiscs.Counters(10, 1000, 3, 0),
    }
