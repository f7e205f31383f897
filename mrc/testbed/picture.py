# SPDX-License-Identifier: Apache-2.0
"""A test bed as lines of text. Pure."""

from __future__ import annotations

from collections.abc import Collection

from mrc.testbed.shape import Shape

_ALL_NAMED = 4  # hosts below a T0; of more the first and the last


def draw(shape: Shape, failing: Collection[str]) -> list[str]:
    """Plane by plane; what fails is crossed out. Every T0 has an uplink to every T1 of its plane.

    plane 1    h0 -- t0:1.0 --+-- t1:1.0
               h1 -x t0:1.1 --+-- t1:1.1 x
    """
    lines = []
    for plane in shape.topology.plane_numbers():
        lines.append("")
        dead = f"plane:{plane}" in failing
        rows = max(shape.t0, shape.t1)
        left = [_left(shape, plane, t0, failing) for t0 in range(shape.t0)]
        width = max(len(each) for each in left)
        for row in range(rows):
            label = f"plane {plane}{' x' if dead else ''}" if row == 0 else ""
            below = left[row].ljust(width) + " --" if row < shape.t0 else " " * (width + 3)
            above = f"-- {_crossed(f't1:{plane}.{row}', failing)}" if row < shape.t1 else ""
            lines.append(f"{label:12}{below}+{above}")
    return lines


def _left(shape: Shape, plane: int, t0: int, failing: Collection[str]) -> str:
    hosts = shape.topology.hosts_below(t0)
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
