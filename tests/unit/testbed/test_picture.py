# SPDX-License-Identifier: Apache-2.0
"""Test beds drawn as text."""

from __future__ import annotations

from mrc.testbed.picture import draw
from mrc.testbed.shape import Shape


def test_draw__crosses_out_what_fails() -> None:
    failing = {"plane:2", "t1:1.1", "link:h2.1", "t0:2.0"}
    assert draw(Shape(hosts=3, planes=2, t1=2), failing) == [
        "",
        "plane 1     h0 -- t0:1.0 --+-- t1:1.0",
        "            h1 -- t0:1.1 --+-- t1:1.1 x",
        "            h2 -x t0:1.2 --+",
        "",
        "plane 2 x   h0 -- t0:2.0 x --+-- t1:2.0",
        "            h1 -- t0:2.1   --+-- t1:2.1",
        "            h2 -- t0:2.2   --+",
    ]


def test_draw__more_t1s_than_hosts() -> None:
    assert draw(Shape(hosts=2, planes=1, t1=3), set())[1:] == [
        "plane 1     h0 -- t0:1.0 --+-- t1:1.0",
        "            h1 -- t0:1.1 --+-- t1:1.1",
        "                           +-- t1:1.2",
    ]


def test_draw__several_hosts_below_a_t0() -> None:
    assert draw(Shape(hosts=4, planes=1, t0=2, t1=1), {"link:h1.1"})[1:] == [
        "plane 1     h0 h1 x -- t0:1.0 --+-- t1:1.0",
        "            h2 h3 -- t0:1.1   --+",
    ]
    assert draw(Shape(hosts=16, planes=1, t0=2, t1=1), set())[1:] == [
        "plane 1     h0..h7 -- t0:1.0  --+-- t1:1.0",
        "            h8..h15 -- t0:1.1 --+",
    ]


def test_draw__pods_and_then_the_t2s_that_join_them() -> None:
    pods = Shape(hosts=4, planes=1, t0=4, t1=2, pods=2, t2=2)
    assert draw(pods, {"t2:1.1", "t1:1.0"}) == [
        "",
        "plane 1     h0 -- t0:1.0 --+-- t1:1.0 x",
        "            h1 -- t0:1.1 --+",
        "",
        "            h2 -- t0:1.2 --+-- t1:1.1",
        "            h3 -- t0:1.3 --+",
        "",
        "            T2s: t2:1.0, t2:1.1 x",
    ]
