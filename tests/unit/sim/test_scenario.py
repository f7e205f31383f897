# SPDX-License-Identifier: Apache-2.0
"""Scenarios from TOML: every built-in one is sound, and every error names file, key and cause; the
faults that a seed draws: which parts, and when.
"""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from mrc.errors import ConfigError
from mrc.sim import native
from mrc.sim import scenario as scenarios
from mrc.sim.run import native_target
from mrc.sim.scenario import (
    MEASURES,
    Scenario,
    base_rtt_ns,
    dead_paths,
    packet_bytes,
    parse_scenario,
)
from mrc.testbed.tiers import Tiers, TimedFault

SMALL = """
title = "small"
[topology]
hosts = 4
planes = 2
t0 = 2
t1 = 2
[[traffic]]
kind = "pairs"
pairs = [[0, 2]]
write = "64KiB"
[[faults]]
target = "link:h3.2"
kind = "burst"
share = "1%"
length = 5
at = "10us"
[[checks]]
name = "goodput"
measure = "goodput"
from = "2rtt"
share = "7/8"
at_least = "99%"
"""


TCP = {"kind": "tcp", "pairs": [[0, 2]]}


def load(tmp_path: Path, text: str = SMALL, **settings: Any) -> Any:
    path = tmp_path / "small.toml"
    path.write_text(text)
    return scenarios.load_scenario(
        str(path), {key.replace("__", "."): v for key, v in settings.items()}
    )


def test_load__the_example_of_the_description(tmp_path: Path) -> None:
    """Each key in the example is known, and its stated defaults are the defaults."""
    text = Path(scenarios.__file__).with_name("keys.toml").read_text()
    example = load(tmp_path, text)
    bare = load(tmp_path, topology__hosts=16, topology__planes=4, topology__t1=4)
    assert [(link.kind, link.a) for link in example.links] == [
        ("rate", 10**11), ("delay", 500), ("loss", 0), ("mtu", 9000),
    ]  # fmt: skip
    assert (example.topology, example.transport) == (bare.topology, bare.transport)
    assert (example.until_ns, example.sample_ns) == (bare.until_ns, bare.sample_ns)
    assert replace(example.traffic[0], pairs=(), bytes=0) == replace(
        bare.traffic[0], pairs=(), bytes=0
    )
    bare = load(tmp_path, topology__hosts=16, traffic=[TCP | {"pairs": [[1, 8]]}])
    assert example.traffic[1] == bare.traffic[0]
    told = re.findall(r"^  # ([a-z_, ]+)[^:]*: ", text, re.MULTILINE)
    named = {name for each in told for name in each.replace(",", "").split()}
    assert named == {*MEASURES, *TimedFault.KINDS}


def test_load__a_fault_that_comes_again(tmp_path: Path) -> None:
    fault = {"target": "t1:1.0", "kind": "rate", "rate": "10%", "at": "10us", "until": "40us"}
    flapping = fault | {"every": "12us", "for": "10us"}
    scenario = load(tmp_path, faults=[flapping, flapping | {"target": "link:h0.1"}])
    first = [each for each in scenario.faults if each.target == "t1:1.0"]
    assert [(each.at_ns, each.until_ns) for each in first] == [
        (10_000, 20_000), (22_000, 32_000), (34_000, 40_000)
    ]  # fmt: skip
    assert {(each.a, each.b) for each in scenario.faults} == {(0, 100_000)}
    endless = {key: value for key, value in flapping.items() if key != "until"}
    scenario = load(tmp_path, faults=[endless], run__until="36us")
    assert [each.at_ns for each in scenario.faults] == [10_000, 22_000, 34_000]


@pytest.mark.parametrize("name", scenarios.scenario_names())
def test_load__built_in(name: str) -> None:
    scenario = scenarios.load_scenario(name)
    assert scenario.name == name
    assert scenario.title and scenario.checks


def test_load__values_and_defaults(tmp_path: Path) -> None:
    scenario = load(tmp_path)
    assert scenario.name == "small"
    assert scenario.topology.host_rate_bps == 100 * 10**9
    assert scenario.traffic[0].pairs == ((0, 2),)
    fault = scenario.faults[0]
    assert (fault.a, fault.b, fault.at_ns, fault.until_ns) == (10_000, 5, 10_000, None)
    check = scenario.checks[0]
    assert (check.share, check.relation, check.target) == (7 / 8, ">=", 0.99)
    assert check.from_ns == 2 * base_rtt_ns(scenario.topology, scenario.transport)


def test_load__long_runs_have_no_more_samples(tmp_path: Path) -> None:
    assert load(tmp_path, run__until="50ms").sample_ns == 10_000
    assert load(tmp_path, run__until="10s").sample_ns == 1_000_000
    assert load(tmp_path, run__until="10s", run__sample="20us").sample_ns == 20_000


def test_base_rtt__below_one_t0_has_no_t1_in_it(tmp_path: Path) -> None:
    far = {"topology__fabric_delay": "1ms", "topology__fabric_rate": "1Mbit/s"}
    scenario = load(tmp_path, topology__t0=1, topology__wake="3us", **far)
    one_way_ns = 2 * 500 + 3000
    sending_ns = (packet_bytes(scenario.transport) + 52 + 126) * 2 * 8 / 100
    assert scenario.base_rtt_ns == round(2 * one_way_ns + sending_ns)


def test_load__settings_replace_values(tmp_path: Path) -> None:
    scenario = load(tmp_path, topology__hosts=8, traffic__0__writes=3, transport__cc="null")
    assert scenario.topology.hosts == 8
    assert scenario.traffic[0].writes == 3
    assert scenario.transport.cc.name == "NULL"
    assert scenario.transport.plane_shares.name == "MEASURED"
    equal = load(tmp_path, transport__plane_shares="equal")
    assert equal.transport.plane_shares.name == "EQUAL"


def test_load__variants_set_values(tmp_path: Path) -> None:
    big = {"name": "big", "set": {"traffic.0.write": "1MiB"}}
    scenario = load(tmp_path, variants=[{"name": "small"}, big])
    assert [part.variant for part in scenario.parts] == ["small", "big"]
    assert [part.traffic[0].bytes for part in scenario.parts] == [1 << 16, 1 << 20]
    assert load(tmp_path).parts == (load(tmp_path),)


@pytest.mark.parametrize(
    ("traffic", "cause"),
    [
        ({"hosts": "0-4"}, "hosts: '0-4' is not within 0-3"),
        ({"hosts": "zero"}, "hosts: 'zero' is not a range of hosts"),
        ({"hosts": "0-2,1"}, "hosts: '0-2,1' names a host twice"),
        ({"group_size": 3}, "group_size: 4 hosts cannot form groups of 3"),
        ({"hosts": "0"}, "group_size: 1 host cannot form groups of 1"),
        ({"steps": 2}, "compute: is shorter than topology.fabric_delay"),
        ({"compute": "1us"}, "compute: requires steps"),
        ({"kind": "checkpoint"}, "to: is missing"),
    ],
)
def test_load__hosts_and_steps_that_make_no_sense(
    tmp_path: Path, traffic: dict[str, Any], cause: str
) -> None:
    with pytest.raises(ConfigError, match=re.escape(cause)):
        load(tmp_path, traffic=[{"kind": "ring", "write": "4KiB"} | traffic], checks=[])


@pytest.mark.parametrize(
    ("measure", "told"),
    [
        ("completed", ("writes completed", ">=", 1)),
        ("qp_errors", ("QPs in ERROR", "<=", 0)),
        ("spurious", ("spurious retransmissions", "<=", 0)),
    ],
)
def test_load__a_check_with_the_usual_target(
    tmp_path: Path, measure: str, told: tuple[str, str, float]
) -> None:
    (check,) = load(tmp_path, checks=[{"measure": measure}]).checks
    assert (check.name, check.relation, check.target) == told
    busy = {"measure": "last_hop_busy", "at_least": 0}
    short = load(tmp_path, checks=[busy], run__usual=[measure])
    assert short.checks[1:] == (check,), "after the others"
    (own,) = load(tmp_path, checks=[{"measure": measure, "name": "own", "at_most": 7}]).checks
    assert (own.name, own.relation, own.target) == ("own", "<=", 7)


@pytest.mark.parametrize(
    ("settings", "cause"),
    [
        ({"topology.hosts": 5}, "topology.hosts: 5 is not a multiple of t0 (2)"),
        ({"topology.planes": 33}, "topology.planes: must be a whole number from 1 to 32, not 33"),
        ({"topology.host_rate": "100"}, "topology.host_rate: '100' is not a rate"),
        ({"topology.absent": ["link:*.*"]}, "absent: leaves less than two hosts with a link"),
        ({"topology.color": "red"}, "topology.color: is unknown; known are absent, buffer"),
        (
            {"topology.hosts": "four"},
            "topology.hosts: must be a whole number from 2 to 131072, not 'four'",
        ),
        ({"topology.trimming": 1}, "topology.trimming: must be true or false, not 1"),
        ({"topology.host_rate": "1234567890123456789012 bit/s"}, "is too large"),
        ({"transport.probed": "no"}, "transport.probed: must be true, false or 'computed'"),
        (
            {"topology.t1": 256, "topology.planes": 8},
            "transport.evs_per_plane: 2048 EVs exceed the 1024 of a QP: 1 to 128",
        ),
        ({"run.until": "0s"}, "run.until: must be above 0"),
        ({"run.usual": ["goodput"]}, "usual: 'goodput' is none of completed, qp_errors, spurious"),
        ({"traffic.0.kind": "pairs", "traffic.0.pairs": []}, "traffic[0].pairs: is empty"),
        (
            {"transport.plane_shares": "fair"},
            "transport.plane_shares: 'fair' is none of measured, equal",
        ),
        ({"transport.cc": "bbr"}, "transport.cc: 'bbr' is none of delay"),
        ({"checks.0.of": "max-max"}, "checks[0].of: 'max-max' is none of line, reference, max-min"),
        ({"checks.0.plane": 3}, "checks[0].plane: must be a whole number from 1 to 2, not 3"),
        (
            {"checks.0.plane": 1, "checks.0.measure": "fairness"},
            "checks[0].plane: requires measure = goodput",
        ),
        (
            {"checks.0.percentile": 99},
            "checks[0].percentile: requires one of the measures completion",
        ),
        (
            {"checks.0.measure": "fairness", "checks.0.of": "reference"},
            "checks[0].of: 'reference' is none of line",
        ),
        (
            {"checks.0.of": "max-min", "traffic.0.interval": "1us"},
            "checks: max-min does not support traffic with an interval",
        ),
        (
            {"traffic": [TCP | {"plane": 3}]},
            "traffic[0].plane: must be a whole number from 1 to 2, not 3",
        ),
        (
            {"traffic": [TCP | {"path": 2}]},
            "traffic[0].path: must be a whole number from 0 to 1, not 2",
        ),
        ({"traffic": [TCP | {"path": 1, "pairs": [[0, 1]]}]}, "traffic[0].path: [0, 1] are below"),
        (
            {"traffic": [TCP | {"algorithm": "reno"}]},
            "traffic[0].algorithm: 'reno' is none of cubic",
        ),
        ({"traffic": [TCP | {"write": "1KiB"}]}, "traffic[0].write: is unknown"),
        ({"traffic.0.kind": "flood"}, "traffic[0].kind: 'flood' is none of permutation"),
        ({"traffic.0.pairs": [[0, 4]]}, "traffic[0].pairs: [0, 4] are not two hosts of 0..3"),
        ({"traffic.0.pairs": [0, 1]}, "traffic[0].pairs: must be a list of pairs"),
        (
            {"traffic.0.paths": [2]},
            "traffic[0].paths[0]: must be a whole number from 0 to 1, not 2",
        ),
        ({"traffic.0.paths_until": "1ms"}, "traffic[0].paths_until: requires paths"),
        (
            {"traffic.0.redundant": True, "traffic.0.write": "65537B"},
            "traffic[0].redundant: takes writes of at most 64 KiB",
        ),
        (
            {"transport.backups": [3]},
            "transport.backups[0]: must be a whole number from 1 to 2, not 3",
        ),
        (
            {"traffic.0.paths": [0], "traffic.0.pairs": [[2, 3]]},
            "traffic[0].paths: [2, 3] are below the same T0",
        ),
        ({"traffic": []}, "traffic: is missing: a scenario needs at least one [[traffic]]"),
        (
            {"faults.0.target": "t1:1.2"},
            "faults[0].target: target t1:1.2: no T1 2, use 0..1",
        ),
        ({"faults.0.target": "t2:1"}, "faults[0].target: target 't2:1' is not all, plane:P"),
        (
            {"faults.0.target": "plane:0"},
            "faults[0].target: target plane:0: no plane 0, use 1..2",
        ),
        ({"faults.0.until": "1us"}, "faults[0].until: must be later than at"),
        ({"faults.0.every": "1us"}, "faults[0].every: requires for, and"),
        ({"faults.0.for": "1us"}, "faults[0].every: requires for, and"),
        (
            {"faults.0.every": "1us", "faults.0.for": "1us"},
            "faults[0].for: must be shorter than every",
        ),
        ({"faults.0.share": "200%"}, "faults[0].share: '200%' is more than 100%"),
        ({"faults.0.by": "1us"}, "faults[0].by: is unknown"),
        ({"checks.0.at_most": 1}, "checks[0].at_least: a check requires exactly one"),
        ({"checks.0.at_most": "100000"}, 'a share such as "97%" or "7/8"; write a number without'),
        ({"checks": [{"measure": "fairness"}]}, "checks[0].at_least: a check requires exactly one"),
        ({"checks.0.share": "x"}, "checks[0].share: 'x' is not a share such as"),
        ({"checks.0.group": "y"}, "checks: no traffic has the group 'y'"),
        ({"baselines": ["tcp"]}, "baselines: 'tcp' is none of ecmp, ecmp-planes, go-back-n"),
        ({"transport.kind": "tcp"}, "transport.kind: 'tcp' is none of mrc, ecmp"),
        ({"plot": "pie"}, "plot: 'pie' is none of time, flows"),
        ({"variants": [{}]}, "variants[0].name: is missing"),
        ({"variants": [{"name": "a", "set": 5}]}, "variants[0].set: must be a table, not 5"),
        (
            {"variants": [{"name": "a", "set": {"topology.planes": 33}}]},
            "small.toml (a): topology.planes: must be a whole number from 1 to 32, not 33",
        ),
        ({"checks.0.variants": ["b"]}, "checks: ['b'] are not names of variants"),
        ({"title": 5}, "title: must be a string, not 5"),
        ({"faults.7.at": "1us"}, "faults.7.at: 7 does not exist"),
    ],
)
def test_load__refused(tmp_path: Path, settings: dict[str, Any], cause: str) -> None:
    path = tmp_path / "small.toml"
    path.write_text(SMALL)
    with pytest.raises(ConfigError) as error:
        scenarios.load_scenario(str(path), settings)
    assert cause in str(error.value)


def test_load__no_such_scenario_or_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no scenario 'nowhere'; use .*, lossy-ev,"):
        scenarios.load_scenario("nowhere")
    with pytest.raises(ConfigError, match="No such file"):
        scenarios.load_scenario(str(tmp_path / "none.toml"))
    with pytest.raises(ConfigError, match=r"small\.toml: not TOML: "):
        load(tmp_path, "title = ")


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("all", (0, 0, 0)),
        ("plane:2", (2, 0, 0)),
        ("t0:1.1", (1, 1, 0)),
        ("t1:2.1", (2, 1, 0)),
        ("uplink:1.0.1", (1, 0, 1)),
        ("link:h3.2", (2, 3, 0)),
    ],
)
def test_parse_target__numbers(tmp_path: Path, text: str, numbers: tuple[int, int, int]) -> None:
    where = native_target(load(tmp_path).topology.target(text))
    assert (where["plane"], where["index"], where["t1"]) == numbers


def test_names__are_those_of_the_simulator() -> None:
    assert (tuple(native.CLASSES), tuple(native.ROUTING)) == (
        TimedFault.CLASSES, Tiers.ROUTING
    )  # fmt: skip


def test_dead_paths__of_either_end_once(tmp_path: Path) -> None:
    text = SMALL[: SMALL.index("[[faults]]")] + "".join(
        f'[[faults]]\ntarget = "{target}"\nkind = "silent"\n'
        for target in ("uplink:1.0.0", "uplink:1.1.0", "t1:2.1", "plane:2")
    )
    scenario = load(tmp_path, text)
    assert dead_paths(scenario, 0, 2) == 2
    assert dead_paths(load(tmp_path), 0, 2) == 0


# ---- Faults of a seed ----------------------------------------------------------------------------


SILENT = {"kind": "silent", "at": "10us"}
LASTING: dict[str, Any] = {"for": "100us"}


def faulty(**fault: Any) -> Scenario:
    values = {
        "title": "t",
        "topology": {"hosts": 8, "planes": 3, "t0": 2, "t1": 4},
        "traffic": [{"kind": "permutation", "write": "4KiB"}],
        "faults": [SILENT | fault],
        "run": {"until": "10ms"},
    }
    return parse_scenario(values, "t", "t.toml")


def drawn(*, seed: int = 1, **fault: Any) -> tuple[TimedFault, ...]:
    return faulty(**fault).with_seed(seed).faults


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
        faulty(**fault)
