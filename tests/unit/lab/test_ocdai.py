# SPDX-License-Identifier: Apache-2.0
"""Topology plans of OCDAI: what they say and leave out."""

from __future__ import annotations

from typing import Any

import pytest
import topology_plans

from mrc.errors import BadFileError
from mrc.lab import ocdai


def changed(table: str, index: int, **values: Any) -> dict[str, Any]:
    document = topology_plans.plan()
    document[table][index] |= values
    return document


def test_leaves__as_many_as_the_servers_ports_need() -> None:
    """16 ports in each plane need 4 leaves with 4 ports; their 24 uplinks need 2 spines."""
    plan = ocdai.parse(topology_plans.plan(), "x.yaml")
    leaf, spine = plan.switches["leaf-a"], plan.switches["spine-a"]
    assert plan.title == "Small plan"
    assert (plan.leaves(leaf), plan.uplinks(leaf), plan.spines(spine, 4, 6)) == (4, (6, 800), 2)
    assert plan.leaves(plan.switches["front"]) == 1


@pytest.mark.parametrize(
    ("values", "leaves"),
    [
        ({"override_quantity": 7}, 7),
        ({"redundancy_type": "mclag", "redundancy_group": "x"}, 2),
        ({"mclag_pair": True}, 2),
        ({}, 1),
    ],
)
def test_leaves__of_the_class(values: dict[str, Any], leaves: int) -> None:
    plan = ocdai.parse(changed("switch_classes", 4, **values), "x.yaml")
    assert plan.leaves(plan.switches["front"]) == leaves


def test_uplinks__of_the_class() -> None:
    plan = ocdai.parse(changed("switch_classes", 0, uplink_ports_per_switch=5), "x.yaml")
    assert plan.uplinks(plan.switches["leaf-a"]) == (5, 800)


def test_parse__version_2() -> None:
    one = ocdai.parse(topology_plans.plan(), "x.yaml")
    other = ocdai.parse(topology_plans.version_2(topology_plans.plan()), "x.yaml")
    for plan in (one, other):
        assert plan.ports_of(plan.zones["leaf-a/server"]) == 4
        assert plan.uplinks(plan.switches["leaf-b"]) == (6, 800)


@pytest.mark.parametrize(
    ("ports", "count"), [("1-63:2", 32), ("26,28,30-33", 6), (7, 1), ("1-4,4-5", 5)]
)
def test_ports_of__ranges(ports: str | int, count: int) -> None:
    plan = ocdai.parse(changed("switch_port_zones", 6, port_spec=ports), "x.yaml")
    assert plan.ports_of(plan.zones["front/server"]) == count


@pytest.mark.parametrize(
    "ports", ["", "a", "1-", "1-9999", "1-8:0", "3-1-2", "5-1", "0-9999", "9" * 5000]
)
def test_ports_of__refuses(ports: str) -> None:
    plan = ocdai.parse(changed("switch_port_zones", 6, port_spec=ports), "x.yaml")
    with pytest.raises(BadFileError, match=r"^x.yaml: zone server: .* is no range of ports such"):
        plan.ports_of(plan.zones["front/server"])


@pytest.mark.parametrize(
    ("document", "complaint"),
    [
        (None, "x.yaml: must be a table, not nothing"),
        ({}, "x.yaml: switch_classes: is missing"),
        (
            changed("server_connections", 0, speed="fast"),
            "x.yaml: server_connections[0].speed: must be a whole number from 1 to",
        ),
        (changed("switch_classes", 0, fabric_name=""), "x.yaml: switch_classes[0].fabric_name: "),
    ],
)
def test_parse__wrong_documents_are_one_line(document: Any, complaint: str) -> None:
    with pytest.raises(BadFileError) as caught:
        ocdai.parse(document, "x.yaml")
    assert str(caught.value).startswith(complaint)


@pytest.mark.parametrize(
    ("document", "complaint"),
    [
        (changed("switch_port_zones", 0, breakout_option="odd"), "no breakout option 'odd'"),
        *(
            (changed("switch_port_zones", 0, breakout_option=name), "no breakout option ")
            for name in ("0x0g", "0x400g", "1x0g", "9999x1g", f"1x{'9' * 5000}g")
        ),
        (changed("switch_port_zones", 0, zone_type="peer"), "leaf-a has uplinks of no speeds"),
    ],
)
def test_uplinks__refuses(document: Any, complaint: str) -> None:
    plan = ocdai.parse(document, "x.yaml")
    with pytest.raises(BadFileError, match=complaint):
        plan.uplinks(plan.switches["leaf-a"])
