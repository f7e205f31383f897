# SPDX-License-Identifier: Apache-2.0
"""Small topology plans in the form of OCDAI's `topology-map.yaml`, as its documents."""

from __future__ import annotations

from typing import Any


def plan(servers: int = 4, rails: int = 4, planes: tuple[str, ...] = ("a", "b")) -> dict[str, Any]:
    """A plan of version 1. A server has a NIC for each rail, with a port to each of the fabrics
    `back-a`, ..., and one NIC with a port to `front`, which has one switch.

    A leaf of `back-a` has 4 ports of 400 Gbit/s for servers and 6 uplinks of 800 Gbit/s, a spine 12
    ports.
    """
    classes, zones, connections = [], [], []
    for name in planes:
        for role, kind, ports in (("server-leaf", "leaf", "5-10"), ("spine", "spine", "1-12")):
            classes.append(
                {
                    "switch_class_id": f"{kind}-{name}",
                    "fabric_name": f"back-{name}",
                    "hedgehog_role": role,
                }
            )
            zone = "uplink" if kind == "leaf" else "fabric"
            zones.append(_zone(f"{kind}-{name}", zone, ports, "whole"))
        zones.append(_zone(f"leaf-{name}", "server", "1-3:2", "halves"))
        connections += [
            _connection(f"gpu{rail}", f"leaf-{name}/server", 400, index)
            | {"distribution": "rail-optimized", "rail": rail}
            for rail in range(rails)
            for index in [planes.index(name)]
        ]
    classes.append({"switch_class_id": "front", "fabric_name": "front"})
    zones.append(_zone("front", "server", "1-40", None))
    connections.append(_connection("fe", "front/server", 200, 0))
    breakouts = [
        {"id": "whole", "breakout_id": "1x800g", "logical_ports": 1, "logical_speed": 800},
        {"id": "halves", "breakout_id": "2x400g", "logical_ports": 2, "logical_speed": 400},
    ]
    return {
        "meta": {"case_id": "small", "version": 1},
        "reference_data": {"breakout_options": breakouts},
        "plan": {"name": "Small plan", "status": "draft"},
        "switch_classes": classes,
        "switch_port_zones": zones,
        "server_classes": [{"server_class_id": "compute", "quantity": servers, "category": "gpu"}],
        "server_nics": [],
        "server_connections": connections,
    }


def version_2(first: dict[str, Any]) -> dict[str, Any]:
    """The same plan in version 2, where the name of a breakout says what it is."""
    spec = {key: value for key, value in first.items() if key not in ("meta", "reference_data")}
    named = {
        each["id"]: each["breakout_id"] for each in first["reference_data"]["breakout_options"]
    }
    spec["switch_port_zones"] = [
        {**zone, "breakout_option": named.get(zone.get("breakout_option"))}
        for zone in spec["switch_port_zones"]
    ]
    return {"apiVersion": "diet/v2", "kind": "TopologyPlan", "metadata": {}, "spec": spec}


def _zone(switch_class: str, kind: str, ports: str, breakout: str | None) -> dict[str, Any]:
    return {
        "switch_class": switch_class,
        "zone_name": kind,
        "zone_type": kind,
        "port_spec": ports,
        "breakout_option": breakout,
    }


def _connection(nic: str, zone: str, speed: int, index: int) -> dict[str, Any]:
    return {
        "server_class": "compute",
        "connection_id": f"{nic}-{zone}",
        "nic": nic,
        "port_index": index,
        "ports_per_connection": 1,
        "target_zone": zone,
        "speed": speed,
        "port_type": "data",
    }
