# SPDX-License-Identifier: Apache-2.0
"""Faults that a seed draws: which parts, and when."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Any

import pytest

from mrc.errors import ConfigError
from mrc.fabric.faults import TimedFault
from mrc.sim.scenario import Scenario, parse_scenario, with_seed

SILENT = {"kind": "silent", "at": "10us"}
LASTING: dict[str, Any] = {"for": "100us"}


def scenario(**fault: Any) -> Scenario:
    values = {
        "title": "t",
        "topology": {"hosts": 8, "planes": 3, "t0": 2, "t1": 4},
        "traffic": [{"kind": "permutation", "write": "4KiB"}],
        "faults": [SILENT | fault],
        "run": {"until": "10ms"},
    }
    return parse_scenario(values, "t", "t.toml")


def drawn(*, seed: int = 1, **fault: Any) -> tuple[TimedFault, ...]:
    return with_seed(scenario(**fault), seed).faults


def test_with_seed__all_parts_of_a_target() -> None:
    assert [each.target for each in drawn(target="link:h5.*")] == [
        "link:h5.1", "link:h5.2", "link:h5.3"
    ]  # fmt: skip
    assert {each.target for each in drawn(target="t1:*.2")} == {"t1:1.2", "t1:2.2", "t1:3.2"}
    assert len(drawn(target="uplink:*.*.*")) == 3 * 2 * 4
    assert len(drawn(target="plane:*")) == 3
    [named] = drawn(target="t0:2.1")
    assert (named.target, named.at_ns) == ("t0:2.1", 10_000)


def test_with_seed__some_of_them() -> None:
    some = drawn(target="uplink:*.*.*", draw=5)
    assert len({each.target for each in some}) == 5
    assert {each.at_ns for each in some} == {10_000}
    assert (
        some == drawn(target="uplink:*.*.*", draw=5) != drawn(seed=2, target="uplink:*.*.*", draw=5)
    )
    assert len(drawn(target="uplink:*.*.*", draw="12.5%")) == 3


def test_with_seed__flaps_at_a_rate() -> None:
    flaps = drawn(target="uplink:*.*.*", every="400us", **LASTING, until="8ms")
    assert 430 < len(flaps) < 530  # 24 links x 8 ms / 400 us
    assert len({each.target for each in flaps}) == 24
    assert all(each.until_ns == min(each.at_ns + 100_000, 8_000_000) for each in flaps)
    for target in {each.target for each in flaps}:
        mine = [each for each in flaps if each.target == target]
        assert all(a.end_ns <= b.at_ns for a, b in pairwise(mine))
    few = drawn(target="uplink:*.*.*", draw=2, every="200us", **LASTING)
    assert len({each.target for each in few}) == 2


@pytest.mark.parametrize(
    ("fault", "cause"),
    [
        ({"target": "uplink:*.0"}, "target 'uplink:*.0' does not name parts"),
        ({"target": "link:h*.x"}, "target 'link:h*.x' does not name parts"),
        ({"target": "t1:*.4"}, "target t1:1.4: no T1 4, use 0..3"),
        ({"target": "switch:*"}, "target 'switch:*' does not name parts"),
        ({"target": "t1:*.0", "draw": 4}, "draw: 4.0 is not 1 to 3 parts"),
        ({"target": "t1:*.0", "draw": "1%"}, "draw: '1%' is not 1 to 3 parts"),
        ({"target": "t1:1.0", "draw": 1}, "draw: is unknown"),
    ],
)
def test_with_seed__parts_that_do_not_exist(fault: dict[str, Any], cause: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(cause)):
        scenario(**fault)
