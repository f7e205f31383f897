# SPDX-License-Identifier: Apache-2.0
"""What remains of a fabric of 2 planes with 2 T1s, for 4 hosts below 2 T0s."""

from __future__ import annotations

import pytest

from mrc.fabric.targets import cut_off, parse_target, without
from mrc.fabric.topology import Topology

FABRIC = Topology(hosts=4, planes=2, t0=2, t1=2)


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
    left = without(FABRIC, [parse_target(name, FABRIC) for name in names])
    assert cut_off(FABRIC, left) == pair


def test_cut_off__only_of_hosts_that_had_a_path() -> None:
    two = without(FABRIC, [parse_target("link:h3.1", FABRIC), parse_target("link:h3.2", FABRIC)])
    assert cut_off(two, without(two, [parse_target("plane:1", two)])) is None
