# SPDX-License-Identifier: Apache-2.0
"""Names of the parts of fabrics, of two tiers and of three, and what remains without some."""

from __future__ import annotations

import pytest
from msgspec import structs

from mrc.testbed.topology import Target, Topology

FABRIC = Topology(hosts=2, planes=4, t1=3)
PAIRS = Topology(hosts=4, planes=2, t0=2, t1=2)
PODS = Topology(hosts=12, planes=2, t0=6, t1=6, pods=3, t2=4)

TARGETS = [
    ("plane:2", Target("plane", 2)),
    ("t1:3.1", Target("t1", 3, t1=1)),
    ("t0:4.1", Target("t0", 4, t0=1)),
    ("link:h1.2", Target("link", 2, host=1)),
    ("uplink:2.1.0", Target("uplink", 2, t0=1, t1=0)),
    ("h1>t0:2.1", Target("link", 2, host=1, t0=1, direction=Target.UP)),
    ("t0:2.1>h1", Target("link", 2, host=1, t0=1, direction=Target.DOWN)),
    ("t0:2.1>t1:2.0", Target("uplink", 2, t0=1, t1=0, direction=Target.UP)),
    ("t1:2.0>t0:2.1", Target("uplink", 2, t0=1, t1=0, direction=Target.DOWN)),
]
TARGETS_OF_PODS = [
    ("t2:2.3", Target("t2", 2, t2=3)),
    ("core:1.3.1", Target("core", 1, t1=3, t2=1)),
    ("t1:1.3>t2:1.1", Target("core", 1, t1=3, t2=1, direction=Target.UP)),
    ("t2:1.1>t1:1.3", Target("core", 1, t1=3, t2=1, direction=Target.DOWN)),
]


@pytest.mark.parametrize(
    ("fabric", "text", "target"),
    [(FABRIC, *each) for each in TARGETS] + [(PODS, *each) for each in TARGETS_OF_PODS],
)
def test_parse_target__every_form_and_back(fabric: Topology, text: str, target: Target) -> None:
    assert fabric.target(text) == target
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
        ("t2:1.0", "no T2s"),
    ],
)
def test_parse_target__refuses(text: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        FABRIC.target(text)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("t2:1.4", "no T2 4, use 0..3"),
        ("core:1.3.2", "no link joins these switches"),
        ("t1:1.0>t2:1.1", "no link joins these switches"),
        ("uplink:1.0.2", "no link joins these switches"),
        ("t0:1.0>t2:1.0", "is not all, plane:P"),
    ],
)
def test_parse_target__refuses_in_pods(text: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        PODS.target(text)


def test_parse_target__all() -> None:
    everything = FABRIC.target("all")
    assert str(everything) == "all"
    assert len(FABRIC.links_of(everything)) == 4 * (2 + 2 * 3)


@pytest.mark.parametrize(("text", "target"), TARGETS[5:])
def test_links_of__a_direction_is_its_link(text: str, target: Target) -> None:
    assert FABRIC.links_of(target) == [target.both]
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
    found = FABRIC.absent_links(names)
    assert links is None or found == links
    assert FABRIC.absent_links(found) == found
    fabric = structs.replace(FABRIC, absent=found)
    left = set(FABRIC.links_of(Target("all"))) - {FABRIC.target(each) for each in found}
    assert set(fabric.links_of(Target("all"))) == left


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
        FABRIC.absent_links([name])


def test_parse_target__refuses_what_is_absent() -> None:
    fabric = structs.replace(FABRIC, absent=FABRIC.absent_links(["link:h1.2", "t1:3.1"]))
    for text in ("link:h1.2", "h1>t0:2.1", "t1:3.1", "uplink:3.0.1"):
        with pytest.raises(ValueError, match="is absent from this fabric"):
            fabric.target(text)
    assert str(fabric.target("t0:3.1")) == "t0:3.1"


@pytest.mark.parametrize(
    ("text", "links"),
    [
        ("all", 2 * (12 + 12 + 12)),
        ("plane:1", 12 + 12 + 12),
        ("t0:1.2", 2 + 2),
        ("t1:1.3", 2 + 2),
        ("t2:1.1", 3),
        ("core:1.3.1", 1),
    ],
)
def test_links_of__a_target(text: str, links: int) -> None:
    found = PODS.links_of(PODS.target(text))
    assert len(set(found)) == len(found) == links


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("t2:1.*", [f"t2:1.{m}" for m in range(4)]),
        ("core:1.3.*", ["core:1.3.1", "core:1.3.3"]),
        ("core:2.*.1", ["core:2.1.1", "core:2.3.1", "core:2.5.1"]),
        ("uplink:1.2.*", ["uplink:1.2.2", "uplink:1.2.3"]),
        ("uplink:1.*.3", ["uplink:1.2.3", "uplink:1.3.3"]),
        ("core:*.0.0", ["core:1.0.0", "core:2.0.0"]),
    ],
)
def test_parts__are_those_with_links(text: str, parts: list[str]) -> None:
    assert list(PODS.parts(text)) == parts


def test_parts__all_links() -> None:
    for text in ("uplink:*.*.*", "core:*.*.*"):
        found = list(PODS.parts(text))
        assert len(set(found)) == len(found) == 24
        assert {str(PODS.target(part)) for part in found} == set(found)
    with pytest.raises(ValueError, match="names no part"):
        PODS.parts("core:1.*.9")


# ---- What remains without some -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("names", "pair"),
    [
        ((), None),
        (("plane:1",), None),
        (("plane:1", "t1:2.0"), None),
        (("plane:1", "t1:2.0", "t1:2.1"), (0, 2)),  # hosts below one T0 need no T1
        (("plane:1", "link:h3.2"), (0, 3)),
        (("t0:1.0", "t0:2.0"), (0, 1)),
        (("plane:1", "uplink:2.1.0", "uplink:2.0.1"), (0, 2)),
        (("h1>t0:1.0", "link:h1.2"), (0, 1)),
        (("all",), (0, 1)),
    ],
)
def test_cut_off__names_a_pair_without_a_path(
    names: tuple[str, ...], pair: tuple[int, int] | None
) -> None:
    left = PAIRS.without([PAIRS.target(name) for name in names])
    assert PAIRS.cut_off(left) == pair


def test_cut_off__only_of_hosts_that_had_a_path() -> None:
    two = PAIRS.without([PAIRS.target("link:h3.1"), PAIRS.target("link:h3.2")])
    assert two.cut_off(two.without([two.target("plane:1")])) is None


def test_without__a_t2_leaves_the_others() -> None:
    left = PODS.without([PODS.target("t2:1.1")])
    assert [path.name for path in left.paths(0, 7) if path.plane == 1] == [
        "t2:1.0", "t2:1.2", "t2:1.3",
    ]  # fmt: skip
    assert PODS.cut_off(left) is None
    gone = [PODS.target(f"t2:{plane}.{m}") for plane in (1, 2) for m in range(4)]
    assert PODS.cut_off(PODS.without(gone)) == (0, 4)  # the first two of different pods
