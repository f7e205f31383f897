# SPDX-License-Identifier: Apache-2.0
"""From a topology plan of OCDAI to a topology file."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from typing import Any

import pytest
import topology_plans

from mrc.errors import BadFileError
from mrc.lab import ocdai
from mrc.lab.ocdai import Imported, topology_of
from mrc.testbed import shape as shapes
from mrc.testbed.shape import Shape


def made(document: dict[str, Any], *fabrics: str) -> Imported:
    return topology_of(ocdai.parse(document, "some/x.yaml"), fabrics)


def shape_of(found: Imported) -> Shape:
    return shapes.parse_topology(tomllib.loads(found.text), "x", "x.toml").shape


def hosts_said(found: Imported) -> list[str]:
    return [line[2:] for line in found.text.splitlines() if line.startswith("# h")]


def test_topology_of__two_planes() -> None:
    """4 servers with 4 NICs of two ports: 4 leaves and 2 spines in each plane. A rail is below one
    leaf.
    """
    found = made(topology_plans.plan())
    shape = shape_of(found)
    assert (shape.hosts, shape.planes, shape.t0, shape.t1) == (16, 2, 4, 2)
    assert (shape.host_rate_bps, shape.fabric_rate_bps) == (400 * 10**9, 3 * 800 * 10**9)
    assert hosts_said(found) == [
        f"h{4 * rail} to h{4 * rail + 3}: port 0 of gpu{rail} of compute 1 to 4"
        for rail in range(4)
    ]
    assert "# plane 2 is back-b\n" in found.text
    assert found.notes == (
        "the 3 links of 800 Gbit/s between a leaf and a spine are one link here",
        "left out: fe of compute (front)",
    )
    assert found.text.startswith('title = "Small plan"\n\n# From x.yaml, a topology plan of OCDAI:')


def test_topology_of__version_2_is_the_same() -> None:
    document = topology_plans.plan()
    assert made(topology_plans.version_2(document)).text == made(document).text


def test_topology_of__several_rails_below_a_leaf() -> None:
    found = made(topology_plans.plan(servers=2))
    assert shape_of(found).t0 == 2
    assert hosts_said(found)[:2] == [
        "h0 to h1: port 0 of gpu0 of compute 1 to 2",
        "h2 to h3: port 0 of gpu1 of compute 1 to 2",
    ]


def test_topology_of__several_leaves_of_a_rail() -> None:
    found = made(topology_plans.plan(servers=8))
    assert shape_of(found).t0 == 8
    assert hosts_said(found)[4] == "h16 to h19: port 0 of gpu0 of compute 5 to 8"


def test_topology_of__leaves_with_fewer_hosts() -> None:
    """3 rails over 2 leaves of 4 ports: the second leaf has one rail."""
    shape = shape_of(made(topology_plans.plan(servers=2, rails=3)))
    assert (shape.hosts, shape.t0, len(shape.host_numbers())) == (8, 2, 6)
    assert shape.planes_of(6) == []


def test_topology_of__a_fabric_by_name_of_one_switch() -> None:
    found = made(topology_plans.plan(), "front")
    shape = shape_of(found)
    assert (len(shape.host_numbers()), shape.planes, shape.t0) == (4, 1, 1)
    assert len(shape.paths(0, 3)) == 1
    assert "t1:1.*" in found.text


def with_distribution(name: str | None, ports: int) -> dict[str, Any]:
    """8 servers with one NIC each and some ports in one plane, without rails."""
    document = topology_plans.plan(servers=8 // ports, rails=1, planes=("a",))
    document["server_connections"][0] |= {
        "ports_per_connection": ports, "distribution": name, "rail": None,
    }  # fmt: skip
    return document


def test_topology_of__alternating() -> None:
    assert hosts_said(made(with_distribution("alternating", 2))) == [
        "h0 to h3: port 0 of gpu0 of compute 1 to 4",
        "h4 to h7: port 1 of gpu0 of compute 1 to 4",
    ]


@pytest.mark.parametrize("name", ["same-switch", None])
def test_topology_of__same_switch(name: str | None) -> None:
    assert hosts_said(made(with_distribution(name, 2))) == [
        "h0 to h1: port 0 of gpu0 of compute 1 to 2",
        "h2 to h3: port 1 of gpu0 of compute 1 to 2",
        "h4 to h5: port 0 of gpu0 of compute 3 to 4",
        "h6 to h7: port 1 of gpu0 of compute 3 to 4",
    ]


def edited(edit: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
    document = topology_plans.plan()
    edit(document)
    return document


CLASSES, ZONES, CONNECTIONS = "switch_classes", "switch_port_zones", "server_connections"


@pytest.mark.parametrize(
    ("edit", "complaint"),
    [
        (lambda d: d[CLASSES][0].update(topology_mode="prefer-mesh"), "back-a is a mesh of leaves"),
        (lambda d: d[ZONES][0].update(zone_type="mesh"), "back-a is a mesh of leaves"),
        (lambda d: d[CLASSES].pop(1), "back-a has 4 leaves and no spine"),
        (lambda d: d[CLASSES][4].update(fabric_name="back-a"), "back-a has several classes"),
        (lambda d: d[CLASSES][1].update(override_quantity=3), "back-a and back-b differ in leaves"),
        (lambda d: d[CLASSES][0].update(override_quantity=3), "leaf-a: 3 leaves have too few"),
        (lambda d: d[CLASSES][0].update(override_quantity=5), "leaf-a: 5 leaves for 4 rails"),
        (lambda d: d[CONNECTIONS][0].update(speed=200), "ports of several speeds in back-a: "),
        (lambda d: d[CONNECTIONS][0].update(distribution="alternating"), "over 4 leaves does not"),
        (lambda d: d[CONNECTIONS][0].update(server_class="none"), "leaf-a/server: no class none"),
        (lambda d: d[CONNECTIONS][0].update(target_zone="x/y"), "leaf-a/server: no zone x/y"),
        (
            lambda d: d[CONNECTIONS][0].update(rail=1) or d[CONNECTIONS][1].update(rail=0),
            "other ports or leaves in back-b than in back-a",
        ),
    ],
)
def test_topology_of__refuses(edit: Callable[[dict[str, Any]], object], complaint: str) -> None:
    with pytest.raises(BadFileError) as caught:
        made(edited(edit))
    assert complaint in str(caught.value) and str(caught.value).startswith("some/x.yaml: ")


def test_topology_of__no_such_fabric() -> None:
    with pytest.raises(BadFileError, match="no fabric 'c'; the fabrics are back-a, back-b, front"):
        made(topology_plans.plan(), "c")
    with pytest.raises(BadFileError, match="no NIC is connected to back-a and front"):
        made(topology_plans.plan(), "back-a", "front")


def test_topology_of__text_of_a_plan_stays_in_its_comment() -> None:
    document = edited(lambda d: d[CONNECTIONS][-1].update(nic="fe\n[links]\n"))
    assert "left out: fe [links] of compute" in made(document).text
