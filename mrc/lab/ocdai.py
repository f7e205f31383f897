# SPDX-License-Identifier: Apache-2.0
"""Topology files from topology plans of OCP's Open Cluster Designs (`topology-map.yaml`), in
versions 1 and 2. Pure.

A plan has classes of switches and servers, and the ports by which they are connected. It does not
say how many switches a class has: the ports that have to fit into it do.

The fabrics to which a NIC is connected become planes, their leaves T0s and their spines T1s. A port
of a NIC in each plane becomes a host. All links between a leaf and a spine become one.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from importlib.util import find_spec
from itertools import groupby
from math import ceil
from pathlib import Path
from typing import Annotated, Any

from msgspec import Meta, Struct

from mrc.cli.arguments import add
from mrc.cli.output import Output, UsageError
from mrc.errors import BadFileError, ConfigError
from mrc.fabric import document
from mrc.fabric.document import Table
from mrc.linux.system import write_whole
from mrc.results import Result
from mrc.testbed.cli.main import Action
from mrc.testbed.tiers import Tiers
from mrc.typed import Positive, Text, Whole, take
from mrc.units import counted, digits

_V2 = "diet/v2"
_MAX_PORTS = 4096
_BREAKOUT = re.compile(r"(\d{1,4})x(\d{1,9})g", re.IGNORECASE)
_RANGE = re.compile(r"(\d{1,9})(?:-(\d{1,9})(?::(\d{1,9}))?)?")
_Count = Annotated[int, Meta(ge=1, le=_MAX_PORTS)]
_GBIT = 10**9


class SwitchClass(Struct, frozen=True):
    switch_class_id: Text
    fabric_name: Text
    hedgehog_role: str = "server-leaf"
    topology_mode: str | None = None
    override_quantity: _Count | None = None
    uplink_ports_per_switch: Whole | None = None
    mclag_pair: bool = False
    redundancy_type: str | None = None

    @property
    def is_spine(self) -> bool:
        return self.hedgehog_role == "spine"

    @property
    def is_paired(self) -> bool:
        return self.mclag_pair or self.redundancy_type is not None


class Zone(Struct, frozen=True):
    """Some ports of a class of switches."""

    switch_class: Text
    zone_name: Text
    zone_type: Text
    port_spec: str | int
    breakout_option: str | None = None


class ServerClass(Struct, frozen=True):
    server_class_id: Text
    quantity: _Count


class Connection(Struct, frozen=True):
    """From ports of a NIC of each server of a class to switches of a class."""

    server_class: Text
    connection_id: Text
    nic: Text
    ports_per_connection: _Count
    target_zone: Text
    speed: Positive
    port_index: Whole = 0
    distribution: str | None = None
    rail: Whole | None = None
    port_type: str | None = None


class Breakout(Struct, frozen=True):
    """What becomes of a port of a switch."""

    breakout_id: Text
    logical_ports: _Count
    logical_speed: Positive
    id: str = ""


class _Known(Struct, frozen=True):
    breakout_options: tuple[Breakout, ...] = ()


class _Named(Struct, frozen=True):
    name: str = ""


class _Body(Struct, frozen=True):
    switch_classes: tuple[SwitchClass, ...]
    switch_port_zones: tuple[Zone, ...]
    server_classes: tuple[ServerClass, ...]
    server_connections: tuple[Connection, ...]
    plan: _Named = _Named()


class OcdaiPlan(Struct, frozen=True):
    """A plan whose references are resolved."""

    title: str
    switches: Mapping[str, SwitchClass]
    zones: Mapping[str, Zone]
    """by `switch class/name`, as connections name them"""
    servers: Mapping[str, int]
    """how many a class has"""
    connections: tuple[Connection, ...]
    breakouts: Mapping[str, Breakout]
    place: str
    """the file, for errors"""

    def error(self, cause: str) -> BadFileError:
        return BadFileError(f"{self.place}: {cause}")

    def fabric_of(self, connection: Connection) -> str:
        return self.switches[self.zones[connection.target_zone].switch_class].fabric_name

    def check(self) -> None:
        """Raises BadFileError for a name that the plan does not explain."""
        for each in self.connections:
            zone = self.zones.get(each.target_zone)
            if zone is None or zone.switch_class not in self.switches:
                raise self.error(f"connection {each.connection_id}: no zone {each.target_zone}")
            if each.server_class not in self.servers:
                raise self.error(f"connection {each.connection_id}: no class {each.server_class}")

    def breakout_of(self, zone: Zone) -> Breakout:
        """Of the ports of a zone. Raises BadFileError if the plan does not say it."""
        name = zone.breakout_option or ""
        found = self.breakouts.get(name)
        if found is None and (match := _BREAKOUT.fullmatch(name)):
            ports, speed = int(match[1]), int(match[2])
            if 1 <= ports <= _MAX_PORTS and speed >= 1:
                found = Breakout(name, ports, speed)
        if found is None:
            raise self.error(f"zone {zone.zone_name}: no breakout option {name!r}")
        return found

    def ports_of(self, zone: Zone) -> int:
        """How many ports a switch has in a zone, after breakout."""
        each = self.breakout_of(zone).logical_ports if zone.breakout_option else 1
        return each * len(set(_numbers(zone, self)))  # the ports of `1-32`, `1-63:2` or `1,3,5-8`

    def zones_of(self, switch_class: str, *types: str) -> list[Zone]:
        zones = self.zones.values()
        return [z for z in zones if z.switch_class == switch_class and z.zone_type in types]

    def leaves(self, leaf: SwitchClass) -> int:
        """How many leaves the servers' ports need."""
        if leaf.override_quantity is not None:
            return leaf.override_quantity
        wanted: dict[str, int] = {}
        for each in self.connections:
            ports = self.servers[each.server_class] * each.ports_per_connection
            wanted[each.target_zone] = wanted.get(each.target_zone, 0) + ports
        needed = (
            ceil(wanted.get(name, 0) / self.ports_of(zone))
            for name, zone in self.zones.items()
            if zone.switch_class == leaf.switch_class_id and name in wanted
        )
        least = max(needed, default=1)
        return least + least % 2 if leaf.is_paired else least

    def uplinks(self, leaf: SwitchClass) -> tuple[int, int]:
        """How many uplinks a leaf has, and their speed in Gbit/s."""
        zones = self.zones_of(leaf.switch_class_id, "uplink")
        speeds = {self.breakout_of(zone).logical_speed for zone in zones}
        if len(speeds) != 1:
            told = ", ".join(map(str, sorted(speeds))) or "no"
            raise self.error(f"{leaf.switch_class_id} has uplinks of {told} speeds, not of one")
        count = leaf.uplink_ports_per_switch or sum(map(self.ports_of, zones))
        return count, speeds.pop()

    def spines(self, spine: SwitchClass, leaves: int, uplinks: int) -> int:
        """How many spines the uplinks need."""
        if spine.override_quantity is not None:
            return spine.override_quantity
        ports = sum(map(self.ports_of, self.zones_of(spine.switch_class_id, "fabric")))
        if ports == 0:
            raise self.error(f"{spine.switch_class_id} has no zone of type fabric")
        return ceil(leaves * uplinks / ports)


def parse(values: Any, place: str) -> OcdaiPlan:
    """Reads a document; raises BadFileError."""
    try:
        head = take(values, dict[str, Any])
        is_v2 = head.get("apiVersion") == _V2
        body = take(head.get("spec", {}) if is_v2 else head, _Body)
        known = take(head.get("test_fixtures" if is_v2 else "reference_data") or {}, _Known)
    except ValueError as error:
        raise BadFileError(f"{place}: {error}") from None
    plan = OcdaiPlan(
        title=body.plan.name,
        switches={each.switch_class_id: each for each in body.switch_classes},
        zones={f"{each.switch_class}/{each.zone_name}": each for each in body.switch_port_zones},
        servers={each.server_class_id: each.quantity for each in body.server_classes},
        connections=body.server_connections,
        breakouts={each.id or each.breakout_id: each for each in known.breakout_options},
        place=place,
    )
    plan.check()
    return plan


def _numbers(zone: Zone, plan: OcdaiPlan) -> Iterable[int]:
    for part in str(zone.port_spec).split(","):
        match = _RANGE.fullmatch(part.strip())
        if match is None:
            raise plan.error(f"zone {zone.zone_name}: {part!r} is no range of ports such as 1-63:2")
        first, last, step = (int(each) if each else None for each in match.groups())
        last = first if last is None else last
        if first is None or last is None or not first <= last <= _MAX_PORTS or step == 0:
            raise plan.error(f"zone {zone.zone_name}: {part!r} is no range of ports such as 1-63:2")
        yield from range(first, last + 1, step or 1)


class OcdaiTopology(Struct, frozen=True):
    text: str
    """the topology file"""
    topology: Tiers
    notes: tuple[str, ...]
    """what became different, or was left out"""


class _ServerPort(Struct, frozen=True):
    """A port of a server in a plane."""

    nic: str
    port: int
    """of the NIC's ports in this plane, from 0"""
    server: int
    """of its class, from 1"""


class _PlaneDesign(Struct, frozen=True):
    fabric: str
    leaves: int
    spines: int
    host_gbps: int
    uplinks: int
    uplink_gbps: int
    leaf_of: dict[_ServerPort, int]
    """in the plan's order"""

    @property
    def numbers(self) -> tuple[int, ...]:
        """What all planes have to have in common."""
        return self.leaves, self.spines, self.host_gbps, self.uplinks * self.uplink_gbps


def topology_of(plan: OcdaiPlan, fabrics: Sequence[str] = ()) -> OcdaiTopology:
    """Converts a plan. `fabrics`: the planes; none: those with the most bandwidth. Raises
    BadFileError for what a topology file cannot express.
    """
    chosen = _choose(plan, fabrics)
    server_class = chosen[0].server_class
    names = list(fabrics) or list(dict.fromkeys(plan.fabric_of(each) for each in chosen))
    planes = [
        _plane(plan, fabric, [each for each in chosen if plan.fabric_of(each) == fabric])
        for fabric in names
    ]
    first = planes[0]
    for plane in planes[1:]:
        if plane.numbers != first.numbers:
            raise plan.error(
                f"{first.fabric} and {plane.fabric} differ in leaves, spines or speeds: "
                "mrc's planes are alike"
            )
        if plane.leaf_of != first.leaf_of:
            raise plan.error(
                f"{server_class} has other ports or leaves in {plane.fabric} than in {first.fabric}"
            )
    below = [
        [end for end, leaf in first.leaf_of.items() if leaf == t0] for t0 in range(first.leaves)
    ]
    notes = _notes(plan, chosen, planes)
    text = _file(plan, server_class, planes, below, notes)
    return OcdaiTopology(text, Tiers.read(Table(_values(planes, below), plan.place)), tuple(notes))


def _choose(plan: OcdaiPlan, fabrics: Sequence[str]) -> list[Connection]:
    """The connections of NICs of one class of servers that lead to the same zones."""
    known = dict.fromkeys(each.fabric_name for each in plan.switches.values())
    for name in fabrics:
        if name not in known:
            raise plan.error(f"no fabric {name!r}; the fabrics are {', '.join(known)}")
    by_nic: dict[tuple[str, str], list[Connection]] = {}
    for each in plan.connections:
        if each.port_type in (None, "data"):
            by_nic.setdefault((each.server_class, each.nic), []).append(each)
    alike: dict[tuple[str, frozenset[str]], list[Connection]] = {}
    for (server_class, _), found in by_nic.items():
        if not fabrics or {plan.fabric_of(each) for each in found} == set(fabrics):
            zones = frozenset(each.target_zone for each in found)
            alike.setdefault((server_class, zones), []).extend(found)
    if not alike:
        raise plan.error(f"no NIC is connected to {' and '.join(fabrics) or 'a fabric'}")

    def gbps(each: Connection) -> int:
        return plan.servers[each.server_class] * each.ports_per_connection * each.speed

    return max(alike.values(), key=lambda found: sum(map(gbps, found)))


def _plane(plan: OcdaiPlan, fabric: str, connections: Sequence[Connection]) -> _PlaneDesign:
    if len(zones := {each.target_zone for each in connections}) > 1:
        raise plan.error(f"a NIC has ports in {' and '.join(sorted(zones))}, in the same fabric")
    if len(speeds := {each.speed for each in connections}) > 1:
        raise plan.error(f"ports of several speeds in {fabric}: {sorted(speeds)} Gbit/s")
    zone = plan.zones[connections[0].target_zone]
    classes = [each for each in plan.switches.values() if each.fabric_name == fabric]
    leaves = [each for each in classes if not each.is_spine]
    spines = [each for each in classes if each.is_spine]
    leaf = plan.switches[zone.switch_class]
    if "mesh" in str(leaf.topology_mode) or plan.zones_of(leaf.switch_class_id, "mesh"):
        raise plan.error(f"{fabric} is a mesh of leaves: mrc's fabrics are leaves below spines")
    if len(leaves) > 1 or len(spines) > 1:
        raise plan.error(f"{fabric} has several classes of leaves or spines: mrc's have one each")
    count = plan.leaves(leaf)
    if not spines and count > 1:
        raise plan.error(f"{fabric} has {count} leaves and no spine")
    uplinks, speed = plan.uplinks(leaf) if spines else (0, 0)
    return _PlaneDesign(
        fabric=fabric,
        leaves=count,
        spines=plan.spines(spines[0], count, uplinks) if spines else 0,
        host_gbps=speeds.pop(),
        uplinks=uplinks,
        uplink_gbps=speed,
        leaf_of=_ends(plan, leaf, connections, count, plan.ports_of(zone)),
    )


def _ends(
    plan: OcdaiPlan, leaf: SwitchClass, connections: Sequence[Connection], leaves: int, room: int
) -> dict[_ServerPort, int]:
    """Every port, and its leaf. `room`: a leaf's ports."""
    rails = sorted({each.rail for each in connections if each.rail is not None})
    ports = sum(each.ports_per_connection for each in connections)

    def of_rail(rail: int, server: int, servers: int) -> int:
        """Several rails share a leaf, or several leaves a rail, each with some of the servers."""
        if leaves <= len(rails):
            return rail * leaves // len(rails)
        if leaves % len(rails):
            told = f"{leaves} leaves for {len(rails)} rails"
            raise plan.error(f"{leaf.switch_class_id}: {told} are no whole number each")
        return (server - 1) * (leaves // len(rails)) // servers * len(rails) + rail

    def leaf_of(each: Connection, port: int, server: int) -> int:
        if leaves == 1:
            return 0
        if each.distribution == "rail-optimized" and each.rail is not None:
            return of_rail(rails.index(each.rail), server, plan.servers[each.server_class])
        if each.distribution == "alternating" and leaves == 2:
            return port % 2
        if each.distribution in (None, "same-switch"):
            return (server - 1) // max(room // ports, 1)
        told = f"{each.distribution} over {leaves} leaves"
        raise plan.error(f"{each.connection_id}: {told} does not say which leaf has which port")

    found: dict[_ServerPort, int] = {}
    taken: Counter[str] = Counter()
    for each in connections:
        for port in range(taken[each.nic], taken[each.nic] + each.ports_per_connection):
            for server in range(1, plan.servers[each.server_class] + 1):
                found[_ServerPort(each.nic, port, server)] = leaf_of(each, port, server)
        taken[each.nic] += each.ports_per_connection
    for place, count in Counter(found.values()).items():
        if place >= leaves or count > room:
            raise plan.error(f"{leaf.switch_class_id}: {leaves} leaves have too few ports")
    return found


def _notes(
    plan: OcdaiPlan, chosen: Sequence[Connection], planes: Sequence[_PlaneDesign]
) -> list[str]:
    first, notes = planes[0], []
    if first.uplinks > first.spines > 0:
        each = f"{digits(first.uplinks / first.spines, 4)} links of {first.uplink_gbps} Gbit/s"
        notes.append(f"the {each} between a leaf and a spine are one link here")
    others = dict.fromkeys(
        f"{each.nic} of {each.server_class} ({plan.fabric_of(each)})"
        for each in plan.connections
        if each not in chosen
    )
    return notes + [f"left out: {each}" for each in others]


def _values(
    planes: Sequence[_PlaneDesign], below: Sequence[Sequence[_ServerPort]]
) -> dict[str, object]:
    """The table `[topology]`."""
    first, most = planes[0], max(map(len, below))
    rate = first.uplinks * first.uplink_gbps * _GBIT // max(first.spines, 1)
    absent = [
        f"link:h{t0 * most + n}.*" for t0, ends in enumerate(below) for n in range(len(ends), most)
    ]
    if not first.spines:
        absent += [f"t1:{plane + 1}.*" for plane in range(len(planes))]
    values: dict[str, object] = {
        "hosts": most * len(below),
        "planes": len(planes),
        "t0": len(below),
        "t1": max(first.spines, 1),
        "host_rate": f"{first.host_gbps}Gbit/s",
    }
    if first.spines:
        values["fabric_rate"] = f"{rate // _GBIT}Gbit/s" if rate % _GBIT == 0 else f"{rate}bit/s"
    return values | ({"absent": absent} if absent else {})


def _file(
    plan: OcdaiPlan,
    server_class: str,
    planes: Sequence[_PlaneDesign],
    below: Sequence[Sequence[_ServerPort]],
    notes: Sequence[str],
) -> str:
    most = max(map(len, below))
    says = [f"From {Path(plan.place).name}, a topology plan of OCDAI:"]
    says += [f"plane {n} is {plane.fabric}" for n, plane in enumerate(planes, 1)]
    for t0, ends in enumerate(below):
        says += _hosts(server_class, t0 * most, ends)
    comments = [f"# {' '.join(each.split())}" for each in (*says, *notes)]
    keys = [f"{key} = {json.dumps(value)}" for key, value in _values(planes, below).items()]
    title = f"title = {json.dumps(plan.title, ensure_ascii=False)}"
    return "\n".join([title, "", *comments, "", "[topology]", *keys, ""])


def _hosts(server_class: str, host: int, ends: Sequence[_ServerPort]) -> list[str]:
    """`h0 to h31: port 1 of be of compute 1 to 32`"""
    lines = []
    for (nic, port), group in groupby(ends, key=lambda end: (end.nic, end.port)):
        servers = [end.server for end in group]
        last = host + len(servers) - 1
        these = f"h{host} to h{last}" if last > host else f"h{host}"
        those = f"{servers[0]} to {servers[-1]}" if last > host else f"{servers[0]}"
        lines.append(f"{these}: port {port} of {nic} of {server_class} {those}")
        host = last + 1
    return lines


# ---- mrc testbed import --------------------------------------------------------------------------


DESCRIPTION = """\
Make a topology file from a topology plan of OCP's Open Cluster Designs, a
topology-map.yaml. Its fabrics with the most bandwidth become the planes, their
leaves T0s, their spines T1s, and each port of a NIC a host.
"""
OPTIONS = """
file FILE          topology-map.yaml
--output TOPOLOGY  write the topology file there [stdout]
--fabrics NAMES    the fabrics that are planes, separated by commas [those with most bandwidth]
"""
_MOST_BYTES = 1 << 20  # they take some five seconds
HINT = "reading YAML requires PyYAML: pip install 'mrc-transport[yaml]'"


class ImportedTopology(Result, frozen=True, kw_only=True):
    """`mrc testbed import`."""

    file: str
    """Path of the topology file that it wrote."""
    hosts: int
    """Those that exist."""
    planes: int
    """Number of planes."""
    t0: int
    """T0s per plane."""
    t1: int
    """T1s per plane."""
    notes: tuple[str, ...]
    """What became different, or was left out."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = DESCRIPTION
    add(parser, OPTIONS)


def run(args: argparse.Namespace) -> int:
    out = Output.of(args)
    if args.json and args.output is None:
        raise UsageError(args.prog, "--json requires --output")
    if find_spec("yaml") is None:
        raise UsageError(args.prog, HINT)
    fabrics = args.fabrics.split(",") if args.fabrics else []
    text = document.text_of(Path(args.file), args.file, _MOST_BYTES)
    found = topology_of(parse(document.parsed(text, args.file, _yaml, "YAML"), args.file), fabrics)
    if args.output is None:
        sys.stdout.write(found.text)
        return 0
    try:
        write_whole(Path(args.output), found.text.encode())
    except OSError as exc:
        raise ConfigError(f"{args.output}: {exc.strerror}") from exc
    shape = found.topology
    switches = f"{counted(shape.t0, 'T0')} and {counted(shape.t1, 'T1')}"
    hosts = counted(len(shape.host_numbers()), "host")
    counts = f"{hosts}, {counted(shape.planes, 'plane')} of {switches}"
    lines = [f"wrote {args.output}: {counts}", *found.notes]
    out.text("\n".join([*lines, f"show it with: mrc testbed plan {args.output}"]))
    out.result(
        ImportedTopology(
            file=args.output,
            hosts=len(shape.host_numbers()),
            planes=shape.planes,
            t0=shape.t0,
            t1=shape.t1,
            notes=found.notes,
        )
    )
    return 0


def _yaml(text: str) -> Any:
    """Raises ValueError with a short cause."""
    import yaml  # the optional extra

    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = "" if mark is None else f"line {mark.line + 1}: "
        raise ValueError(f"{where}{getattr(error, 'problem', None) or 'no text'}") from error


ACTIONS = {"import": Action(run, add_arguments, "nothing")}
