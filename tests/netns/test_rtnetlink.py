# SPDX-License-Identifier: Apache-2.0
"""Errors of requests that the kernel refuses."""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterator
from contextlib import nullcontext

import pytest
from msgspec.structs import replace
from pyroute2.netlink.rtnl.ifinfmsg import ifinfmsg
from pyroute2.netlink.rtnl.rtmsg import rtmsg
from slowness import PATIENCE

from mrc.errors import NetlinkError
from mrc.linux import netns
from mrc.linux import rtnetlink as rtnetlink_module
from mrc.linux.rtnetlink import NLM_F_CREATE, NLM_F_EXCL, NLM_F_REPLACE, NetlinkRequest, Rtnetlink

pytestmark = pytest.mark.default

RTM_NEWLINK, RTM_GETLINK, RTM_NEWROUTE, RTM_GETROUTE = 16, 18, 24, 26
LOOPBACK = 1


@pytest.fixture
def rtnetlink(namespace_pair: tuple[str, str]) -> Iterator[Rtnetlink]:
    with netns.inside(namespace_pair[0]):
        made = Rtnetlink()
    yield made
    made.close()


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


def test_request__carries_out_the_rest_and_reports_the_first(rtnetlink: Rtnetlink) -> None:
    rtnetlink.request([loopback(up=True), route("fd00:1::")])
    with pytest.raises(NetlinkError, match=r"^cannot add fd00:1::: File exists$"):
        rtnetlink.request([route("fd00:1::"), route("fd00:2::"), route("fd00:1::")])
    family = rtmsg()
    family["family"] = socket.AF_INET6
    found = {each.get_attr("RTA_DST") for each in rtnetlink.dump(RTM_GETROUTE, family)}
    assert {"fd00:1::", "fd00:2::"} <= found


def test_request__says_what_the_kernel_says_and_what_it_needs(rtnetlink: Rtnetlink) -> None:
    rtnetlink.request([loopback(up=True)])
    unknown = ("RTA_ENCAP_TYPE", 250), ("RTA_ENCAP", b"")
    expected = r"^cannot add fd00:3::: .*\(.*encapsulation type.*\); it requires CONFIG_SOMETHING$"
    with pytest.raises(NetlinkError, match=expected):
        rtnetlink.request([route("fd00:3::", *unknown)])


@pytest.mark.parametrize(("times", "seconds"), [(2, PATIENCE), (10_000, 0.0)])
def test_request__is_repeated_while_the_kernel_has_no_memory(
    rtnetlink: Rtnetlink, monkeypatch: pytest.MonkeyPatch, times: int, seconds: float
) -> None:
    """The kernel refuses one of three; the others are carried out once."""
    told: list[str] = []
    refusal = rtnetlink_module._refusal

    def without_memory(request: NetlinkRequest, answer: bytes) -> NetlinkError | None:
        told.append(str(request.what))
        is_refused = told[-1] == "add fd00:2::" and told.count(told[-1]) <= times
        return NetlinkError("no memory", errno.ENOMEM) if is_refused else refusal(request, answer)

    monkeypatch.setattr(rtnetlink_module, "_refusal", without_memory)
    monkeypatch.setattr(rtnetlink_module, "_MEMORY_SECONDS", seconds)
    rtnetlink.request([loopback(up=True)])
    wanted = [replace(route(f"fd00:{n}::"), flags=NLM_F_CREATE | NLM_F_REPLACE) for n in (1, 2, 3)]
    with pytest.raises(NetlinkError, match="no memory") if times > 2 else nullcontext():
        rtnetlink.request(wanted)
    assert (told.count("add fd00:1::"), told.count("add fd00:3::")) == (1, 1)
    assert told.count("add fd00:2::") == min(times + 1, 2 + (seconds > 0))


def test_get__one_object(rtnetlink: Rtnetlink) -> None:
    message = ifinfmsg()
    message["index"] = LOOPBACK
    assert rtnetlink.get(RTM_GETLINK, message, "read lo").get_attr("IFLA_IFNAME") == "lo"


def test_get__of_none_says_what_for(rtnetlink: Rtnetlink) -> None:
    message = ifinfmsg()
    message["index"] = 4711
    with pytest.raises(NetlinkError, match=r"^cannot read it: No such device$"):
        rtnetlink.get(RTM_GETLINK, message, "read it")


def test_dump__refused_is_an_error(rtnetlink: Rtnetlink) -> None:
    with pytest.raises(NetlinkError, match=r"^cannot read from the kernel: "):
        rtnetlink.dump(RTM_NEWROUTE + 1000, rtmsg())
