# SPDX-License-Identifier: Apache-2.0
"""Names of a fabric's parts, such as the targets of faults, and what remains without them. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import combinations
from math import prod
from typing import TypeVar, overload

from msgspec import Struct
from msgspec.structs import replace

from mrc.fabric.topology import Topology

FORMS = (
    "all, plane:P, t0:P.N, t1:P.S, t2:P.M, link:hH.P, uplink:P.N.S, core:P.S.M"
    " or one direction of a link, hH>t0:P.N"
)

ANY = "*"
"""Stands for every number in the name of a part."""

UP, DOWN = "up", "down"
"""The directions of a link: from its lower end to its upper end, and back."""

_PLANE, _HOST = r"(?P<plane>\d+)", r"h(?P<host>\d+)"
_T0, _T1 = rf"t0:{_PLANE}\.(?P<t0>\d+)", rf"t1:{_PLANE}\.(?P<t1>\d+)"
_T2 = rf"t2:{_PLANE}\.(?P<t2>\d+)"
_PATTERNS = (
    ("all", "", "all"),
    ("plane", "", f"plane:{_PLANE}"),
    ("t0", "", _T0),
    ("t1", "", _T1),
    ("t2", "", _T2),
    ("link", "", rf"link:{_HOST}\.{_PLANE}"),
    ("link", UP, f"{_HOST}>{_T0}"),
    ("link", DOWN, f"{_T0}>{_HOST}"),
    ("uplink", "", rf"uplink:{_PLANE}\.(?P<t0>\d+)\.(?P<t1>\d+)"),
    ("uplink", UP, rf"{_T0}>t1:(?P=plane)\.(?P<t1>\d+)"),
    ("uplink", DOWN, rf"{_T1}>t0:(?P=plane)\.(?P<t0>\d+)"),
    ("core", "", rf"core:{_PLANE}\.(?P<t1>\d+)\.(?P<t2>\d+)"),
    ("core", UP, rf"{_T1}>t2:(?P=plane)\.(?P<t2>\d+)"),
    ("core", DOWN, rf"{_T2}>t1:(?P=plane)\.(?P<t1>\d+)"),
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
    t2: int | None = None

    def __str__(self) -> str:
        if self.direction:
            t0, t1 = f"t0:{self.plane}.{self.t0}", f"t1:{self.plane}.{self.t1}"
            ends = {
                "link": (f"h{self.host}", t0),
                "uplink": (t0, t1),
                "core": (t1, f"t2:{self.plane}.{self.t2}"),
            }[self.kind]
            return ">".join(ends if self.direction == UP else reversed(ends))
        return {
            "all": "all",
            "plane": f"plane:{self.plane}",
            "t1": f"t1:{self.plane}.{self.t1}",
            "t0": f"t0:{self.plane}.{self.t0}",
            "t2": f"t2:{self.plane}.{self.t2}",
            "link": f"link:h{self.host}.{self.plane}",
            "uplink": f"uplink:{self.plane}.{self.t0}.{self.t1}",
            "core": f"core:{self.plane}.{self.t1}.{self.t2}",
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
    if target.t2 is not None and target.t2 not in fabric.t2_numbers():
        last = f"no T2 {target.t2}, use 0..{fabric.t2 - 1}" if fabric.t2 else "no T2s"
        raise ValueError(f"target {text}: {last}")
    if not _are_joined(target, fabric):
        raise ValueError(f"target {text}: no link joins these switches")
    if target.kind == "link" and target.direction and t0_of(target.both, fabric) != target.t0:
        raise ValueError(f"target {text}: h{target.host} is below another T0")
    return target


def _are_joined(target: Target, fabric: Topology) -> bool:
    """Whether the ends of a link between switches have a link; other targets: True."""
    if target.t1 is None:
        return True
    if target.t0 is not None:
        return target.t1 in fabric.t1s_above(target.t0)
    return target.t2 is None or target.t2 in fabric.t2s_above(target.t1)


def _target(text: str) -> Target | None:
    for kind, direction, form in _PATTERNS:
        if match := re.fullmatch(form, text):
            numbers = {key: int(number) for key, number in match.groupdict().items()}
            found = Target(kind, direction=direction, **numbers)
            return found if str(found) == text else None  # plane:01 would be a second name
    return None


def all_links(fabric: Topology) -> list[Target]:
    """Every link: in each plane first the host links, then those from T0s, then from T1s to T2s."""
    return links_of(Target("all"), fabric)


def links_of(target: Target, fabric: Topology) -> list[Target]:
    """The links that belong to a target; of one direction, its link."""
    found = list(_named_links(target, fabric))
    return [link for link in found if _exists(link, fabric)] if fabric.absent else found


def _exists(link: Target, fabric: Topology) -> bool:
    if link.host is not None:
        return fabric.has_link(link.host, link.plane)
    assert link.t1 is not None
    if link.t2 is not None:
        return fabric.has_core_link(link.plane, link.t1, link.t2)
    assert link.t0 is not None
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
        t2s, per_pod = fabric.t2_numbers(), fabric.t1s_per_pod
        every: tuple[Sequence[int], ...] = {
            "plane": (planes,),
            "t0": (planes, t0s),
            "t1": (planes, t1s),
            "t2": (planes, t2s),
            "uplink": (planes, t0s, range(per_pod)),  # the last one above each T0
            "core": (planes, t1s, range(fabric.t2 // per_pod)),  # above each T1
            "link": (range(fabric.hosts), planes),
        }.get(self._kind, ())
        named = rest.removeprefix("h").split(".")
        if len(named) != len(every) or not all(name == ANY or name.isdecimal() for name in named):
            raise ValueError(f"target {text!r} does not name parts: use * in place of numbers")
        self._ranges = [
            numbers if name == ANY else range(int(name), int(name) + 1)
            for name, numbers in zip(named, every, strict=True)
        ]
        self._above: Callable[[int], Sequence[int]] | None = None
        if self._kind in ("uplink", "core"):
            self._join(fabric, named[-1] == ANY, named[-2] == ANY)
        if not all(self._ranges):
            raise ValueError(f"target {text!r} names no part of this fabric")

    def _join(self, fabric: Topology, any_upper: bool, any_lower: bool) -> None:
        """Names only the switches above, or below, that a switch is joined with."""
        lowers, uppers = fabric.t0_numbers(), fabric.t1_numbers()
        above: Callable[[int], range] = fabric.t1s_above
        below: Callable[[int], range] = fabric.t0s_below
        if self._kind == "core":
            lowers, uppers = uppers, fabric.t2_numbers()
            above, below = fabric.t2s_above, fabric.t1s_below
        if any_upper:
            self._above = above
            self._ranges[-2] = [lower for lower in self._ranges[-2] if lower in lowers]
        elif any_lower:
            (upper,) = self._ranges[-1]
            self._ranges[-2] = below(upper) if upper in uppers else []

    def __len__(self) -> int:
        return prod(map(len, self._ranges))

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [self[i] for i in range(len(self))[index]]
        left, numbers = range(len(self))[index], list[int]()
        for values in reversed(self._ranges):
            left, i = divmod(left, len(values))
            numbers.insert(0, values[i])
        if self._above is not None:
            numbers[-1] = self._above(numbers[-2])[numbers[-1]]
        named = ".".join(map(str, numbers))
        return f"{self._kind}:{'h' if self._kind == 'link' else ''}{named}"


def _named_links(target: Target, fabric: Topology) -> Iterator[Target]:
    hosts, t0s, cores = _numbers(target, fabric)
    for plane in [target.plane] if target.plane else fabric.plane_numbers():
        yield from (Target("link", plane, host) for host in hosts)
        yield from (
            Target("uplink", plane, t0=t0, t1=t1)
            for t0 in t0s
            for t1 in ([target.t1] if target.t1 is not None else fabric.t1s_above(t0))
        )
        yield from (Target("core", plane, t1=t1, t2=t2) for t1, t2 in cores)


def _numbers(
    target: Target, fabric: Topology
) -> tuple[Iterable[int], Iterable[int], Sequence[tuple[int, int]]]:
    """The hosts of a target's links, the T0s of its uplinks, and T1 and T2 of its core links."""
    match target:
        case Target(kind="t0", t0=int(t0)):
            return fabric.hosts_below(t0), [t0], []
        case Target(kind="t1", t1=int(t1)):
            return [], fabric.t0s_below(t1), [(t1, t2) for t2 in fabric.t2s_above(t1)]
        case Target(kind="t2", t2=int(t2)):
            return [], [], [(t1, t2) for t1 in fabric.t1s_below(t2)]
        case Target(kind="link", host=int(host)):
            return [host], [], []
        case Target(kind="uplink", t0=int(t0)):
            return [], [t0], []
        case Target(kind="core", t1=int(t1), t2=int(t2)):
            return [], [], [(t1, t2)]
    cores = [(t1, t2) for t1 in fabric.t1_numbers() for t2 in fabric.t2s_above(t1)]
    return range(fabric.hosts), fabric.t0_numbers(), cores


def t0_of(link: Target, fabric: Topology) -> int:
    """The T0 at one end of a link."""
    if link.t0 is not None:
        return link.t0
    assert link.host is not None
    return fabric.t0_of(link.host)


# ---- What remains without some -------------------------------------------------------------------


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
