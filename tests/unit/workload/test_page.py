# SPDX-License-Identifier: Apache-2.0
"""The page with the simulator and a test bed side by side."""

from __future__ import annotations

import re

import pytest
from msgspec.structs import replace
from unit.workload.scenes import scenario
from unit.workload.test_gather import SENT, result

from mrc.sim import checks, drawing
from mrc.sim.run import run
from mrc.workload import compare
from mrc.workload.compare import Comparison
from mrc.workload.run import BedResult
from mrc.workload.task import HostAnswer

CHECKS = [
    {"measure": "goodput", "at_least": 0.0, "note": "hosts are <late>"},
    {"measure": "inner_busy", "at_least": 0.5},
    {"measure": "completed"},
]


def compared(busy: float = 0.5) -> Comparison:
    part = scenario(checks=CHECKS, title="a <scene>")
    answers = (HostAnswer(sent=(SENT,), received=(), changes=()),)
    ran = BedResult(replace(result(), scenario=part), "mrc", answers, busy, 7)
    simulated = run(part, 1)
    first = replace(part, checks=(part.checks[0], part.checks[2]))
    goodput, done = checks.values_of(first, ran.result, None)
    found = {
        "mrc": (goodput, None, done),
        compare.SIMULATOR: checks.values_of(part, simulated, None),
    }
    judged = compare.verdicts(part, ("mrc",), [compare.Values(1, found, {"mrc": busy})])
    return Comparison(part, ("mrc",), (ran,), (simulated,), tuple(judged))


@pytest.mark.skipif(not drawing.available(), reason=drawing.HINT)
def test_render__both_sides() -> None:
    text = compare.render_page(
        scenario(title="a <scene>"), [compared()], ["the switches do not trim"]
    )
    assert text.count("<svg") == 2 and "2 of 2 checks met" in text
    for words in (
        "scene, in the simulator", "scene, on the test bed", "goodput: hosts are &lt;late&gt;",
        "inner_busy does not apply to mrc", "does not apply\n", "<li>the switches do not trim",
        "a &lt;scene&gt;",
    ):  # fmt: skip
        assert words in text
    assert re.search(r"https?://(?!www.w3.org)", text) is None  # nothing from elsewhere


@pytest.mark.skipif(not drawing.available(), reason=drawing.HINT)
def test_render__of_a_busy_machine() -> None:
    text = compare.render_page(scenario(), [compared(busy=1.0)], [])
    assert "1 of 1 checks met" in text and "the processors were 100% busy" in text
    assert "What a test bed does otherwise" not in text


def test_workload__as_json() -> None:
    found = compare.workload_result(scenario(), [compared()])
    (ran,), (simulated,) = found.runs, found.simulated
    assert (ran.latest_fault_ns, ran.processors_busy) == (7, 0.5)
    assert ran.flows[0].retransmitted_packets == 6 and ran.flows[0].spurious_packets is None
    assert simulated.flows[0].completed == ran.flows[0].completed == 4
    assert found.notes == ("the switches neither mark nor trim",)


def test_notes__of_steps_and_iperf3() -> None:
    ring = {"kind": "ring", "write": "1KiB", "steps": 2, "compute": "10us"}
    steps, trims, iperf3 = compare.notes(scenario(traffic=[ring]), ["iperf3"])
    assert "barrier" in steps and "trim" in trims and "socket buffer" in iperf3
