# SPDX-License-Identifier: Apache-2.0
"""Names of parts of a fabric, such as the targets of faults. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from math import prod
from typing import overload

from msgspec import Struct
from msgspec.structs import replace

from mrc.fabric.topology import Topology

FORMS = (
    "all, plane:P, t0:P.N, t1:P.S, link:hH.P, uplink:P.N.S or one direction of a link, hH>t0:P.N"
)

ANY = "*"
"""Stands for every number in the name of a part."""

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


def parse_target(text: str, fabric: Topology) -> Target:
    """Parses a target. Raises ValueError if the fabric lacks the target."""
    target = _check(text, fabric)
    if not has_target(text, fabric):
        raise ValueError(f"target {text} is absent from this fabric")
    return target


def has_target(text: str, fabric: Topology) -> bool:
    """Whether a target of the fabric has links that are not absent."""
    if not fabric.absent:
        return True
    target = _check(text, fabric)
    return any(_exists(link, fabric) for link in _named_links(target, fabric))


def _check(text: str, fabric: Topology) -> Target:
    """As `parse_target`, as if no link were absent."""
    target = _target(text)
    if target is None:
        raise ValueError(f"target {text!r} is not {FORMS}")
    if target.kind == "all":
        return target
    if target.plane not in fabric.plane_numbers():
        raise ValueError(f"target {text}: no plane {target.plane}, use 1..{fabric.planes}")
    if target.host is not None and not target.host < fabric.hosts:
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
    return links_of(Target("all"), fabric)


def links_of(target: Target, fabric: Topology) -> list[Target]:
    """The links that belong to a target; of one direction, its link."""
    found = list(_named_links(target, fabric))
    return [link for link in found if _exists(link, fabric)] if fabric.absent else found


def _exists(link: Target, fabric: Topology) -> bool:
    if link.host is not None:
        return fabric.has_link(link.host, link.plane)
    assert link.t0 is not None and link.t1 is not None
    return fabric.has_uplink(link.plane, link.t0, link.t1)


def absent_links(names: Iterable[str], fabric: Topology) -> tuple[str, ...]:
    """The names of all links of these targets, which may have `*`, for `Topology.absent`.

    Raises ValueError.
    """
    found: set[str] = set()
    for name in names:
        for part in Parts(name, fabric) if ANY in name else [name]:
            target = _check(part, fabric)
            if target.kind in ("all", "plane") or target.direction:
                raise ValueError(f"target {name}: only links and switches can be absent")
            found |= set(map(str, _named_links(target, fabric)))
    return tuple(sorted(found))


class Parts(Sequence[str]):
    """The parts that a target with `*` names, whether they are absent or not."""

    def __init__(self, text: str, fabric: Topology) -> None:
        """Raises ValueError."""
        self._kind, _, rest = text.partition(":")
        planes, t0s, t1s = fabric.plane_numbers(), fabric.t0_numbers(), fabric.t1_numbers()
        every = {
            "plane": (planes,),
            "t0": (planes, t0s),
            "t1": (planes, t1s),
            "uplink": (planes, t0s, t1s),
            "link": (range(fabric.hosts), planes),
        }.get(self._kind, ())
        named = rest.removeprefix("h").split(".")
        if len(named) != len(every) or not all(name == ANY or name.isdecimal() for name in named):
            raise ValueError(f"target {text!r} does not name parts: use * in place of numbers")
        self._ranges = [
            numbers if name == ANY else range(int(name), int(name) + 1)
            for name, numbers in zip(named, every, strict=True)
        ]

    def __len__(self) -> int:
        return prod(map(len, self._ranges))

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [self[i] for i in range(len(self))[index]]
        left, numbers = range(len(self))[index], list[str]()
        for values in reversed(self._ranges):
            left, i = divmod(left, len(values))
            numbers.insert(0, str(values[i]))
        return f"{self._kind}:{'h' if self._kind == 'link' else ''}{'.'.join(numbers)}"


def _named_links(target: Target, fabric: Topology) -> Iterator[Target]:
    hosts: Iterable[int] = range(fabric.hosts)
    t0s: Iterable[int] = fabric.t0_numbers()
    t1s: Iterable[int] = fabric.t1_numbers()
    match target.kind:
        case "t0":
            assert target.t0 is not None
            hosts, t0s = fabric.hosts_below(target.t0), [target.t0]
        case "t1":
            assert target.t1 is not None
            hosts, t1s = [], [target.t1]
        case "link":
            assert target.host is not None
            hosts, t0s = [target.host], []
        case "uplink":
            assert target.t0 is not None and target.t1 is not None
            hosts, t0s, t1s = [], [target.t0], [target.t1]
    for plane in [target.plane] if target.plane else fabric.plane_numbers():
        yield from (Target("link", plane, host) for host in hosts)
        yield from (Target("uplink", plane, t0=t0, t1=t1) for t0 in t0s for t1 in t1s)


def t0_of(link: Target, fabric: Topology) -> int:
    """The T0 at one end of a link."""
    if link.t0 is not None:
        return link.t0
    assert link.host is not None
    return fabric.t0_of(link.host)
