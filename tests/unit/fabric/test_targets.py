# SPDX-License-Identifier: Apache-2.0
"""Names of the parts of a fabric."""

from __future__ import annotations

import pytest
from msgspec import structs

from mrc.fabric.targets import DOWN, UP, Target, absent_links, links_of, parse_target
from mrc.fabric.topology import Topology

FABRIC = Topology(hosts=2, planes=4, t1=3)

TARGETS = [
    ("plane:2", Target("plane", 2)),
    ("t1:3.1", Target("t1", 3, t1=1)),
    ("t0:4.1", Target("t0", 4, t0=1)),
    ("link:h1.2", Target("link", 2, host=1)),
    ("uplink:2.1.0", Target("uplink", 2, t0=1, t1=0)),
    ("h1>t0:2.1", Target("link", 2, host=1, t0=1, direction=UP)),
    ("t0:2.1>h1", Target("link", 2, host=1, t0=1, direction=DOWN)),
    ("t0:2.1>t1:2.0", Target("uplink", 2, t0=1, t1=0, direction=UP)),
    ("t1:2.0>t0:2.1", Target("uplink", 2, t0=1, t1=0, direction=DOWN)),
]


@pytest.mark.parametrize(("text", "target"), TARGETS)
def test_parse_target__every_form_and_back(text: str, target: Target) -> None:
    assert parse_target(text, FABRIC) == target
    assert str(target) == text


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "is not all, plane:P"),
        ("plane:x", "is not all, plane:P"),
        ("plane:1 ", "is not all, plane:P"),
        ("plane:01", "is not all, plane:P"),
        ("t1:1", "is not all, plane:P"),
        ("link:0.1", "is not all, plane:P"),
        ("plane:0", "no plane 0, use 1..4"),
        ("plane:5", "no plane 5"),
        ("t1:1.3", "no T1 3, use 0..2"),
        ("t0:1.2", "no T0 2, use 0..1"),
        ("link:h2.1", "no host h2"),
        ("uplink:1.0.3", "no T1 3"),
        ("h1>t0:1.0", "h1 is below another T0"),
        ("t0:1.0>t1:2.0", "is not all, plane:P"),
        ("h0>h1", "is not all, plane:P"),
    ],
)
def test_parse_target__refuses(text: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        parse_target(text, FABRIC)


def test_parse_target__all() -> None:
    everything = parse_target("all", FABRIC)
    assert str(everything) == "all"
    assert len(links_of(everything, FABRIC)) == 4 * (2 + 2 * 3)


@pytest.mark.parametrize(("text", "target"), TARGETS[5:])
def test_links_of__a_direction_is_its_link(text: str, target: Target) -> None:
    assert links_of(target, FABRIC) == [target.both]
    assert str(target.both) == ("link:h1.2" if "h1" in text else "uplink:2.1.0")


@pytest.mark.parametrize(
    ("names", "links"),
    [
        ([], ()),
        (["link:h1.2", "link:h1.2"], ("link:h1.2",)),
        (["link:h1.*"], ("link:h1.1", "link:h1.2", "link:h1.3", "link:h1.4")),
        (["t1:2.0"], ("uplink:2.0.0", "uplink:2.1.0")),
        (["t0:*.1", "uplink:1.*.0"], None),
    ],
)
def test_absent_links__of_targets(names: list[str], links: tuple[str, ...] | None) -> None:
    found = absent_links(names, FABRIC)
    assert links is None or found == links
    assert absent_links(found, FABRIC) == found
    fabric = structs.replace(FABRIC, absent=found)
    left = set(links_of(Target("all"), FABRIC)) - {parse_target(each, FABRIC) for each in found}
    assert set(links_of(Target("all"), fabric)) == left


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("plane:1", "only links and switches"),
        ("h0>t0:1.0", "only links and switches"),
        ("link:h2.1", "no host h2"),
        ("host:*", "does not name parts"),
    ],
)
def test_absent_links__refuses(name: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        absent_links([name], FABRIC)


def test_parse_target__refuses_what_is_absent() -> None:
    fabric = structs.replace(FABRIC, absent=absent_links(["link:h1.2", "t1:3.1"], FABRIC))
    for text in ("link:h1.2", "h1>t0:2.1", "t1:3.1", "uplink:3.0.1"):
        with pytest.raises(ValueError, match="is absent from this fabric"):
            parse_target(text, fabric)
    assert str(parse_target("t0:3.1", fabric)) == "t0:3.1"
