# SPDX-License-Identifier: Apache-2.0
"""A fabric of three tiers: 3 pods of 2 T0s and 2 T1s, 4 T2s, 2 hosts below each T0, 2 planes."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import pytest
from msgspec import structs

from mrc.cli.paths import PathCheck, links_on, suspects
from mrc.fabric import srv6
from mrc.fabric.srv6 import format_usid
from mrc.fabric.targets import DOWN, UP, Parts, Target, all_links, cut_off, parse_target, without
from mrc.fabric.targets import links_of as links_of_target
from mrc.fabric.topology import Path, Topology, switch_of_usid

FABRIC = Topology(hosts=12, planes=2, t0=6, t1=6, pods=3, t2=4)

TARGETS = [
    ("t2:2.3", Target("t2", 2, t2=3)),
    ("core:1.3.1", Target("core", 1, t1=3, t2=1)),
    ("t1:1.3>t2:1.1", Target("core", 1, t1=3, t2=1, direction=UP)),
    ("t2:1.1>t1:1.3", Target("core", 1, t1=3, t2=1, direction=DOWN)),
]


def test_paths__one_of_each_kind() -> None:
    far = FABRIC.paths(0, 7)[7]
    assert far == Path(
        plane=2,
        name="t2:2.3",
        dst=FABRIC.addresses.on_path(7, 2, 3),
        segments=(srv6.pack(FABRIC.addresses.locator_block(2), far.usids),),
        usids=(0x3001, 0x2003, 0x3003, 0x0203, 0xE001),
    )
    in_pod = FABRIC.paths(5, 7)[1]
    assert (in_pod.name, in_pod.usids) == ("t1:1.3", (0x3003, 0x0203, 0xE001))
    assert [path.usids for path in FABRIC.paths(6, 7)] == [(0xE001,)] * 2


def walk(src: int, path: Path) -> list[str]:
    """The links that a packet takes: each switch goes by the next uSID."""
    at, links = FABRIC.t0_of(src), [f"link:h{src}.{path.plane}"]
    name = f"t0:{path.plane}.{at}"
    for usid in path.usids[:-1]:
        there = switch_of_usid(path.plane, usid)
        target = parse_target(f"{name}>{there}", FABRIC)  # raises if there is no such link
        links.append(str(target.both))
        name = there
    host = FABRIC.hosts_below(int(name.split(".")[1]))[path.usids[-1] - 0xE000]
    return [*links, f"link:h{host}.{path.plane}"]


def test_paths__lead_over_links_that_exist_to_their_host() -> None:
    every = {str(link) for link in all_links(FABRIC)}
    for src, dst in permutations(range(12), 2):
        paths = FABRIC.paths(src, dst)
        near, pod = FABRIC.are_near(src, dst), FABRIC.pod_of(src) == FABRIC.pod_of(dst)
        assert len(paths) == 2 * (1 if near else 2 if pod else 4)
        assert len({path.usids for path in paths if path.plane == 1}) == len(paths) // 2
        assert len({path.dst for path in paths}) == len(paths)
        for path in paths:
            links = walk(src, path)
            assert every.issuperset(links) and links[-1] == f"link:h{dst}.{path.plane}"
            assert len(path.segments) == 1  # one carrier


def test_has_path__is_what_the_links_say() -> None:
    """Any absent link removes the paths that cross it, and no others."""
    for name in ("link:h7.1", "uplink:1.3.3", "core:1.3.1", "core:1.1.3", "core:2.4.2"):
        left = structs.replace(FABRIC, absent=(name,))
        for src, dst in permutations((0, 5, 7, 9), 2):
            gone = {path.usids for path in FABRIC.paths(src, dst) if name in walk(src, path)}
            kept = [path for path in FABRIC.paths(src, dst) if name not in walk(src, path)]
            assert list(left.paths(src, dst)) == kept, (name, src, dst, gone)
            assert set(left.planes_between(src, dst)) == {path.plane for path in kept}


@pytest.mark.parametrize(
    ("key", "value", "complaint"),
    [
        ("pods", 1, "t2 is 4 with one pod"),
        ("pods", 4, r"t0 is 6, not a multiple of pods \(4\)"),
        ("t1", 7, r"t1 is 7, not a multiple of pods \(3\)"),
        ("t2", 3, r"t2 is 3, not a multiple of the T1s of a pod \(2\)"),
        ("t2", 0, "pods is 3 without t2"),
        ("t2", 5000, r"t2 is 5000, not in 0\.\.4096"),
        ("t1", 900, "t1 is 900, more than 256 in each of 3 pods"),
    ],
)
def test_topology__refuses(key: str, value: int, complaint: str) -> None:
    numbers: dict[str, Any] = {"hosts": 12, "planes": 2, "t0": 6, "t1": 6, "pods": 3, "t2": 4}
    with pytest.raises(ValueError, match=complaint):
        Topology(**numbers | {key: value})


@pytest.mark.parametrize(("text", "target"), TARGETS)
def test_parse_target__every_form_and_back(text: str, target: Target) -> None:
    assert parse_target(text, FABRIC) == target
    assert str(target) == text


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
def test_parse_target__refuses(text: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        parse_target(text, FABRIC)
    with pytest.raises(ValueError, match="no T2s"):
        parse_target("t2:1.0", Topology(hosts=2, planes=1, t1=2))


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
    found = links_of_target(parse_target(text, FABRIC), FABRIC)
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
    assert list(Parts(text, FABRIC)) == parts


def test_parts__all_links() -> None:
    for text in ("uplink:*.*.*", "core:*.*.*"):
        found = list(Parts(text, FABRIC))
        assert len(set(found)) == len(found) == 24
        assert {str(parse_target(part, FABRIC)) for part in found} == set(found)
    with pytest.raises(ValueError, match="names no part"):
        Parts("core:1.*.9", FABRIC)


def test_without__a_t2_leaves_the_others() -> None:
    left = without(FABRIC, [parse_target("t2:1.1", FABRIC)])
    assert [path.name for path in left.paths(0, 7) if path.plane == 1] == [
        "t2:1.0", "t2:1.2", "t2:1.3",
    ]  # fmt: skip
    assert cut_off(FABRIC, left) is None
    gone = [parse_target(f"t2:{plane}.{m}", FABRIC) for plane in (1, 2) for m in range(4)]
    assert cut_off(FABRIC, without(FABRIC, gone)) == (0, 4)  # the first two of different pods


def test_locate__names_the_link_of_three_tiers() -> None:
    def observed(dead: str) -> list[PathCheck]:
        found = []
        for peer in (3, 7, 9):
            for path in FABRIC.paths(0, peer):
                usids = [format_usid(usid) for usid in path.usids]
                links = links_on(path.plane, path.name, usids, f"h{peer}")
                found.append(PathCheck(links, dead not in links))
        return found

    assert links_on(1, "t2:1.3", ["3001", "2003", "3003", "0203", "e001"], "h7") == (
        "this host's link of plane 1", "uplink to t1:1.1", "t1:1.1>t2:1.3", "t2:1.3>t1:1.3",
        "t1:1.3>t0:1.3", "h7's link of plane 1",
    )  # fmt: skip
    for dead in ("t2:1.3>t1:1.3", "t1:1.1>t2:1.3", "uplink to t1:2.0"):
        (suspect, *others) = suspects(observed(dead))
        assert dead in suspect.links and not others
