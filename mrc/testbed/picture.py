# SPDX-License-Identifier: Apache-2.0
"""A test bed as lines of text. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from mrc.testbed.shape import BothWays, Shape

_ALL_NAMED = 4  # up to 4 hosts below a T0 are all named; of more, the first and the last


def draw(shape: Shape, failing: Collection[str]) -> list[str]:
    """Draws plane by plane, with an x at failing parts. Every T0 has an uplink to every T1.

    plane 1    h0 -- t0:1.0 --+-- t1:1.0
               h1 -x t0:1.1 --+-- t1:1.1 x
    """
    lines = []
    for plane in shape.plane_numbers():
        label = f"plane {plane}{' x' if f'plane:{plane}' in failing else ''}"
        lines += ["", *_draw_plane(shape, str(plane), label, failing)]
    return lines


def draw_plan(shape: Shape) -> list[str]:
    """As `draw`, but once for all equal planes, and without faults."""
    lines = []
    for planes in alike(shape):
        name = plane_name(planes)
        label = f"plane {name}" if len(planes) == 1 else f"planes {listed(planes)}"
        lines += ["", *_draw_plane(shape, name, label, ())]
    return lines


def alike(shape: Shape) -> list[list[int]]:
    """Groups the planes by the properties of their links."""
    links: dict[int, list[BothWays]] = {}
    for link, properties in shape.link_properties().items():
        links.setdefault(link.plane, []).append(properties)
    groups: dict[tuple[BothWays, ...], list[int]] = {}
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


def _draw_plane(shape: Shape, plane: str, label: str, failing: Collection[str]) -> list[str]:
    lines = []
    left = [_left(shape, plane, t0, failing) for t0 in range(shape.t0)]
    width = max(len(each) for each in left)
    for row in range(max(shape.t0, shape.t1)):
        below = left[row].ljust(width) + " --" if row < shape.t0 else " " * (width + 3)
        above = f"-- {_crossed(f't1:{plane}.{row}', failing)}" if row < shape.t1 else ""
        lines.append(f"{'' if row else label:12}{below}+{above}")
    return lines


def _left(shape: Shape, plane: str, t0: int, failing: Collection[str]) -> str:
    hosts = shape.hosts_below(t0)
    dead = [host for host in hosts if f"link:h{host}.{plane}" in failing]
    if len(hosts) == 1:
        link = "-x" if dead else "--"
        return f"h{hosts[0]} {link} {_crossed(f't0:{plane}.{t0}', failing)}"
    if len(hosts) > _ALL_NAMED and not dead:
        names = f"h{hosts[0]}..h{hosts[-1]}"
    else:
        names = " ".join(f"h{host} x" if host in dead else f"h{host}" for host in hosts)
    return f"{names} -- {_crossed(f't0:{plane}.{t0}', failing)}"


def _crossed(name: str, failing: Collection[str]) -> str:
    return f"{name} x" if name in failing else name
