# SPDX-License-Identifier: Apache-2.0
"""Links at fault, from one host's paths to others over 2 planes with 2 T1s."""

from __future__ import annotations

import pytest

from mrc.cli.paths import PathCheck, Suspect, links_on, suspects
from mrc.fabric.srv6 import format_usid
from mrc.fabric.topology import Topology

FABRIC = Topology(hosts=4, planes=2, t0=2, t1=2)


def observed(*failed: str, peers: tuple[int, ...] = (2,)) -> list[PathCheck]:
    """The paths from h0 to peers. A failed path is named as `h2 t1:1.0`, or by a link of it."""
    found = []
    for peer in peers:
        for path in FABRIC.paths(0, peer):
            usids = [format_usid(usid) for usid in path.usids]
            links = links_on(path.plane, path.name, usids, f"h{peer}")
            works = not {f"h{peer} {path.name}", *links} & set(failed)
            found.append(PathCheck(links, works))
    return found


def test_links_of__a_path() -> None:
    assert observed()[1].links == (
        "this host's link of plane 1", "uplink to t1:1.1", "t1:1.1>t0:1.1", "h2's link of plane 1"
    )  # fmt: skip
    assert observed(peers=(1,))[0].links == (
        "this host's link of plane 1", "h1's link of plane 1"
    )  # fmt: skip
    near = links_on(1, "eth0>10.0.0.2#3", (), "peer")
    assert near == ("eth0 of this host", "10.0.0.2 of peer")


@pytest.mark.parametrize(
    ("failed", "peers", "expected"),
    [
        ((), (2,), []),
        (("h2 t1:1.0",), (2,), [Suspect(("uplink to t1:1.0", "t1:1.0>t0:1.1"), 1, 0)]),
        (
            ("this host's link of plane 2",), (2,),
            [Suspect(("this host's link of plane 2", "h2's link of plane 2"), 2, 0)],
        ),
        # Other peers tell the ends apart.
        (
            ("this host's link of plane 2",), (1, 2, 3),
            [Suspect(("this host's link of plane 2",), 5, 0)],
        ),
        (("h3's link of plane 1",), (1, 2, 3), [Suspect(("h3's link of plane 1",), 2, 0)]),
        (
            ("uplink to t1:1.1", "h3's link of plane 2"), (1, 2, 3),
            [
                Suspect(("uplink to t1:1.1", "t1:1.1>t0:1.1"), 2, 0),
                Suspect(("h3's link of plane 2",), 2, 0),
            ],
        ),
        # Every link of the failed path carries a path that works: only some packets are hit.
        (
            ("h2 t1:1.0",), (2, 3),
            [Suspect(("uplink to t1:1.0", "t1:1.0>t0:1.1", "h2's link of plane 1"), 1, 1)],
        ),
    ],
)  # fmt: skip
def test_suspects__explain_the_failed_paths(
    failed: tuple[str, ...], peers: tuple[int, ...], expected: list[Suspect]
) -> None:
    assert suspects(observed(*failed, peers=peers)) == expected
