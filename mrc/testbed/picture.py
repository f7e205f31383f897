# SPDX-License-Identifier: Apache-2.0
"""A test bed as lines of text. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import zip_longest
from textwrap import wrap

from msgspec.structs import replace

from mrc.fabric.targets import Target, links_of, t0_of
from mrc.testbed.shape import BothWays, Shape

_ALL_NAMED = 4  # up to 4 hosts below a T0 are all named; of more, the first and the last


def draw(shape: Shape, failing: Collection[str]) -> list[str]:
    """Draws plane by plane, with an x at failing parts. Every T0 has an uplink to every T1, except
    for absent links, which are not drawn.

    plane 1    h0 -- t0:1.0 --+-- t1:1.0
               h1 -x t0:1.1 --+-- t1:1.1 x

    With T2s, pod by pod; then the T2s, each with a link to one T1 of each pod.
    """
    lines = []
    for plane in shape.plane_numbers():
        label = f"plane {plane}{' x' if f'plane:{plane}' in failing else ''}"
        lines += ["", *_draw_plane(shape, plane, str(plane), label, failing)]
    return lines


def draw_plan(shape: Shape) -> list[str]:
    """As `draw`, but once for all equal planes, and without faults."""
    lines = []
    for planes in alike(shape):
        name = plane_name(planes)
        label = f"plane {name}" if len(planes) == 1 else f"planes {listed(planes)}"
        lines += ["", *_draw_plane(shape, planes[0], name, label, ())]
    return lines


def alike(shape: Shape) -> list[list[int]]:
    """Groups the planes by the properties of their links."""
    links: dict[int, list[tuple[Target, BothWays]]] = {}
    for link, properties in shape.link_properties().items():
        links.setdefault(link.plane, []).append((replace(link, plane=0), properties))
    groups: dict[tuple[tuple[Target, BothWays], ...], list[int]] = {}
    for plane, found in links.items():
        groups.setdefault(tuple(found), []).append(plane)
    return list(groups.values())


def plane_name(planes: Sequence[int]) -> str:
    """The plane's part of its switches' names: a number, or P for several planes."""
    return str(planes[0]) if len(planes) == 1 else "P"


def listed(planes: Sequence[int]) -> str:
    """`1..4` or `1, 3, 4`."""
    if len(planes) > 2 and planes[-1] - planes[0] == len(planes) - 1:
        return f"{planes[0]}..{planes[-1]}"
    return ", ".join(map(str, planes))


def _draw_plane(
    shape: Shape, number: int, plane: str, label: str, failing: Collection[str]
) -> list[str]:
    """`number` of a plane; `plane` names it, or all that are equal to it."""
    lines: list[str] = []
    _, t0s, t1s, t2s = nodes(shape, number)
    left = {t0: _left(shape, number, plane, t0, failing) for t0 in t0s}
    width = max(map(len, left.values()), default=0)
    for pod in range(shape.pods):
        below = [left[t0].ljust(width) + " --" for t0 in t0s if shape.pod_of_t0(t0) == pod]
        above = [
            f"-- {_crossed(f't1:{plane}.{t1}', failing)}"
            for t1 in t1s
            if shape.pod_of_t1(t1) == pod
        ]
        for lower, upper in zip_longest(below, above, fillvalue=None):
            row = f"{lower or ' ' * (width + 3)}+{upper or ''}"
            lines.append(f"{'' if lines else label:12}{row}")
        lines += [""] if t2s else []
    names = [_crossed(f"t2:{plane}.{t2}", failing) for t2 in t2s]
    return lines + [f"{'':12}{line}" for line in wrap(f"T2s: {', '.join(names)}", 80) if names]


def nodes(shape: Shape, plane: int) -> tuple[list[int], list[int], list[int], list[int]]:
    """The hosts, T0s, T1s and T2s that have links in a plane."""
    links = links_of(Target("plane", plane), shape)
    hosts = [link.host for link in links if link.host is not None]
    t0s = {t0_of(link, shape) for link in links if link.kind != "core"}
    t1s = {link.t1 for link in links if link.t1 is not None}
    t2s = {link.t2 for link in links if link.t2 is not None}
    return hosts, sorted(t0s), sorted(t1s), sorted(t2s)


def _left(shape: Shape, number: int, plane: str, t0: int, failing: Collection[str]) -> str:
    hosts = [host for host in shape.hosts_below(t0) if shape.has_link(host, number)]
    dead = [host for host in hosts if f"link:h{host}.{plane}" in failing]
    if len(hosts) == 1:
        link = "-x" if dead else "--"
        return f"h{hosts[0]} {link} {_crossed(f't0:{plane}.{t0}', failing)}"
    in_row = hosts and len(hosts) == hosts[-1] - hosts[0] + 1
    if len(hosts) > _ALL_NAMED and in_row and not dead:
        names = f"h{hosts[0]}..h{hosts[-1]}"
    else:
        names = " ".join(f"h{host} x" if host in dead else f"h{host}" for host in hosts)
    return f"{names} -- {_crossed(f't0:{plane}.{t0}', failing)}"


def _crossed(name: str, failing: Collection[str]) -> str:
    return f"{name} x" if name in failing else name
