# SPDX-License-Identifier: Apache-2.0
"""Joins the management network of a test bed to an interface of the machine, by NAT; and interfaces
that a test bed has from the machine, and how they return.

The machine is the network namespace in which `up` runs; `mrc-NAME-machine` names it. A record in
the test bed's folder is written before the machine is changed, so `down` returns everything, also
after a command that was killed.

Only what hosts open passes the uplink. Where the machine did not forward before, it still forwards
nothing else, and `down` of its last test bed with an uplink switches the forwarding off.
"""

from __future__ import annotations

import errno
import json
import logging
import os
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from ipaddress import (
    IPv4Address,
    IPv4Interface,
    IPv6Interface,
    IPv6Network,
    ip_address,
    ip_interface,
)
from pathlib import Path

from msgspec import Struct, convert, to_builtins
from msgspec.structs import replace

from mrc.errors import NetlinkError, StateError
from mrc.lab.outside import UPLINK, Transit, bridges, links_of, transit
from mrc.linux import netns
from mrc.linux.rtnetlink import Interface
from mrc.linux.system import write_whole
from mrc.testbed import build, rootless, state
from mrc.testbed.netlink import Netlink
from mrc.testbed.plan import BedLink, BedPlan
from mrc.testbed.routes import Route
from mrc.testbed.shape import MANAGEMENT

# ---- Interfaces of the machine -------------------------------------------------------------------


_DEFAULT = "0" * 8, "0" * 32  # destinations in /proc/net/route and /proc/net/ipv6_route

_log = logging.getLogger("mrc.testbed")


class InterfaceLoan(Struct, frozen=True):
    """An interface in a test bed, and what it was on the machine."""

    interface: str
    namespace: str
    inside: str
    """its name there"""
    mtu: int
    enabled: bool
    addresses: tuple[str, ...]


class Record(Struct, frozen=True):
    """What a test bed has changed on the machine."""

    lent: tuple[InterfaceLoan, ...] = ()
    sysctls: dict[str, str] = {}
    """path under /proc/sys -> its value before"""


def machine_namespace(name: str) -> str:
    """The namespace that names the machine for a test bed."""
    return f"mrc-{name}-machine"


def load_record(name: str) -> Record:
    """The record of a test bed; empty if there is none. Raises StateError."""
    path = state.outside_path(name)
    try:
        return convert(json.loads(path.read_text()), Record)
    except FileNotFoundError:
        return Record()
    except ValueError as exc:
        raise StateError(f"{path}: cannot read: {exc}") from exc


def save_record(name: str, record: Record) -> None:
    text = json.dumps(to_builtins(record), indent=2) + "\n"
    write_whole(state.outside_path(name), text.encode())


def lend(plan: BedPlan) -> None:
    """Moves the interfaces of the machine into the test bed. Raises StateError, NetlinkError."""
    real = plan.shape.outside.hosts
    if not real:
        return
    machine = machine_namespace(plan.name)
    netns.keep(machine)
    there = {each.name: each for each in Interface.all(machine)}
    with netns.inside(machine):
        files = [Path("/proc/thread-self/net", name) for name in ("route", "ipv6_route")]
        ipv4, ipv6 = (path.read_text().splitlines() for path in files)
    # The interfaces over which the machine reaches the rest of the world.
    ways_out = {row[0] for row in map(str.split, ipv4) if (row[1], row[7]) == (_DEFAULT[0],) * 2}
    ways_out |= {row[-1] for row in map(str.split, ipv6) if row[:2] == [_DEFAULT[1], "00"]}
    lent = []
    for host in real:
        place = plan.nodes[host.host].namespace
        for interface, port in bridges(host, plan).items():
            found = existing(interface, there)
            if interface in ways_out - {"lo"}:
                raise StateError(f"{interface} has the default route: the machine would be cut off")
            addresses, inside = tuple(map(str, found.addresses)), _port(port)
            lent.append(
                InterfaceLoan(interface, place, inside, found.mtu, found.enabled, addresses)
            )
    save_record(plan.name, Record(tuple(lent)))
    for each in lent:
        with Netlink(machine) as netlink:
            netlink.move(each.interface, each.namespace, each.inside)
    _join_real_hosts(plan)


def existing(interface: str, there: Mapping[str, Interface]) -> Interface:
    """Raises StateError if the machine has no such interface."""
    if interface in there:
        return there[interface]
    why = f"it has {', '.join(name for name in there if name != 'lo') or 'none'}"
    if rootless.KEEPER in os.environ:
        why = "a test bed of an ordinary user has none of its interfaces: run this command as root"
    raise StateError(f"this machine has no interface {interface}; {why}")


def give_back(name: str) -> None:
    """Returns every interface to the machine, with its name, addresses and state.

    Raises StateError, and NetlinkError.
    """
    machine = machine_namespace(name)
    for each in load_record(name).lent:
        netns.keep(machine)  # somebody may have removed the name
        _return(each, machine)
    netns.remove(machine)


def follow(plan: BedPlan, held_down: Collection[build.LinkEnd]) -> None:
    """Sets the interfaces of real hosts down where faults hold their links down, and up elsewhere:
    a bridge would hide the state of the link.
    """
    for real in plan.shape.outside.hosts:
        upper = {link.lower_name: (link.upper, link.upper_name) for link in links_of(real, plan)}
        with Netlink(plan.nodes[real.host].namespace) as netlink:
            for port in bridges(real, plan).values():
                netlink.set_links([_port(port)], up=upper[port] not in held_down)


def _port(name: str) -> str:
    """The interface towards a real host, which is joined with this one."""
    return f"real-{name}"


def _join_real_hosts(plan: BedPlan) -> None:
    for real in plan.shape.outside.hosts:
        mtus = {link.lower_name: link.mtu for link in links_of(real, plan)}
        with Netlink(plan.nodes[real.host].namespace) as netlink:
            for port in bridges(real, plan).values():
                netlink.set_mtu(_port(port), mtus[port])
                netlink.add_bridge(f"br-{port}", (port, _port(port)))
                netlink.set_links([_port(port)], up=True)


def _return(lent: InterfaceLoan, machine: str) -> None:
    """Moves an interface back, from wherever it is. The kernel itself returns a network card whose
    namespace was removed, under the name that it had there.
    """
    places = [lent.namespace] if lent.namespace in netns.names() else []
    for place in (*places, machine):
        is_there = lent.inside in {each.name for each in Interface.all(place)}
        if is_there and (place, lent.inside) != (machine, lent.interface):
            _move_back(lent, place, machine)
    if lent.interface in {each.name for each in Interface.all(machine)}:
        with Netlink(machine) as netlink:
            netlink.set_mtu(lent.interface, lent.mtu)
        _enable(machine, lent)
    else:
        _log.warning("%s does not exist any more", lent.interface)


def _move_back(lent: InterfaceLoan, place: str, machine: str) -> None:
    try:
        with Netlink(place) as netlink:
            netlink.move(lent.inside, machine, lent.interface)
    except NetlinkError as exc:
        if exc.code != errno.EEXIST:
            raise
        raise StateError(
            f"{lent.interface} cannot return, because the machine has another interface of this "
            "name: rename that one, then run mrc testbed down again"
        ) from exc


def _enable(place: str, lent: InterfaceLoan) -> None:
    """Sets the interface up, if it was, with its addresses."""
    every = [ip_interface(each) for each in lent.addresses]
    ipv6 = [(lent.interface, each) for each in every if isinstance(each, IPv6Interface)]
    ipv4: list[tuple[str, IPv4Interface, IPv4Address | None]] = [
        (lent.interface, each, None) for each in every if isinstance(each, IPv4Interface)
    ]
    with Netlink(place) as netlink:
        netlink.set_links([lent.interface], up=lent.enabled)
        netlink.add_ipv4(ipv4)
        netlink.add_addresses(ipv6)


# ---- The uplink ----------------------------------------------------------------------------------


_OUTSIDE = IPv6Network("::/0")
_MTU = 1500
_UP_SECONDS = 10.0
_GUARD = "mrc-guard"
_FORWARDING = "net/ipv6/conf/all/forwarding"

RESOLVERS = ("/etc/resolv.conf", "/run/systemd/resolve/resolv.conf")
"""The second one has the servers behind systemd-resolved."""


def after_build(plan: BedPlan) -> None:
    """Joins a test bed to the world. Raises StateError, NetlinkError."""
    save_record(plan.name, Record())  # it is there before the name of the machine
    lend(plan)
    join(plan)


def before_down(name: str) -> None:
    """Gives back all that it has of the machine. Safe at any time."""
    leave(name)
    give_back(name)


def join(plan: BedPlan) -> None:
    """Raises StateError, NetlinkError."""
    uplink = plan.shape.outside.uplink
    if uplink is None:
        return
    place, its = machine_namespace(plan.name), transit(plan.name)
    netns.keep(place)
    found = existing(uplink, {each.name: each for each in Interface.all(place)})
    if not (found.up and _families(found)):
        raise StateError(f"uplink {uplink} is down or has no address, so it leads nowhere")
    forwarding = _forwarding(place, uplink)
    before = _values(place, forwarding)
    save_record(plan.name, replace(load_record(plan.name), sysctls=before))
    _make_link(plan, place, its, found)
    for other in _others_with_uplink(plan.name):
        before |= load_record(other).sysctls
    guards = _guards(before)
    scripts = {place: _machine_rules(its, uplink), plan.nodes[MANAGEMENT].namespace: _MGMT_RULES}
    if guards:  # before the machine forwards
        build.apply_rules({place: _rules(_GUARD, {"forward": (_FILTER, guards)})})
    build.apply_rules(scripts)
    _set(place, forwarding | {f"net/ipv4/conf/{its.machine_end}/forwarding": "1"})
    _write_resolver(plan.name)


def leave(name: str) -> None:
    """Restores what the uplink of a test bed changed on the machine. Safe at any time."""
    place, its = machine_namespace(name), transit(name)
    if place not in netns.names():
        return
    build.apply_rules({place: _no_table(its.machine_end)})
    if its.machine_end in {each.name for each in Interface.all(place)}:
        with Netlink(place) as netlink:
            netlink.remove_link(its.machine_end)  # or it would outlive `mgmt` for a moment
    record = load_record(name)
    heir = next(_others_with_uplink(name), None)
    if record.sysctls and heir is not None:
        theirs = load_record(heir)
        save_record(heir, replace(theirs, sysctls=theirs.sysctls | record.sysctls))
    elif record.sysctls:
        _set(place, dict(reversed(record.sysctls.items())))
        build.apply_rules({place: _no_table(_GUARD)})
    if record.sysctls:
        save_record(name, replace(record, sysctls={}))


def _families(found: Interface) -> list[type]:
    """The IP versions in which the interface reaches more than its link."""
    far = [type(each) for each in found.addresses if not each.ip.is_link_local]
    return [kind for kind in (IPv4Interface, IPv6Interface) if kind in far]


def _make_link(plan: BedPlan, place: str, its: Transit, found: Interface) -> None:
    inner = plan.nodes[MANAGEMENT].namespace
    mtu = min(_MTU, found.mtu)
    with Netlink(inner) as ours, Netlink(place) as theirs:
        ours.add_veth(UPLINK, its.machine_end, place, mtu, BedLink.LOWER_MAC, BedLink.UPPER_MAC)
        for netlink, name, ipv4, ipv6 in (
            (ours, UPLINK, its.ipv4, its.ipv6),
            (theirs, its.machine_end, its.machine_ipv4, its.machine_ipv6),
        ):
            netlink.set_links([name], up=True)
            netlink.add_ipv4([(name, ipv4, None)])
            netlink.add_addresses([(name, ipv6)])
        Netlink.wait_until_up([(ours, [UPLINK]), (theirs, [its.machine_end])], _UP_SECONDS)
        if IPv4Interface in _families(found):
            ours.add_gateway(UPLINK, its.machine_ipv4.ip)
        if IPv6Interface in _families(found):
            ours.add_routes([Route(_OUTSIDE, UPLINK, via=its.machine_ipv6.ip)])


# ---- Forwarding ----------------------------------------------------------------------------------


def _forwarding(place: str, uplink: str) -> dict[str, str]:
    """The sysctls that the machine requires to forward, with their values, in their order.

    An interface that takes its IPv6 routes from router advertisements would lose them when the
    machine begins to forward.
    """
    wanted = {}
    if _values(place, [_FORWARDING])[_FORWARDING] == "0":
        with netns.inside(place):
            every = sorted(path.name for path in Path("/proc/sys/net/ipv6/conf").iterdir())
        keys = [f"net/ipv6/conf/{each}/accept_ra" for each in every]
        wanted = {key: "2" for key, value in _values(place, keys).items() if value == "1"}
    wanted |= {_FORWARDING: "1", f"net/ipv4/conf/{uplink}/forwarding": "1"}
    now = _values(place, wanted)
    return {key: value for key, value in wanted.items() if now[key] != value}


def _values(place: str, keys: Mapping[str, str] | list[str]) -> dict[str, str]:
    with netns.inside(place):
        return {key: Path("/proc/sys", key).read_text().strip() for key in keys}


def _set(place: str, values: Mapping[str, str]) -> None:
    with netns.inside(place):
        for key, value in values.items():
            try:
                Path("/proc/sys", key).write_text(value)
            except FileNotFoundError:  # the interface was removed
                _log.warning("%s does not exist any more", key)


def _others_with_uplink(name: str) -> Iterator[str]:
    """The other test beds that need this machine to forward."""
    ours = (netns.FOLDER / machine_namespace(name)).stat().st_ino
    for other in state.names():
        path = netns.FOLDER / machine_namespace(other)
        found = state.load(other) if other != name and path.exists() else None
        if found is not None and found.shape.outside.uplink and path.stat().st_ino == ours:
            yield other


# ---- Rules ---------------------------------------------------------------------------------------

_NAT, _FILTER = "nat hook postrouting priority srcnat", "filter hook forward priority filter"


def _guards(before: Mapping[str, str]) -> list[str]:
    """Rules for a machine that did not forward: nothing passes that is not of a test bed."""
    found = []
    for key in before:
        if key == _FORWARDING:
            found.append('meta nfproto ipv6 iifname != "mrc-*" oifname != "mrc-*" drop')
        elif key.endswith("/forwarding"):
            interface = key.split("/")[3]
            found.append(f'meta nfproto ipv4 iifname "{interface}" oifname != "mrc-*" drop')
    return found


def _machine_rules(its: Transit, uplink: str) -> str:
    end = its.machine_end
    sources = f"ip saddr {its.ipv4.network}", f"ip6 saddr {its.ipv6.network}"
    nat = [f'oifname "{uplink}" {source} masquerade' for source in sources]
    limits = [f'iifname "{end}" oifname != "{uplink}" drop', f'oifname "{end}" ct state new drop']
    return _rules(end, {"postrouting": (_NAT, nat), "forward": (_FILTER, limits)})


def _rules(table: str, chains: Mapping[str, tuple[str, list[str]]]) -> str:
    lines = [f"table inet {table} {{"]
    for chain, (hook, rules) in chains.items():
        lines += [f"  chain {chain} {{", f"    type {hook}", *(f"    {rule}" for rule in rules)]
        lines.append("  }")
    return _no_table(table) + "\n".join([*lines, "}", ""])


def _no_table(table: str) -> str:
    return f"table inet {table}\ndelete table inet {table}\n"


_MGMT_RULES = _rules(UPLINK, {"postrouting": (_NAT, [f'oifname "{UPLINK}" masquerade'])})


# ---- DNS -----------------------------------------------------------------------------------------


def _write_resolver(name: str) -> None:
    """The resolv.conf of the hosts' commands."""
    found = []
    for path in RESOLVERS:
        with suppress(OSError):
            found.append(Path(path).read_text())
    text = usable(found)
    if text is None:
        _log.warning(
            "names do not resolve in hosts: %s names no server that they reach", RESOLVERS[0]
        )
    else:
        state.write_resolver(name, text)


def usable(texts: Iterable[str]) -> str | None:
    """The first of these resolv.conf with a server that is not the machine itself, without those
    that are; None: there is none.
    """
    for text in texts:
        kept = [line for line in text.splitlines() if not _is_near(line)]
        if any(line.split()[:1] == ["nameserver"] for line in kept):
            return "\n".join(kept) + "\n"
    return None


def _is_near(line: str) -> bool:
    """Whether a line names a server that only the machine reaches."""
    words = line.split()
    if words[:1] != ["nameserver"]:
        return False
    try:
        address = ip_address(words[1])
    except (IndexError, ValueError):
        return True
    return address.is_loopback or address.is_unspecified or address.is_link_local
