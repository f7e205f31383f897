# SPDX-License-Identifier: Apache-2.0
"""Topology plans of OCP's Open Cluster Designs (`topology-map.yaml`), versions 1 and 2. Pure.

A plan has classes of switches and servers, and the ports by which they are connected. It does not
say how many switches a class has: the ports that have to fit into it do.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from math import ceil
from typing import Annotated, Any

from msgspec import Meta, Struct

from mrc.errors import BadFileError
from mrc.typed import Positive, Text, Whole, take

_V2 = "diet/v2"
_MAX_PORTS = 4096
_BREAKOUT = re.compile(r"(\d{1,4})x(\d{1,9})g", re.IGNORECASE)
_RANGE = re.compile(r"(\d{1,9})(?:-(\d{1,9})(?::(\d{1,9}))?)?")
_Count = Annotated[int, Meta(ge=1, le=_MAX_PORTS)]


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
        return each * _count(zone, self)

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


def _count(zone: Zone, plan: OcdaiPlan) -> int:
    """The ports of `1-32`, `1-63:2` or `1,3,5-8`."""
    return len(set(_numbers(zone, plan)))


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
