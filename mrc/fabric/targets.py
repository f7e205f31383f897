# SPDX-License-Identifier: Apache-2.0
"""Names of parts of a fabric, such as the targets of faults. Pure."""

from __future__ import annotations

import re

from msgspec import Struct

from mrc.fabric.topology import Topology

FORMS = "plane:P, t0:P.N, t1:P.S, link:hH.P or uplink:P.N.S"

_TARGET = re.compile(
    r"(?P<all>all)"
    r"|plane:(?P<plane>\d+)"
    r"|t1:(?P<t1>\d+\.\d+)"
    r"|t0:(?P<t0>\d+\.\d+)"
    r"|link:h(?P<link>\d+\.\d+)"
    r"|uplink:(?P<uplink>\d+\.\d+\.\d+)"
)


class Target(Struct, frozen=True):
    """A plane, switch or link of a fabric by its numbers, or the whole fabric.

    None and plane 0: does not apply.
    """

    kind: str
    plane: int = 0
    host: int | None = None
    t0: int | None = None
    t1: int | None = None

    def __str__(self) -> str:
        return {
            "all": "all",
            "plane": f"plane:{self.plane}",
            "t1": f"t1:{self.plane}.{self.t1}",
            "t0": f"t0:{self.plane}.{self.t0}",
            "link": f"link:h{self.host}.{self.plane}",
            "uplink": f"uplink:{self.plane}.{self.t0}.{self.t1}",
        }[self.kind]


def parse_target(text: str, fabric: Topology, *, whole: bool = False) -> Target:
    """Parses a target. `whole` allows "all". Raises ValueError if the fabric lacks the target."""
    match = _TARGET.fullmatch(text)
    if match is None or (match["all"] and not whole):
        raise ValueError(f"target {text!r} is not {'all, ' if whole else ''}{FORMS}")
    if match["all"]:
        return Target("all")
    kind = str(match.lastgroup)
    target = _target(kind, [int(number) for number in match[kind].split(".")])
    if target.plane not in fabric.plane_numbers():
        raise ValueError(f"target {text}: no plane {target.plane}, use 1..{fabric.planes}")
    if target.host is not None and target.host not in fabric.host_numbers():
        raise ValueError(f"target {text}: no host h{target.host}, use 0..{fabric.hosts - 1}")
    if target.t0 is not None and target.t0 not in fabric.t0_numbers():
        raise ValueError(f"target {text}: no T0 {target.t0}, use 0..{fabric.t0 - 1}")
    if target.t1 is not None and target.t1 not in fabric.t1_numbers():
        raise ValueError(f"target {text}: no T1 {target.t1}, use 0..{fabric.t1 - 1}")
    return target


def _target(kind: str, numbers: list[int]) -> Target:
    match kind, numbers:
        case "t1", [plane, t1]:
            return Target(kind, plane, t1=t1)
        case "t0", [plane, t0]:
            return Target(kind, plane, t0=t0)
        case "link", [host, plane]:
            return Target(kind, plane, host)
        case "uplink", [plane, t0, t1]:
            return Target(kind, plane, t0=t0, t1=t1)
    return Target(kind, numbers[0])


def all_links(fabric: Topology) -> list[Target]:
    """Every link: in each plane first the host links, then the uplinks."""
    found = []
    for plane in fabric.plane_numbers():
        found += [Target("link", plane, host) for host in fabric.host_numbers()]
        for t0 in fabric.t0_numbers():
            found += [Target("uplink", plane, t0=t0, t1=t1) for t1 in fabric.t1_numbers()]
    return found


def links_of(target: Target, fabric: Topology) -> list[Target]:
    """The links that belong to a target."""
    found = [link for link in all_links(fabric) if target.plane in (0, link.plane)]
    match target.kind:
        case "all" | "plane":
            return found
        case "t0":
            return [link for link in found if t0_of(link, fabric) == target.t0]
        case "t1":
            return [link for link in found if link.t1 == target.t1]
    return [target]


def t0_of(link: Target, fabric: Topology) -> int:
    """The T0 at one end of a link."""
    if link.t0 is not None:
        return link.t0
    assert link.host is not None
    return fabric.t0_of(link.host)
