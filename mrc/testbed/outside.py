# SPDX-License-Identifier: Apache-2.0
"""What joins a test bed to the world: the table `[outside]` of a file, and its options. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from mrc.fabric.table import Table
from mrc.fabric.topology import Topology
from mrc.testbed.names import node_of
from mrc.testbed.results import LentInterface, Outside, RealHost
from mrc.units import counted

NOTHING = Outside(uplink=None, interfaces=(), hosts=())

_MANAGEMENT_PREFIX = "mgmt:"
_INTERFACE = re.compile(r"[A-Za-z0-9_.@-]{1,15}")


def read(table: Table) -> Outside:
    """The table `[outside]` of a topology file. Raises ConfigError."""
    found = Outside(
        uplink=table.text("uplink") if table.has("uplink") else None,
        interfaces=tuple(
            LentInterface(each.text("interface"), each.text("node"))
            for each in _closed(table.tables("interfaces"), "interface", "node")
        ),
        hosts=tuple(
            RealHost(
                each.text("host"),
                each.texts("interfaces"),
                each.text("management") if each.has("management") else None,
            )
            for each in _closed(table.tables("hosts"), "host", "interfaces", "management")
        ),
    )
    table.close()
    return found


def _closed(tables: Sequence[Table], *keys: str) -> Iterator[Table]:
    """The tables, none of which has other keys."""
    for table in tables:
        for key in keys:
            table.has(key)
        table.close()
        yield table


def parse_lent(text: str) -> LentInterface:
    """`eth2=h0`, `eth2=t1:2.0`"""
    interface, equals, node = text.partition("=")
    if not (equals and interface and node):
        raise ValueError(f"{text!r} is not INTERFACE=NODE, such as eth2=h0 or eth2=t1:2.0")
    return LentInterface(interface, node)


def parse_real_host(text: str) -> RealHost:
    """`h1=tap1,tap2`, with a last `,mgmt:tap0` for the management network."""
    host, equals, names = text.partition("=")
    *planes, last = names.split(",")
    management = last.removeprefix(_MANAGEMENT_PREFIX) if last.startswith("mgmt:") else None
    interfaces = (*planes,) if management is not None else (*planes, last)
    if not (equals and host and interfaces and all(interfaces)):
        raise ValueError(f"{text!r} is not HOST=INTERFACE,..., such as h1=tap1,tap2,mgmt:tap0")
    return RealHost(host, interfaces, management)


def check(outside: Outside, shape: Topology, *, has_switches: bool) -> None:
    """Raises ValueError for what this fabric cannot have. `has_switches`: each is a namespace."""
    if outside == NOTHING:
        return
    hosts = {f"h{number}": number for number in shape.host_numbers()}
    for each in outside.hosts:
        if each.host not in hosts:
            raise ValueError(f"{each.host} is no host of this topology: use {_range(hosts)}")
        planes = shape.planes_of(hosts[each.host])
        if len(each.interfaces) != len(planes):
            raise ValueError(
                f"{each.host} has {counted(len(planes), 'plane')}, not {len(each.interfaces)}: one "
                "interface for each plane"
            )
    real = [each.host for each in outside.hosts]
    _no_twins("host", real)
    if len(real) == len(hosts):
        raise ValueError("all hosts are real hosts: leave one to the test bed")
    for lent in outside.interfaces:
        if lent.node in real:
            raise ValueError(f"{lent.interface}: {lent.node} is a real host, and has its own")
        node_of(lent.node, shape, has_switches=has_switches)
    _no_twins("interface", list(_interfaces(outside)))
    for interface in _interfaces(outside):
        check_interface(interface)


def check_interface(name: str) -> None:
    """Raises ValueError for a name that would need quotes in scripts."""
    if not _INTERFACE.fullmatch(name):
        raise ValueError(f"{name!r} is not the name of an interface")


def real_host(outside: Outside, host: str) -> RealHost | None:
    return next((each for each in outside.hosts if each.host == host), None)


def lines(outside: Outside) -> list[str]:
    """What joins the test bed to the world, for people."""
    found = [f"uplink {outside.uplink}: hosts reach the world by NAT"] if outside.uplink else []
    found += [f"{each.node} has the interface {each.interface}" for each in outside.interfaces]
    for each in outside.hosts:
        management = f", management {each.management}" if each.management else ""
        found.append(
            f"{each.host} is a real host at {', '.join(each.interfaces)}{management}; what it "
            f"configures: mrc testbed join {each.host}"
        )
    return found


def changed(
    outside: Outside,
    uplink: str | None,
    interfaces: Sequence[LentInterface],
    hosts: Sequence[RealHost],
) -> Outside:
    """With what options add or override."""
    return replace(
        outside,
        uplink=uplink or outside.uplink,
        interfaces=(*outside.interfaces, *interfaces),
        hosts=(*outside.hosts, *hosts),
    )


def _interfaces(outside: Outside) -> Iterator[str]:
    """Every interface of the machine, as often as it is named."""
    if outside.uplink is not None:
        yield outside.uplink
    yield from (each.interface for each in outside.interfaces)
    for each in outside.hosts:
        yield from each.interfaces
        if each.management is not None:
            yield each.management


def _no_twins(what: str, names: list[str]) -> None:
    if twins := [name for name in names if names.count(name) > 1]:
        raise ValueError(f"{what} {twins[0]} is named twice")


def _range(hosts: dict[str, int]) -> str:
    return f"{min(hosts, key=lambda name: hosts[name])}..{max(hosts, key=lambda name: hosts[name])}"
