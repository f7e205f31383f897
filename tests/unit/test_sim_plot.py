# SPDX-License-Identifier: Apache-2.0
"""The plot of a run and the page of all: well-formed, to scale, and honest."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest

from mrc.sim import page, plot, reader
from mrc.sim.checks import Outcome
from mrc.sim.run import Result, run

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def result() -> Result:
    values = {
        "title": "a & b",
        "claim": "x < y",
        "topology": {"hosts": 4, "planes": 1, "t0": 2, "t1": 2},
        "run": {"sample": "5us"},
        "traffic": [
            {"kind": "pairs", "pairs": [[0, 2]], "write": "1MiB", "group": "a<b"},
            {"kind": "pairs", "pairs": [[1, 3]], "write": "1MiB", "start": "1ms"},
        ],
        "faults": [
            {"target": "t1:1.0", "kind": "delay", "delay": "1us", "at": "20us", "until": "40us"},
            {"target": "t1:1.1", "kind": "silent", "at": "2s"},
        ],
    }
    return run(reader.parse(values, "small", "small.toml"), seed=1)


def test_goodput_svg__is_well_formed_and_to_scale(result: Result) -> None:
    root = ElementTree.fromstring(plot.goodput_svg(result))
    lines = root.findall(f"{SVG}polyline")
    assert len(lines) == 2
    for line in lines:
        points = [tuple(map(float, p.split(","))) for p in line.attrib["points"].split()]
        assert all(0 <= x <= plot.WIDTH and 0 <= y <= plot.HEIGHT for x, y in points)
        assert [x for x, _ in points] == sorted(x for x, _ in points)
    [band] = root.findall(f"{SVG}rect")  # the other fault comes after the end
    assert band.findtext(f"{SVG}title") == "t1:1.0: delay"


def test_shares__a_group_that_has_not_begun_has_none(result: Result) -> None:
    end_ns = result.stats.now_ns
    early = [share for now_ns, share in plot.shares(result, "pairs", end_ns) if now_ns < 1e6]
    assert early and set(early) == {0}
    busy = [share for now_ns, share in plot.shares(result, "a<b", end_ns) if 30e3 < now_ns < 70e3]
    assert all(0.8 < share < 1.05 for share in busy)


def test_render__says_what_is_not_met(result: Result) -> None:
    outcomes = [
        Outcome("small", "c < d", None, ">=", 0.99, False),
        Outcome("small", "errors", 0, "<=", 0, True),
    ]
    text = page.render([page.Experiment(result, outcomes)], range(1, 21))
    assert "1 of 2 checks met; virtual time, median of seeds 1 to 20" in text
    assert "<td>c &lt; d<td>none<td>&gt;= 0.99<td" in text
    assert "The paper: x &lt; y" in text
    assert not re.search(r"(src|href)=", text)  # nothing to fetch
