# SPDX-License-Identifier: Apache-2.0
"""Which links may be at fault, from the links that failed and working paths share. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from msgspec import Struct

from mrc.fabric.topology import switch_of_usid


class PathCheck(Struct, frozen=True):
    """A path, and whether it works."""

    links: tuple[str, ...]
    works: bool


class Suspect(Struct, frozen=True):
    """Links of which one may be at fault: the paths do not tell them apart."""

    links: tuple[str, ...]
    failed: int
    """failed paths over them"""
    working: int
    """paths over them that work: 0, unless every link of some failed path carries such a path"""


def links_of(plane: int, path: str, usids: Sequence[str], peer: str) -> tuple[str, ...]:
    """The links of a path from this host to a peer, by names for people.

    `path`: `t1:P.S`, `t0:P.N` or `t2:P.M` of an SRv6 path; else `INTERFACE>ADDRESS#N`.
    """
    if not usids:
        interface, _, address = path.partition("#")[0].partition(">")
        return f"{interface} of this host", f"{address or peer} of {peer}"
    ends = f"this host's link of plane {plane}", f"{peer}'s link of plane {plane}"
    if len(usids) < 3:  # both hosts are below one T0
        return ends
    way = [switch_of_usid(plane, int(usid, 16)) for usid in usids[:-1]]
    way[0] = path if len(way) == 2 else way[0]
    between = [f"{one}>{other}" for one, other in pairwise(way)]
    return ends[0], f"uplink to {way[0]}", *between, ends[1]


def suspects(paths: Sequence[PathCheck]) -> list[Suspect]:
    """The fewest links that explain all failed paths, the likeliest first.

    A link over which a path works is a suspect only if nothing else explains a failed path: then
    the fault may hit only some packets.
    """
    through = {link: [i for i, path in enumerate(paths) if link in path.links]
               for path in paths for link in path.links}  # fmt: skip
    failed = {i for i, path in enumerate(paths) if not path.works}
    found: list[Suspect] = []
    left = set(failed)
    while left:
        groups: dict[tuple[int, int, tuple[int, ...]], list[str]] = {}
        for link, members in through.items():
            explained = tuple(i for i in members if i in left)
            working = sum(i not in failed for i in members)
            if explained:
                groups.setdefault((-working, len(explained), explained), []).append(link)
        dead = {key: links for key, links in groups.items() if key[0] == 0}
        working, _, explained = max(dead or groups, key=lambda key: (key[1] + key[0], key[1]))
        links = (dead or groups)[working, len(explained), explained]
        found.append(Suspect(tuple(links), len(explained), -working))
        left -= set(explained)
    return sorted(found, key=lambda each: (each.working, -each.failed))
