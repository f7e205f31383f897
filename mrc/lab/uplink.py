# SPDX-License-Identifier: Apache-2.0
"""Joins the management network of a test bed to an interface of the machine, by NAT.

Only what hosts open passes. Where the machine did not forward before, it still forwards nothing
else, and `down` of its last test bed with an uplink switches the forwarding off.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from ipaddress import IPv4Interface, IPv6Interface, IPv6Network, ip_address
from pathlib import Path

from msgspec.structs import replace

from mrc.errors import StateError
from mrc.fabric.srv6 import Route
from mrc.lab import lending
from mrc.lab.outside import UPLINK, Transit, transit
from mrc.linux import netns
from mrc.linux.interfaces import Interface, interfaces
from mrc.linux.netlink import Netlink, Veth, wait_until_up
from mrc.testbed import build, state
from mrc.testbed.plan import LOWER_MAC, UPPER_MAC, BedPlan
from mrc.testbed.shape import MACHINE, MANAGEMENT, namespace_of

_OUTSIDE = IPv6Network("::/0")
_MTU = 1500
_UP_SECONDS = 10.0
_GUARD = "mrc-guard"
_FORWARDING = "net/ipv6/conf/all/forwarding"

RESOLVERS = ("/etc/resolv.conf", "/run/systemd/resolve/resolv.conf")
"""The second one has the servers behind systemd-resolved."""

_log = logging.getLogger("mrc.testbed")


def after_build(plan: BedPlan) -> None:
    """Joins a test bed to the world. Raises StateError, NetlinkError."""
    lending.lend(plan)
    join(plan)


def before_down(name: str) -> None:
    """Gives back all that it has of the machine. Safe at any time."""
    leave(name)
    lending.give_back(name)


def join(plan: BedPlan) -> None:
    """Raises StateError, NetlinkError."""
    uplink = plan.shape.outside.uplink
    if uplink is None:
        return
    place, its = namespace_of(plan.name, MACHINE), transit(plan.name)
    netns.keep(place)
    found = lending.existing(uplink, {each.name: each for each in interfaces(place)})
    if not (found.up and _families(found)):
        raise StateError(f"uplink {uplink} is down or has no address, so it leads nowhere")
    forwarding = _forwarding(place, uplink)
    before = _values(place, forwarding)
    lending.save(plan.name, replace(lending.load(plan.name), sysctls=before))
    _make_link(plan, place, its, found)
    for other in _others_with_uplink(plan.name):
        before |= lending.load(other).sysctls
    guards = _guards(before)
    scripts = {place: _machine_rules(its, uplink), plan.nodes[MANAGEMENT].namespace: _MGMT_RULES}
    if guards:  # before the machine forwards
        build.apply_rules({place: _rules(_GUARD, {"forward": (_FILTER, guards)})})
    build.apply_rules(scripts)
    _set(place, forwarding | {f"net/ipv4/conf/{its.machine_end}/forwarding": "1"})
    _write_resolver(plan.name)


def leave(name: str) -> None:
    """Restores what the uplink of a test bed changed on the machine. Safe at any time."""
    place, its = namespace_of(name, MACHINE), transit(name)
    if place not in netns.names():
        return
    build.apply_rules({place: _no_table(its.machine_end)})
    if its.machine_end in {each.name for each in interfaces(place)}:
        with Netlink(place) as netlink:
            netlink.remove_link(its.machine_end)  # or it would outlive `mgmt` for a moment
    record = lending.load(name)
    heir = next(_others_with_uplink(name), None)
    if record.sysctls and heir is not None:
        theirs = lending.load(heir)
        lending.save(heir, replace(theirs, sysctls=theirs.sysctls | record.sysctls))
    elif record.sysctls:
        _set(place, dict(reversed(record.sysctls.items())))
        build.apply_rules({place: _no_table(_GUARD)})
    if record.sysctls:
        lending.save(name, replace(record, sysctls={}))


def _families(found: Interface) -> list[type]:
    """The IP versions in which the interface reaches more than its link."""
    far = [type(each) for each in found.addresses if not each.ip.is_link_local]
    return [kind for kind in (IPv4Interface, IPv6Interface) if kind in far]


def _make_link(plan: BedPlan, place: str, its: Transit, found: Interface) -> None:
    inner = plan.nodes[MANAGEMENT].namespace
    mtu = min(_MTU, found.mtu)
    with Netlink(inner) as ours, Netlink(place) as theirs:
        ours.add_veths([Veth(UPLINK, its.machine_end, place, mtu, LOWER_MAC, UPPER_MAC)])
        for netlink, name, ipv4, ipv6 in (
            (ours, UPLINK, its.ipv4, its.ipv6),
            (theirs, its.machine_end, its.machine_ipv4, its.machine_ipv6),
        ):
            netlink.set_links([name], up=True)
            netlink.add_ipv4([(name, ipv4, None)])
            netlink.add_addresses([(name, ipv6)])
        wait_until_up([(ours, [UPLINK]), (theirs, [its.machine_end])], _UP_SECONDS)
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
    ours = (netns.FOLDER / namespace_of(name, MACHINE)).stat().st_ino
    for other in state.names():
        path = netns.FOLDER / namespace_of(other, MACHINE)
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
    limits = [
        f'iifname "{end}" oifname != "{uplink}" drop',
        f'oifname "{end}" ct state new drop',
    ]
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
    text = usable([_read(path) for path in RESOLVERS])
    if text is None:
        _log.warning(
            "names do not resolve in hosts: %s names no server that they reach",
            RESOLVERS[0],
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


def _read(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""
