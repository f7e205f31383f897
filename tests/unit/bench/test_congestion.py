# SPDX-License-Identifier: Apache-2.0
"""Scenarios over real sockets: the hosts' settings, and the table next to the simulator's."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import congestion_bed as bed
import congestion_faults
import congestion_table as table
import congestion_tcp
import pytest
from end import BenchError
from msgspec.structs import replace

from mrc.enums import CcKind
from mrc.fabric.targets import Target, parse_target
from mrc.fabric.tiers import LinkChange
from mrc.sim import native, reader
from mrc.sim.scenario import Scenario
from mrc.sim.traffic import make_flows
from mrc.testbed.fault import Fault
from mrc.testbed.shape import Fabric, Shape

BENCH = Path(__file__).parents[3] / "bench"
FILES = sorted((BENCH / "scenarios").glob("*.toml"))


def load(name: str) -> Scenario:
    return reader.load(str(BENCH / "scenarios" / f"{name}.toml")).parts[0]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_scenarios__can_be_run_both_ways(path: Path) -> None:
    """With the timeouts and acknowledgements of real hosts. NSCC runs with and without trimming."""
    parts = reader.load(str(path)).parts
    if parts[0].transport.cc is CcKind.NSCC:
        assert {part.topology.trimming for part in parts} == {True, False}
    for part in parts:
        bed.check(part)
        assert part.transport.noise_ns == 500_000
        assert part.transport.sack_delay_ns == 500_000
        assert bed.shape_of(part).fabric is Fabric.EMULATED


def test_check__only_what_a_bed_can_do() -> None:
    loss = load("loss")
    (fault, *_) = loss.faults
    for wrong, said in (
        (replace(fault, target="plane:1"), "loss, delay and jitter of links"),
        (replace(fault, target="plane:1", kind="delay"), "delay and jitter of links"),
        (replace(fault, kind="silent"), "faults other than rates"),
        (replace(fault, packets="control"), "faults other than rates"),
        (replace(fault, every_ns=10, for_ns=5), "faults other than rates"),
    ):
        with pytest.raises(BenchError, match=said):
            bed.check(replace(loss, faults=(wrong,)))
    (*_, tcp) = load("shared").traffic
    timed = replace(loss.checks[0], measure="completion")
    for unfit, said in (
        (replace(loss, traffic=(replace(tcp, kind="ring"),)), "a ring"),
        (replace(loss, traffic=(replace(tcp, start_ns=5),)), "TCP that starts later"),
        (replace(loss, traffic=(replace(tcp, paths=(1,)),)), "not over T1 0"),
        (replace(loss, checks=(timed,)), "the measure completion"),
        (replace(loss, topology=replace(loss.topology, ecn_last_hop=True)), "ecn_last_hop"),
    ):
        with pytest.raises(BenchError, match=said):
            bed.check(unfit)
    traffic = (replace(loss.traffic[0], interval_ns=5),)
    with pytest.raises(BenchError, match=r"loss: traffic.interval: only the simulator"):
        bed.check(replace(loss, traffic=traffic))


def test_shape_of__delay_of_a_plane() -> None:
    shape = bed.shape_of(load("delays"))
    assert shape.links == (LinkChange("plane:2", delay_ns=2_000_000),)
    assert shape.host_rate_bps == shape.fabric_rate_bps == 100_000_000


def test_tasks__paths_that_come_later() -> None:
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


def test_bed_fault__adds_what_is_missing() -> None:
    """A scenario gives a link's new delay; a test bed requires the added delay."""
    longer, slow = load("reroute"), load("slow-plane")
    (delay,), (rate,) = longer.faults, slow.faults
    jitter = load("jitter").faults[0]
    for scenario, fault, expected in (
        (longer, delay, Fault(loss=0, delay_ns=5_000_000)),
        (longer, jitter, Fault(loss=0, jitter_ns=5_000_000)),
        (slow, rate, Fault(loss=0, rate_share=0.5)),
        (slow, replace(rate, a=5_000_000, b=0), Fault(loss=0, rate_bps=5_000_000)),
        (slow, replace(rate, kind="loss", a=10_000), Fault(loss=0.01)),
    ):
        shape = bed.shape_of(scenario)
        target = parse_target(fault.target, shape)
        assert congestion_faults.bed_fault(shape, target, fault) == expected
    assert not congestion_faults.lasts(longer, delay)
    assert congestion_faults.lasts(longer, jitter)


class FakeBed:
    """Records the calls to a test bed and their times."""

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self.told: list[tuple[float, str, Fault | None]] = []

    def set_faults(self, wanted: dict[Target, Fault], ready: Any = lambda: None) -> None:
        ready()
        now = time.monotonic()
        self.told += [(now, str(target), fault) for target, fault in wanted.items()]

    def heal(self, target: str, ready: Any = lambda: None) -> None:
        ready()
        self.told.append((time.monotonic(), target, None))


def test_let_happen__each_at_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(congestion_faults, "_LATEST_NS", 10**12)  # on a busy machine
    slow = load("slow-plane")
    (rate,) = slow.faults
    passing = replace(rate, at_ns=60_000_000, until_ns=120_000_000)
    whole = replace(rate, target="link:h0.2", at_ns=0, until_ns=10**12)
    scenario = replace(slow, faults=(passing, whole), until_ns=160_000_000)
    fake: Any = FakeBed(bed.shape_of(slow))
    congestion_faults.begin(fake, scenario)
    assert [target for _, target, _ in fake.told] == ["link:h0.2"]
    start = time.monotonic()
    congestion_faults.let_happen(fake, scenario, round(start * 1e9))
    (began, _, fault), (over, _, healed) = fake.told[1:]
    assert (fault, healed) == (Fault(loss=0, rate_share=0.5), None)
    assert began - start >= 0.06 and over - start >= 0.12
    left = replace(scenario, faults=(replace(passing, at_ns=10_000_000),), until_ns=30_000_000)
    start = time.monotonic()
    congestion_faults.let_happen(fake, left, round(start * 1e9))
    (*_, (over, target, healed)) = fake.told
    assert (target, healed) == ("plane:1", None) and over - start >= 0.03


def test_tcp_flow__what_came_after_the_end_has_no_part() -> None:
    """Bins of 1 ms from 2 ms after the start on, of a scenario of 5 ms."""

    class FakeEnd:
        def __init__(self, answer: dict[str, Any]) -> None:
            self.answer = answer
            self.started: tuple[Any, ...] = ()

        def start(self, *words: Any) -> None:
            self.started = words

        def result(self) -> dict[str, Any]:
            return self.answer

    flow: Any = object.__new__(congestion_tcp.TcpFlow)
    flow._number, flow._plane, flow._planes, flow._route = 3, 2, 2, ["from", "to"]
    bins = {"flows": [[10, 20, 30, 40]], "width_ns": 1_000_000, "start_monotonic_ns": 9_000_000}
    flow._sender = FakeEnd({"ns": 4_000_000, "packets": 7, "retransmissions": 1})
    flow._receiver = FakeEnd(bins)
    flow.start(replace(load("shared"), until_ns=5_000_000))
    assert flow._sender.started == ("send", "cubic", "write", 5, "from", "to")
    answer = flow.result(7_000_000)
    assert answer["samples"] == {
        "3": [[3_000_000, 10, 0, 10], [4_000_000, 30, 0, 30], [5_000_000, 60, 0, 60]]
    }
    assert answer["sent"]["3"]["retransmitted_packets"] == 1


def test_tasks__tcp_is_not_for_ends_of_mrc() -> None:
    scenario = load("shared")
    tasks = bed.tasks(scenario, make_flows(scenario, 1))
    assert sorted(tasks) == [0, 2]
    assert tasks[0]["context"]["plane_shares"] == "MEASURED"
    assert (tasks[0]["context"]["cc"], tasks[0]["planes"]) == ("DELAY", 2)


def test_result__a_flow_that_failed_is_an_error_of_its_qp() -> None:
    scenario = load("delays")
    flows = make_flows(scenario, 1)
    counts = dict.fromkeys(
        ("first_ns", "posted", "completed", "sent_packets", "retransmitted_packets",
         "spurious_packets", "rtt_ns"), 0,
    ) | {"last_ns": 7, "failed": 1}  # fmt: skip
    answer = {"sent": {"0": counts}, "samples": {"0": [[5, 10, 4, 6]]}}
    names = ("fabric", *(f"t0:{plane}.1>h1" for plane in (1, 2)))
    keys = (*bed._COUNTED, "busy_ns", "peak_bytes")
    moved = {name: dict.fromkeys(keys, 0) for name in names}
    result = bed._result(scenario, 1, flows, [answer], moved)
    assert [(event.now_ns, event.type) for event in result.events] == [(7, native.QP_ERROR)]


def test_rows__medians_beside_the_simulator() -> None:
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
def test_differs(measure: str, simulated: float, value: float, expected: bool) -> None:
    assert table.differs(measure, simulated, value) is expected


def test_notes__of_what_differs() -> None:
    found = [
        {"name": "a", "differs": True, "note": "late hosts"},
        {"name": "b", "differs": True, "note": "late hosts"},
        {"name": "c", "differs": True, "note": ""},
        {"name": "d", "differs": False, "note": "never shown"},
    ]
    assert table.notes(found) == ["late hosts", "unexplained: c"]


def test_let_happen__too_late_for_the_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(congestion_faults, "_LATEST_NS", -1)
    slow = load("slow-plane")
    (rate,) = slow.faults
    at_once = replace(rate, at_ns=1, until_ns=2)
    fake: Any = FakeBed(bed.shape_of(slow))
    with pytest.raises(BenchError, match=r"this machine is too slow: a fault was \d+ ms late"):
        congestion_faults.let_happen(
            fake, replace(slow, faults=(at_once,), until_ns=3), time.monotonic_ns()
        )
