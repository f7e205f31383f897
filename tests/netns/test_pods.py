# SPDX-License-Identifier: Apache-2.0
"""Test beds with three tiers, in both fabrics.

h0 -- t0:1.0 --+-- t1:1.0 -- t2:1.0, t2:1.2 -- t1:1.2 --+-- t0:1.2 -- h2
h1 -- t0:1.1 --+-- t1:1.1 -- t2:1.1, t2:1.3 -- t1:1.3 --+-- t0:1.3 -- h3
"""

from __future__ import annotations

import subprocess
from collections import Counter
from collections.abc import Iterator

import pytest

from mrc.errors import ArgumentError
from mrc.testbed import capture
from mrc.testbed.bed import Testbed
from mrc.testbed.faults import Mode
from mrc.testbed.shape import Fabric

from .conftest import arrivals, check_fault, fresh_name, probe, probing

pytestmark = pytest.mark.usefixtures("healed")

IN_POD = {"t1:1.0", "t1:1.1"}
BACK_IN_POD = {"t1:1.2", "t1:1.3"}
FAR = {f"t2:1.{m}" for m in range(4)}

# Paths that a fault disables: from h0 to h1, from h0 to h2, from h3 to h2.
FAULTS: dict[str, tuple[set[str], set[str], set[str]]] = {
    "t2:1.3": (set(), {"t2:1.3"}, set()),
    "core:1.1.3": (set(), {"t2:1.3"}, set()),
    "core:1.2.0": (set(), {"t2:1.0"}, set()),
    "t1:1.0": ({"t1:1.0"}, {"t2:1.0", "t2:1.2"}, set()),
    "t1:1.3": (set(), {"t2:1.1", "t2:1.3"}, {"t1:1.3"}),
    "uplink:1.2.3": (set(), {"t2:1.1", "t2:1.3"}, {"t1:1.3"}),
    "t0:1.0": (IN_POD, FAR, set()),
}


@pytest.fixture(scope="module", params=[*Fabric])
def bed(request: pytest.FixtureRequest) -> Iterator[Testbed]:
    shape = {"hosts": 4, "planes": 1, "t0": 4, "t1": 4, "pods": 2, "t2": 4}
    with Testbed(fresh_name(), rate="1gbit", fabric=request.param, **shape) as bed:
        yield bed


@pytest.mark.default
def test_paths__over_every_t1_of_the_pod_and_every_t2(bed: Testbed) -> None:
    cases = ((0, 1, IN_POD), (3, 2, BACK_IN_POD), (0, 3, FAR), (2, 1, FAR))
    for src, dst, expected in cases:
        assert probe(bed, src, dst) == Counter(expected)


@pytest.mark.parametrize("mode", [*Mode])
@pytest.mark.parametrize("target", FAULTS)
def test_fail__kills_its_paths_and_no_others(bed: Testbed, target: str, mode: Mode) -> None:
    near, far, back = FAULTS[target]
    cases = (0, 1, IN_POD, near), (0, 2, FAR, far), (3, 2, BACK_IN_POD, back)
    check_fault(bed, target, mode, *cases)


@pytest.mark.parametrize(
    ("target", "there", "back"),
    [
        ("t1:1.1>t2:1.3", FAR - {"t2:1.3"}, FAR),
        ("t2:1.3>t1:1.1", FAR, FAR - {"t2:1.3"}),
        ("t2:1.0>t1:1.2", FAR - {"t2:1.0"}, FAR),
    ],
)
def test_fail__one_direction(bed: Testbed, target: str, there: set[str], back: set[str]) -> None:
    bed.fail(target)
    with probing(bed, 0, 2) as up, probing(bed, 2, 0) as down:
        for pair, left in ((up, there), (down, back)):
            pair.send(left)
            pair.flush(left)
        bed.heal(target)
        for pair in (up, down):
            pair.send(FAR)
    assert (up.arrived[0], down.arrived[0]) == (Counter(there), Counter(back))


def test_fail__loses_a_share_once_at_a_t1(bed: Testbed) -> None:
    """As in test_shapes.py: a T1 loses a packet once, whether it goes on up or down."""
    bed.fail("t1:1.1", loss=0.5)
    assert 57 <= arrivals(bed, 200, {"t1:1.0"})["t1:1.1"] <= 143


def routes(bed: Testbed, host: int, peer: int) -> set[str]:
    """The paths over which a host has a route to a peer."""
    argv = ["ip", "-n", bed.plan.nodes[f"h{host}"].namespace, "-6", "route", "show"]
    shown = subprocess.run(argv, check=True, capture_output=True, text=True).stdout
    there = {line.split()[0] for line in shown.splitlines() if line.split()}
    return {path.name for path in bed.shape.paths(host, peer) if str(path.dst) in there}


def test_drain__withdraws_the_routes_over_it(bed: Testbed) -> None:
    for target, near, far in (
        ("t2:1.1", IN_POD, FAR - {"t2:1.1"}),
        ("core:1.3.3", IN_POD, FAR - {"t2:1.3"}),
        ("t1:1.0", {"t1:1.1"}, {"t2:1.1", "t2:1.3"}),
    ):
        bed.drain(target)
        assert (routes(bed, 0, 1), routes(bed, 0, 2), routes(bed, 3, 0)) == (near, far, far)
        bed.undrain(target)
    bed.drain("t1:1.0")
    with pytest.raises(ArgumentError, match=r"t1:1.3: h0 and h2 would lose their last path"):
        bed.drain("t1:1.3")
    bed.undrain("all")
    assert routes(bed, 0, 2) == FAR


def test_links__counts_each_direction(bed: Testbed) -> None:
    before = bed.links()
    assert len(before) == 2 * (4 + 8 + 8)
    with probing(bed, 0, 2) as pair:
        for _ in range(3):
            pair.send({"t2:1.3"})
    after = bed.links()
    for hop in ("h0>t0:1.0", "t0:1.0>t1:1.1", "t1:1.1>t2:1.3", "t2:1.3>t1:1.3", "t1:1.3>t0:1.2"):
        assert after[hop]["packets"] - before[hop]["packets"] >= 3


def test_heal__restores_a_link_to_a_t2_that_was_taken_down_by_hand(bed: Testbed) -> None:
    if bed.shape.fabric is Fabric.EMULATED:
        with pytest.raises(ArgumentError, match=r"t2:1\.3 is no namespace"):
            bed.host_command("t2:1.3", ["true"])
        return
    argv, env = bed.host_command("t2:1.3", ["ip", "link", "set", "t1-3", "down"])
    subprocess.run(argv, env=env, check=True)
    assert bed.lost() == {"t2:1.3:t1-3": "core:1.3.3"}
    assert bed.heal("all") == ["core:1.3.3"]
    assert probe(bed, 0, 2) == Counter(FAR)


def test_capture__at_the_links_of_a_t2(bed: Testbed) -> None:
    if bed.shape.fabric is Fabric.EMULATED:
        with pytest.raises(ValueError, match=r"t2:1\.3 has no interface"):
            capture.interfaces(bed.plan, "t2:1.3")
        return
    assert capture.interfaces(bed.plan, "t2:1.3") == [("t2-1-3", "t1-1"), ("t2-1-3", "t1-3")]
    assert capture.interfaces(bed.plan, "core:1.3.3") == [("t1-1-3", "t2-3")]
    assert ("t1-1-3", "t2-1") in capture.interfaces(bed.plan, "t1:1.3")
