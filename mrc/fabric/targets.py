# SPDX-License-Identifier: Apache-2.0
"""Names of parts of a fabric, such as the targets of faults. Pure."""

from __future__ import annotations

import re

from msgspec import Struct
from msgspec.structs import replace

from mrc.fabric.topology import Topology

FORMS = "plane:P, t0:P.N, t1:P.S, link:hH.P, uplink:P.N.S or one direction of a link, hH>t0:P.N"

UP, DOWN = "up", "down"
"""The directions of a link: from its lower end to its upper end, and back."""

_PLANE, _HOST = r"(?P<plane>\d+)", r"h(?P<host>\d+)"
_T0, _T1 = rf"t0:{_PLANE}\.(?P<t0>\d+)", rf"t1:{_PLANE}\.(?P<t1>\d+)"
_PATTERNS = (
    ("all", "", "all"),
    ("plane", "", f"plane:{_PLANE}"),
    ("t0", "", _T0),
    ("t1", "", _T1),
    ("link", "", rf"link:{_HOST}\.{_PLANE}"),
    ("link", UP, f"{_HOST}>{_T0}"),
    ("link", DOWN, f"{_T0}>{_HOST}"),
    ("uplink", "", rf"uplink:{_PLANE}\.(?P<t0>\d+)\.(?P<t1>\d+)"),
    ("uplink", UP, rf"{_T0}>t1:(?P=plane)\.(?P<t1>\d+)"),
    ("uplink", DOWN, rf"{_T1}>t0:(?P=plane)\.(?P<t0>\d+)"),
)
"""Kind, direction and form of each target."""


class Target(Struct, frozen=True):
    """A plane, switch or link of a fabric by its numbers, one direction of a link, or the whole
    fabric.

    None and plane 0: does not apply.
    """

    kind: str
    plane: int = 0
    host: int | None = None
    t0: int | None = None
    t1: int | None = None
    direction: str = ""
    """UP or DOWN; empty: both"""

    def __str__(self) -> str:
        if self.direction:
            ends = [f"t0:{self.plane}.{self.t0}", f"t1:{self.plane}.{self.t1}"]
            ends = [f"h{self.host}", ends[0]] if self.kind == "link" else ends
            return ">".join(ends if self.direction == UP else reversed(ends))
        return {
            "all": "all",
            "plane": f"plane:{self.plane}",
            "t1": f"t1:{self.plane}.{self.t1}",
            "t0": f"t0:{self.plane}.{self.t0}",
            "link": f"link:h{self.host}.{self.plane}",
            "uplink": f"uplink:{self.plane}.{self.t0}.{self.t1}",
        }[self.kind]

    @property
    def both(self) -> Target:
        """The link that this is a direction of; other targets as they are."""
        if not self.direction:
            return self
        return replace(self, t0=None if self.kind == "link" else self.t0, direction="")


def parse_target(text: str, fabric: Topology, *, whole: bool = False) -> Target:
    """Parses a target. `whole` allows "all". Raises ValueError if the fabric lacks the target."""
    target = _target(text)
    if target is None or (target.kind == "all" and not whole):
        raise ValueError(f"target {text!r} is not {'all, ' if whole else ''}{FORMS}")
    if target.kind == "all":
        return target
    if target.plane not in fabric.plane_numbers():
        raise ValueError(f"target {text}: no plane {target.plane}, use 1..{fabric.planes}")
    if target.host is not None and target.host not in fabric.host_numbers():
        raise ValueError(f"target {text}: no host h{target.host}, use 0..{fabric.hosts - 1}")
    if target.t0 is not None and target.t0 not in fabric.t0_numbers():
        raise ValueError(f"target {text}: no T0 {target.t0}, use 0..{fabric.t0 - 1}")
    if target.t1 is not None and target.t1 not in fabric.t1_numbers():
        raise ValueError(f"target {text}: no T1 {target.t1}, use 0..{fabric.t1 - 1}")
    if target.kind == "link" and target.direction and t0_of(target.both, fabric) != target.t0:
        raise ValueError(f"target {text}: h{target.host} is below another T0")
    return target


def _target(text: str) -> Target | None:
    for kind, direction, form in _PATTERNS:
        if match := re.fullmatch(form, text):
            numbers = {key: int(number) for key, number in match.groupdict().items()}
            return Target(kind, direction=direction, **numbers)
    return None


def all_links(fabric: Topology) -> list[Target]:
    """Every link: in each plane first the host links, then the uplinks."""
    found = []
    for plane in fabric.plane_numbers():
        found += [Target("link", plane, host) for host in fabric.host_numbers()]
        for t0 in fabric.t0_numbers():
            found += [Target("uplink", plane, t0=t0, t1=t1) for t1 in fabric.t1_numbers()]
    return found


def links_of(target: Target, fabric: Topology) -> list[Target]:
    """The links that belong to a target; of one direction, its link."""
    found = [link for link in all_links(fabric) if target.plane in (0, link.plane)]
    match target.kind:
        case "all" | "plane":
            return found
        case "t0":
            return [link for link in found if t0_of(link, fabric) == target.t0]
        case "t1":
            return [link for link in found if link.t1 == target.t1]
    return [target.both]


def t0_of(link: Target, fabric: Topology) -> int:
    """The T0 at one end of a link."""
    if link.t0 is not None:
        return link.t0
    assert link.host is not None
    return fabric.t0_of(link.host)
