# SPDX-License-Identifier: Apache-2.0
"""Scenarios over real sockets: what hosts are told, and the table beside the simulator."""

from __future__ import annotations

import importlib
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

from mrc.sim import reader
from mrc.sim.scenario import Scenario
from mrc.sim.traffic import make_flows
from mrc.testbed.shape import Fabric, LinkChange

BENCH = Path(__file__).parents[2] / "bench"
FILES = sorted((BENCH / "scenarios").glob("*.toml"))


@pytest.fixture
def bed(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(BENCH)
    return importlib.import_module("congestion_bed")


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(BENCH)
    return importlib.import_module("congestion_table")


def load(name: str) -> Scenario:
    return reader.load(str(BENCH / "scenarios" / f"{name}.toml")).parts[0]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_scenarios__trim_and_do_not(bed: ModuleType, path: Path) -> None:
    """Each can be run both ways, with the patience and the acknowledgements of real hosts."""
    parts = reader.load(str(path)).parts
    assert {part.topology.trimming for part in parts} == {True, False}
    for part in parts:
        bed.check(part)
        assert part.transport.noise_ns == 500_000
        assert part.transport.sack_delay_ns == 500_000
        assert bed.shape_of(part).fabric is Fabric.EMULATED


def test_check__only_what_a_bed_can_do(bed: ModuleType) -> None:
    loss = load("loss")
    (fault, *_) = loss.faults
    for wrong, said in (
        (replace(fault, until_ns=1000), "from the start to the end"),
        (replace(fault, target="plane:1"), "loss of links"),
        (replace(fault, kind="silent"), "other than the loss"),
    ):
        with pytest.raises(bed.BenchError, match=said):
            bed.check(replace(loss, faults=(wrong,)))
    tcp = replace(loss.traffic[0], kind="tcp")
    timed = replace(loss.checks[0], measure="completion")
    for wrong, said in (
        (replace(loss, traffic=(tcp,)), "a ring or TCP"),
        (replace(loss, checks=(timed,)), "the measure completion"),
        (replace(loss, topology=replace(loss.topology, ecn_last_hop=True)), "ecn_last_hop"),
    ):
        with pytest.raises(bed.BenchError, match=said):
            bed.check(wrong)
    traffic = (replace(loss.traffic[0], interval_ns=5),)
    with pytest.raises(bed.BenchError, match=r"loss: traffic.interval: in the simulator only"):
        bed.check(replace(loss, traffic=traffic))


def test_shape_of__delay_of_a_plane(bed: ModuleType) -> None:
    shape = bed.shape_of(load("delays"))
    assert shape.links == (LinkChange("plane:2", delay_ns=2_000_000),)
    assert shape.host_rate_bps == shape.fabric_rate_bps == 100_000_000


def test_tasks__paths_that_come_later(bed: ModuleType) -> None:
    scenario = load("parting")
    tasks = bed.tasks(scenario, make_flows(scenario, 1))
    assert sorted(tasks) == [0, 1, 2, 3]
    (flow,) = tasks[1]["senders"]
    assert flow["to"] == "h3"
    assert flow["denied"] == ["t1:1.1", "t1:1.2", "t1:1.3"]
    assert flow["allow_ns"] == 800_000_000
    assert tasks[3]["receivers"] == [flow]
    assert tasks[0]["context"]["cc"] == "NSCC"
    assert tasks[0]["context"]["cc_parameters"]["base_rtt_ns"] == scenario.base_rtt_ns


def test_rows__medians_beside_the_simulator(table: ModuleType) -> None:
    scenario = load("delays")
    goodput, again, spurious = table.rows(
        scenario, (1.0, 0.0, 0.0), [(0.8, 0.0, 0.0), (0.85, 0.004, 9.0), (0.95, 0.003, 7.0)]
    )
    assert (goodput.value, goodput.low, goodput.high) == (0.85, 0.8, 0.95)
    assert goodput.encode()["ratio"] == 0.85
    assert goodput.differs and goodput.met is False
    assert not again.differs and again.met
    assert spurious.differs and spurious.ratio is None


@pytest.mark.parametrize(
    ("measure", "simulated", "value", "expected"),
    [
        ("goodput", 1.0, 0.91, False),
        ("goodput", 1.0, 0.89, True),
        ("goodput", None, 0.5, True),
        ("goodput", None, None, False),
        ("retransmitted", 0.01, 0.014, False),
        ("retransmitted", 0.01, 0.016, True),
    ],
)
def test_differs(
    table: ModuleType, measure: str, simulated: float, value: float, expected: bool
) -> None:
    assert table.differs(measure, simulated, value) is expected


def test_notes__of_what_differs(table: ModuleType) -> None:
    found = [
        {"name": "a", "differs": True, "note": "late hosts"},
        {"name": "b", "differs": True, "note": "late hosts"},
        {"name": "c", "differs": True, "note": ""},
        {"name": "d", "differs": False, "note": "never shown"},
    ]
    assert table.notes(found) == ["late hosts", "unexplained: c"]
