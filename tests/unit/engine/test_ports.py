# SPDX-License-Identifier: Apache-2.0
"""Which ports open and close as interfaces change, under which numbers; when that is looked at."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from ipaddress import ip_interface
from typing import Any

import pytest

from mrc import Spraying
from mrc.config import ContextConfig
from mrc.engine import ports
from mrc.engine.native import Command
from mrc.engine.ports import LocalPorts, finder, link_snapshots, number
from mrc.enums import CommandOp
from mrc.errors import ConfigError, NetlinkError, StateError
from mrc.fabric import hostconfig
from mrc.fabric.hostconfig import IpInterface, unpack_address
from mrc.fabric.paths import interface_ports
from mrc.linux.rtnetlink import Interface


@dataclass(frozen=True)
class Nic:
    """A network interface of a test."""

    name: str
    addresses: Sequence[IpInterface]
    index: int = 7
    up: bool = True
    mtu: int = 1500


def nic(name: str, *addresses: str, index: int = 7, up: bool = True, mtu: int = 1500) -> Nic:
    return Nic(name, [ip_interface(address) for address in addresses], index, up, mtu)


LO = nic("lo", "127.0.0.1/8", index=1)
ETH0 = nic("eth0", "10.0.0.1/24", index=2)
ETH1 = nic("eth1", "10.0.1.1/24", index=3)


@dataclass
class Datapath:
    """Takes commands, and refuses some."""

    done: list[str] = field(default_factory=list)
    in_use: set[int] = field(default_factory=set)
    """ports used by QPs: they only open with their old address"""
    broken: bool = False
    addresses: dict[int, object] = field(default_factory=dict)
    udp_port: int = 0

    async def call(self, command: Command, what: str) -> int:
        plane = command.fields["value"]
        match command.fields["op"]:
            case CommandOp.PORT_UP:
                self.done.append(f"{plane} {'up' if command.fields['key'] else 'down'}")
            case CommandOp.PORT_CLOSE:
                self.done.append(f"{plane} closed")
            case CommandOp.PORT_OPEN:
                self._open(plane, command.fields["pointer"])
        return 0

    def _open(self, plane: int, opening: Any) -> None:
        address = unpack_address(bytes(opening.config.address))
        if self.broken:
            opening.cause = b"cannot bind"
            raise OSError("what")
        if plane in self.in_use and self.addresses.get(plane) not in (None, address):
            raise StateError("in use")
        self.addresses[plane] = address
        opening.udp_port = 5000
        opening.sports = [40000 + plane] * 64
        self.done.append(f"{plane} {address}")

    def take(self) -> list[str]:
        done, self.done = self.done, []
        return done


class Host:
    """LocalPorts of a host with scripted interfaces."""

    def __init__(self, *wanted: str, host: hostconfig.HostConfig | None = None) -> None:
        config = ContextConfig(interfaces=wanted, spraying=Spraying(evs_per_pair=2))
        self.links = LocalPorts(finder(config, host))
        self.datapath = Datapath()

    async def has(self, *nics: Nic) -> list[str]:
        """The actions taken when the host has these interfaces."""
        steered: Any = self.datapath
        await self.links.apply(nics, self.datapath.call, steered)
        return self.datapath.take()


def test_number__in_order_behind_those_that_are_reserved() -> None:
    nics = [LO, ETH0, ETH1]
    numbered = number(interface_ports(nics, (), 1))
    assert {plane: port.nic for plane, port in numbered.items()} == {1: "eth0", 2: "eth1", 5: "lo"}
    assert list(number(interface_ports([LO], (), 1))) == [5]
    assert list(number(interface_ports(nics, ["eth9", "eth1"], 1))) == [2, 3]


def test_number__more_than_the_engine_has() -> None:
    nics = [nic(f"eth{i}", f"10.0.{i}.1/24") for i in range(33)]
    with pytest.raises(ConfigError, match="34 ports are needed, at most 32"):
        number(interface_ports([LO, *nics], [each.name for each in nics], 1))


async def test_apply__late_gone_and_back() -> None:
    host = Host()
    assert await host.has(LO) == ["5 127.0.0.1"]
    assert await host.has(LO, ETH0) == ["1 10.0.0.1"]
    assert await host.has(LO, ETH0) == []
    assert host.links.sports.of[1] == (40001, 40001)
    assert [port.plane for port in host.links.ports] == [1, 5]
    assert await host.has(LO) == ["1 closed"]
    assert [port.plane for port in host.links.ports] == [5]
    assert await host.has(LO, ETH1) == ["2 10.0.1.1"], "the number of eth0 is kept while it can be"
    assert await host.has(LO, ETH0, ETH1) == ["1 10.0.0.1"]
    assert host.datapath.udp_port == 5000


async def test_apply__a_link_that_is_down_keeps_its_sockets() -> None:
    host = Host()
    await host.has(ETH0, ETH1)
    flushed = replace(ETH1, up=False, addresses=())
    assert await host.has(ETH0, flushed) == ["2 down"]
    assert await host.has(ETH0, flushed) == []
    assert await host.has(ETH0, ETH1) == ["2 up"]
    assert await host.has(ETH0, replace(ETH1, up=False)) == ["2 down"]
    assert await host.has(ETH0) == ["2 closed"]
    assert await host.has(ETH0, ETH1) == ["2 10.0.1.1"], "it opens as up"


async def test_apply__made_again_with_another_index() -> None:
    host = Host()
    await host.has(ETH0, ETH1)
    assert await host.has(ETH0, replace(ETH1, index=9)) == ["2 closed", "2 10.0.1.1"]
    assert await host.has(ETH0, replace(ETH1, index=9)) == []


async def test_apply__another_address_while_qps_use_the_old_one() -> None:
    host = Host("eth0")
    await host.has(ETH0)
    moved = nic("eth0", "10.0.0.9/24", index=2)
    host.datapath.in_use = {1}
    assert await host.has(moved) == ["1 closed", "2 10.0.0.9"]
    assert await host.has(ETH0) == ["2 closed", "1 10.0.0.1"]
    host.datapath.in_use = set()
    assert await host.has(moved) == ["1 closed", "2 10.0.0.9"]


async def test_apply__numbers_do_not_run_out() -> None:
    host = Host()
    for i in range(200):
        assert len(await host.has(ETH0, nic(f"veth{i}", f"10.1.{i}.1/24", index=i))) <= 3
    assert [port.nic for port in host.links.ports] == ["eth0", "veth199"]
    assert host.links.highest <= 32


async def test_apply__a_new_mtu_and_an_older_address_that_is_listed_later() -> None:
    host = Host()
    await host.has(ETH0)
    assert await host.has(nic("eth0", "10.0.0.9/24", "10.0.0.1/24", index=2, mtu=9000)) == []
    (port,) = host.links.ports
    assert (port.mtu, str(port.address.ip)) == (8928, "10.0.0.1")


async def test_apply__what_cannot_be_opened_is_said_once_and_tried_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    host = Host()
    host.datapath.broken = True
    for _ in range(2):
        assert await host.has(ETH0) == []
    assert caplog.messages == ["eth0 (10.0.0.1) cannot be used: cannot bind"]
    assert host.links.impatient
    host.datapath.broken = False
    assert await host.has(ETH0) == ["1 10.0.0.1"]
    assert not host.links.impatient


async def test_tell__once_what_is_missing_and_what_is_there(
    caplog: pytest.LogCaptureFixture,
) -> None:
    host = Host()
    await host.has(LO)
    host.links.tell()
    await host.has(LO)
    await host.has(LO, ETH0)
    await host.has(LO)
    await host.has(LO, ETH0, ETH1)
    assert caplog.messages == [
        "no usable interface yet: no interface is up and has an address",
        "in use now: eth0 (10.0.0.1)",
    ]


async def test_tell__of_each_that_was_named(caplog: pytest.LogCaptureFixture) -> None:
    host = Host("eth0", "eth1")
    await host.has(ETH0)
    host.links.tell()
    await host.has(ETH0, ETH1)
    assert caplog.messages == [
        "in use now: eth0 (10.0.0.1); not yet: no interface eth1; this host has eth0",
        "in use now: eth0 (10.0.0.1), eth1 (10.0.1.1)",
    ]


async def test_tell__nothing_when_nothing_is_missing(caplog: pytest.LogCaptureFixture) -> None:
    host = Host()
    await host.has(LO, ETH0)
    host.links.tell()
    await host.has(LO)
    assert caplog.messages == []


async def test_check__without_what_was_named() -> None:
    host = Host("eth0", "eth1")
    await host.has(LO)
    with pytest.raises(ConfigError, match=r"no interface eth0; .*; no interface eth1"):
        host.links.check(("eth0", "eth1"))
    await host.has(LO, ETH1)
    host.links.check(("eth0", "eth1"))


# ---- The times at which the monitor reads the interfaces -----------------------------------------


async def test_link_snapshots__begin_with_what_is_and_end_when_cancelled() -> None:
    snapshots = link_snapshots()
    assert "lo" in [interface.name for interface in await anext(snapshots)]
    waiting = asyncio.ensure_future(anext(snapshots))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting


async def test_link_snapshots__take_little_however_often_something_changes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Method: the monitor always has a reason to look, and each look takes 1 ms of CPU time."""
    monkeypatch.setattr(ports, "_RETRY_SECONDS", 0.0)

    def interfaces() -> list[Interface]:
        until = time.thread_time() + 0.001
        while time.thread_time() < until:
            pass
        return []

    monkeypatch.setattr(ports, "interfaces", interfaces)
    started, used = time.monotonic(), time.thread_time()
    looks = 0
    async for _ in link_snapshots(lambda: True):
        looks += 1
        if looks == 20:
            break
    assert time.thread_time() - used < 0.25 * (time.monotonic() - started)


async def test_link_snapshots__go_on_when_interfaces_cannot_be_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ports, "_RETRY_SECONDS", 0.0)
    answers: Iterator[NetlinkError | list[Interface]] = iter(
        [NetlinkError("cannot read from the kernel"), []]
    )

    def interfaces() -> list[Interface]:
        answer = next(answers)
        if isinstance(answer, NetlinkError):
            raise answer
        return answer

    monkeypatch.setattr(ports, "interfaces", interfaces)
    assert await anext(link_snapshots(lambda: True)) == []
