# SPDX-License-Identifier: Apache-2.0
"""The names of a test bed's nodes and interfaces. Pure.

Plane P, T0 N, T1 S, T2 M, host H:

    mrc-NAME-hH         p1..pP, mgmt
    mrc-NAME-t0-P-N     hH down to each host below it, t1-S up to each T1
    mrc-NAME-t1-P-S     t0-N down to each T0, t2-M up to each T2
    mrc-NAME-t2-P-M     t1-S down to each T1
    mrc-NAME-mgmt       hH to each host

In an emulated fabric one namespace stands for all switches:

    mrc-NAME-fabric     hH-P to each host in each plane

A test bed that is joined to the world names the namespace from which it has interfaces:

    mrc-NAME-machine    mrc-NAME to `mgmt`
"""

from __future__ import annotations

import re

from mrc.fabric.targets import parse_target
from mrc.fabric.topology import Topology

DEFAULT_NAME = "lab"
FABRIC = "fabric"
MACHINE = "machine"
MANAGEMENT = "mgmt"

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,31}")


def check_name(name: str) -> None:
    """Raises ValueError for an invalid name of a test bed."""
    if not _NAME.fullmatch(name):
        raise ValueError(f"name {name!r} is not 1 to 32 letters, digits, '-' or '_'")


def namespace(name: str, node: str) -> str:
    return f"mrc-{name}-{node}"


def is_namespace_of(name: str, candidate: str) -> bool:
    """Whether a namespace belongs to the test bed of this name, and not to `NAME-more`."""
    node = r"(h\d+|t[012]-\d+-\d+|mgmt|fabric)"
    return re.fullmatch(re.escape(namespace(name, "")) + node, candidate) is not None


def host_name(host: int) -> str:
    return f"h{host}"


def t0_name(plane: int, number: int) -> str:
    return f"t0-{plane}-{number}"


def t1_name(plane: int, number: int) -> str:
    return f"t1-{plane}-{number}"


def t2_name(plane: int, number: int) -> str:
    return f"t2-{plane}-{number}"


def is_host(part: str) -> bool:
    """Whether it is the name of a host, of this test bed or another."""
    return re.fullmatch(r"h\d+", part) is not None


def part_name(node: str) -> str:
    """The name of a node on the command line. Faults use the same names: `t1-2-0` is `t1:2.0`."""
    return re.sub(r"^(t[012])-(\d+)-(\d+)$", r"\1:\2.\3", node)


def node_name(part: str) -> str:
    """The node of a switch, from its name on the command line."""
    return re.sub(r"[:.]", "-", part)


def node_of(part: str, fabric: Topology, *, has_switches: bool) -> str:
    """The node with this name on the command line. Raises ValueError, also for a switch that is no
    namespace.
    """
    hosts = [host_name(number) for number in fabric.host_numbers()]
    if part == MANAGEMENT or part in hosts:
        return part
    if part.partition(":")[0] not in ("t0", "t1", "t2"):
        used = f"{hosts[0]}..{hosts[-1]}, t0:P.N, t1:P.S, t2:P.M or mgmt"
        raise ValueError(f"{part} is no host or switch: use {used}")
    parse_target(part, fabric)
    if not has_switches:
        raise ValueError(
            f"{part} is no namespace: one process stands for all switches of an emulated "
            "fabric; a kernel fabric has switches to enter"
        )
    return re.sub("[:.]", "-", part)


def interface_name(host: int, plane: int) -> str:
    """The emulator's end of a host's link."""
    return f"h{host}-{plane}"
