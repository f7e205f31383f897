# SPDX-License-Identifier: Apache-2.0
"""Topology plans of OCDAI: what they say and leave out."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import topology_plans
import yaml
from printed import printed

from mrc.cli.main import main
from mrc.errors import BadFileError
from mrc.lab import ocdai
from mrc.lab.ocdai import OcdaiTopology, topology_of
from mrc.testbed.shape import Shape, parse_topology


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


# ---- Topologies ----------------------------------------------------------------------------------


def made(document: dict[str, Any], *fabrics: str) -> OcdaiTopology:
    return topology_of(ocdai.parse(document, "some/x.yaml"), fabrics)


def shape_of(found: OcdaiTopology) -> Shape:
    return parse_topology(tomllib.loads(found.text), "x", "x.toml").shape


def hosts_said(found: OcdaiTopology) -> list[str]:
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


# ---- mrc testbed import --------------------------------------------------------------------------


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    path = tmp_path / "topology-map.yaml"
    path.write_text(yaml.safe_dump(topology_plans.plan()))
    return path


def typed(*words: object) -> int:
    return main(["testbed", "import", *map(str, words)])


def test_import__what_plan_reads(plan: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wrote = plan.with_name("small.toml")
    assert typed(plan, "--output", wrote) == 0
    first, *_, last = capsys.readouterr().out.splitlines()
    assert first == f"wrote {wrote}: 16 hosts, 2 planes of 4 T0s and 2 T1s"
    assert last == f"show it with: mrc testbed plan {wrote}"
    assert main(["testbed", "plan", str(wrote)]) == 0
    assert "uplinks 2.4 Tbit/s" in capsys.readouterr().out
    assert typed(plan) == 0
    assert capsys.readouterr().out == wrote.read_text()


def test_import__json(plan: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wrote = plan.with_name("small.toml")
    assert typed(plan, "--output", wrote, "--fabrics", "back-b", "--json") == 2
    assert "no NIC is connected to back-b" in capsys.readouterr().out
    assert typed(plan, "--output", wrote, "--fabrics", "back-b,back-a", "--json") == 0
    told = printed("testbed import", capsys.readouterr().out)
    assert (told["hosts"], told["planes"], told["t0"], told["t1"]) == (16, 2, 4, 2)
    assert told["notes"][-1] == "left out: fe of compute (front)"


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("a: [1,", "not YAML: line 1: "),
        ("\0", "not YAML: "),
        ("a: " + "9" * 5000, "not YAML: a number has too many digits"),
        ("a: 9999-99-99", "not YAML: "),
        ("a: " + "[" * 3000 + "]" * 3000, "not YAML: is nested too deeply"),
        ("a: 1\n" * (1 << 18), "has more than 1 MiB"),
        ("", "must be a table, not nothing"),
        ("a: &a [*a]", "switch_classes: is missing"),
    ],
)
def test_import__a_wrong_file_is_one_line(
    text: str, complaint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "x.yaml"
    path.write_text(text)
    assert typed(path) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"mrc testbed import: {path}: ") and complaint in line


def test_import__wrong_use_is_one_line(
    plan: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert typed(plan, "--json") == 2
    assert typed("no/such") == 2
    assert typed(plan, "--output", "/proc/no/x") == 1
    monkeypatch.setattr(ocdai, "find_spec", lambda _: None)
    assert typed(plan) == 2
    told = capsys.readouterr()
    assert "--json requires --output" in told.out + told.err
    assert "no/such: No such file" in told.err and "/proc/no/x: " in told.err
    assert "pip install 'mrc-transport[yaml]'" in told.err
