# SPDX-License-Identifier: Apache-2.0
"""Which paths remain when parts of a fabric are drained. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import combinations
from typing import TypeVar

from msgspec.structs import replace

from mrc.fabric.targets import Target, links_of
from mrc.fabric.topology import Topology

T = TypeVar("T", bound=Topology)


def without(fabric: T, targets: Iterable[Target]) -> T:
    """The fabric as if no link of these targets existed. A direction counts as its link."""
    links = {str(link) for target in targets for link in links_of(target, fabric)}
    return replace(fabric, absent=tuple(sorted({*fabric.absent, *links})))


def cut_off(fabric: Topology, left: Topology) -> tuple[int, int] | None:
    """Two hosts that have a path in a fabric, but none in what is left of it."""
    for pair in combinations(fabric.host_numbers(), 2):
        if fabric.planes_between(*pair) and not left.planes_between(*pair):
            return pair
    return None
