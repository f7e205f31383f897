# SPDX-License-Identifier: Apache-2.0
"""Test beds drawn as text and as SVG."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from mrc.testbed.cli.plan import draw, draw_svg
from mrc.testbed.shape import Shape
from mrc.testbed.tiers import LinkChange


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


# ---- SVG -----------------------------------------------------------------------------------------


SVG = "{http://www.w3.org/2000/svg}"
LETTER = 6.7  # pixels of a letter of 12 px in DejaVu Sans, which is wide; 7.5 of a bold one
LONG = "A Title with Words that Go On and On, as long as nobody stops to breathe, & < > "


def root_of(shape: Shape, title: str = "a bed", notes: tuple[str, ...] = ()) -> ElementTree.Element:
    return ElementTree.fromstring(draw_svg(shape, title, notes))


def labels(root: ElementTree.Element) -> list[str | None]:
    return [text.text for text in root.iter(f"{SVG}text") if text.get("class") == "unlike"]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ([("link:h0.1", 20, None)], ["20 Mbit/s"]),
        ([("uplink:1.0.1", None, 2)], ["2000 us"]),
        ([("uplink:1.1.1", 20, 2), ("link:h3.1", 20, None)], ["20 Mbit/s", "20 Mbit/s, 2000 us"]),
        ([("plane:1", 20, None)], ["each 20 Mbit/s", "each 20 Mbit/s"]),
        ([("plane:1", 20, None), ("link:h0.1", 30, None)],
         ["30 Mbit/s", *3 * ["20 Mbit/s"], "each 20 Mbit/s"]),
        ([("plane:1", 100, None)], []),
    ],
)  # fmt: skip
def test_draw__links_that_differ_are_labelled(
    changes: list[tuple[str, int | None, int | None]], said: list[str]
) -> None:
    links = tuple(
        LinkChange(target, mbps and mbps * 10**6, ms and ms * 10**6) for target, mbps, ms in changes
    )
    shape = Shape(
        hosts=4, planes=1, t0=2, t1=2, host_rate_bps=10**8, fabric_rate_bps=10**8, links=links
    )
    assert labels(root_of(shape)) == said


def test_draw__no_text_is_cut() -> None:
    links = tuple(LinkChange(f"link:h{i}.1", 10**7 + i, 10**6 + i) for i in range(2))
    root = root_of(Shape(hosts=2, planes=1, t1=2, links=links), 3 * LONG, (3 * LONG, LONG))
    width, height = float(root.attrib["width"]), float(root.attrib["height"])
    for text in root.iter(f"{SVG}text"):
        assert text.text is not None
        letter = 7.5 if text.get("class") == "title" else LETTER
        half = letter * len(text.text) / 2
        x, y = float(text.attrib["x"]), float(text.attrib["y"])
        left = x if text.get("class") in ("title", "note") else x - half
        assert left >= 0 and left + 2 * half <= width and 12 <= y <= height - 4, text.text
    whole = " ".join(str(text.text) for text in root.iter(f"{SVG}text"))
    assert whole.startswith(" ".join((3 * LONG).split()))


def test_draw__t2s_stand_above_all_pods() -> None:
    links = (LinkChange("core:1.1.1", 10**6),)
    root = root_of(Shape(hosts=4, planes=1, t0=4, t1=2, pods=2, t2=2, links=links))
    boxes = list(root.iter(f"{SVG}rect"))
    tops = {box.get("class"): float(box.attrib["y"]) for box in boxes}
    assert [len([box for box in boxes if box.get("class") == kind]) for kind in tops] == [
        4,
        4,
        2,
        2,
    ]
    assert tops["t2"] < tops["t1"] < tops["t0"] < tops["host"] < float(root.attrib["height"]) - 24
    assert len(list(root.iter(f"{SVG}line"))) == 4 + 4 + 4
    assert labels(root) == ["1 Mbit/s"]
