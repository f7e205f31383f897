# SPDX-License-Identifier: Apache-2.0
"""What becomes of requests that the kernel refuses."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from ipaddress import IPv6Network

import pytest

from mrc import netns
from mrc.errors import NetlinkError
from mrc.netlink import links, routes
from mrc.nlsocket import NLM_F_CREATE, NLM_F_EXCL, NetlinkSocket, Request, pack
from mrc.srv6 import Route

RTM_NEWLINK, RTM_GETLINK, RTM_NEWROUTE, RTM_GETROUTE = 16, 18, 24, 26
LOOPBACK = 1


@pytest.fixture
def rtnetlink(namespace_pair: tuple[str, str]) -> Iterator[NetlinkSocket]:
    with netns.inside(namespace_pair[0]):
        made = NetlinkSocket()
    yield made
    made.close()


def loopback_up() -> Request:
    return Request("set lo", RTM_NEWLINK, links.set_link(LOOPBACK, up=True))


def route(prefix: str, *more: tuple[int, bytes]) -> Request:
    body = routes.encode(Route(IPv6Network((prefix, 64)), "lo"), LOOPBACK) + pack(*more)
    flags = NLM_F_CREATE | NLM_F_EXCL
    return Request(f"add {prefix}", RTM_NEWROUTE, body, flags, "CONFIG_SOMETHING")


def test_request__carries_out_the_rest_and_reports_the_first(rtnetlink: NetlinkSocket) -> None:
    rtnetlink.request([loopback_up(), route("fd00:1::")])
    with pytest.raises(NetlinkError, match=r"^cannot add fd00:1::: File exists$"):
        rtnetlink.request([route("fd00:1::"), route("fd00:2::"), route("fd00:1::")])
    there = (
        routes.decode(each, {LOOPBACK: "lo"})
        for each in rtnetlink.dump(RTM_GETROUTE, routes.ALL_ROUTES)
    )
    assert {"fd00:1::/64", "fd00:2::/64"} <= {str(each.dst) for each in there if each}


def test_request__says_what_the_kernel_says_and_what_it_needs(rtnetlink: NetlinkSocket) -> None:
    rtnetlink.request([loopback_up()])
    unknown = (21, struct.pack("=H", 250)), (22, b"")  # RTA_ENCAP_TYPE, RTA_ENCAP
    expected = r"^cannot add fd00:3::: .*\(.*encapsulation type.*\); this needs CONFIG_SOMETHING$"
    with pytest.raises(NetlinkError, match=expected):
        rtnetlink.request([route("fd00:3::", *unknown)])


def test_get__one_object(rtnetlink: NetlinkSocket) -> None:
    found = rtnetlink.get(RTM_GETLINK, links.by_index(LOOPBACK), "read lo")
    assert links.decode(found).name == "lo"


def test_get__of_none_says_what_for(rtnetlink: NetlinkSocket) -> None:
    with pytest.raises(NetlinkError, match=r"^cannot read it: No such device$"):
        rtnetlink.get(RTM_GETLINK, links.by_index(4711), "read it")


def test_dump__refused_is_an_error(rtnetlink: NetlinkSocket) -> None:
    with pytest.raises(NetlinkError, match=r"^cannot read from the kernel: "):
        rtnetlink.dump(RTM_NEWROUTE + 1000, routes.ALL_ROUTES)
