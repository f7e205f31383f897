# SPDX-License-Identifier: Apache-2.0
"""A test bed as lines of text. Pure."""

from __future__ import annotations

from collections.abc import Collection

from mrc.testbed.plan import Shape


def draw(shape: Shape, failing: Collection[str]) -> list[str]:
    """Plane by plane; what fails is crossed out. Every T0 has an uplink to every T1 of its plane.

    plane 1    h0 -- t0:1.0 --+-- t1:1.0
               h1 -x t0:1.1 --+-- t1:1.1 x
    """
    lines = []
    for plane in shape.topology.plane_numbers():
        lines.append("")
        dead = f"plane:{plane}" in failing
        rows = max(shape.hosts, shape.t1)
        left = [_left(plane, host, failing) for host in range(shape.hosts)]
        width = max(len(each) for each in left)
        for row in range(rows):
            label = f"plane {plane}{' x' if dead else ''}" if row == 0 else ""
            below = left[row].ljust(width) + " --" if row < shape.hosts else " " * (width + 3)
            above = f"-- {_crossed(f't1:{plane}.{row}', failing)}" if row < shape.t1 else ""
            lines.append(f"{label:12}{below}+{above}")
    return lines


def _left(plane: int, host: int, failing: Collection[str]) -> str:
    link = "-x" if f"link:h{host}.{plane}" in failing else "--"
    return f"h{host} {link} {_crossed(f't0:{plane}.{host}', failing)}"


def _crossed(name: str, failing: Collection[str]) -> str:
    return f"{name} x" if name in failing else name
