# SPDX-License-Identifier: Apache-2.0
"""Which checks apply to a test bed, where it differs from the simulator, and when `mrc testbed run`
ends.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from processes import loaded
from unit.sim.test_bed_run import SENT, result, scenario

from mrc.cli.main import build_parser, main
from mrc.linux import system
from mrc.sim import action as testbed_run
from mrc.sim import checks, compare
from mrc.sim.compare import SIMULATOR, CheckVerdict, Comparison
from mrc.sim.run import run
from mrc.sim.scenario import Criterion
from mrc.sim.task import HostAnswer, Over
from mrc.sim.traffic import BedResult
from mrc.testbed import schedule
from mrc.testbed.plan import make_plan
from mrc.testbed.shape import Fabric, Shape

# ---- Which checks apply --------------------------------------------------------------------------


CHECKS = [
    {"measure": "goodput", "at_least": "90%", "note": "late hosts"},
    {"measure": "retransmitted", "at_most": "1%"},
    {"measure": "completed"},
]


def check(**values: Any) -> Criterion:
    (found,) = scenario(checks=[{"at_most": 1, **values}]).checks
    return found


@pytest.mark.parametrize(
    ("values", "over", "said"),
    [
        ({"measure": "goodput"}, "mptcp", ""),
        ({"measure": "inner_busy"}, "mrc", "no queues"),
        ({"measure": "completion"}, "mrc", "base RTTs"),
        ({"measure": "completion", "of": "reference"}, "mrc", ""),
        ({"measure": "completion", "of": "reference"}, "iperf3", "as one"),
        ({"measure": "ev_bad_after"}, "mrc", "base RTTs"),
        ({"measure": "retransmitted"}, "tcp", ""),
        ({"measure": "retransmitted"}, "mptcp", "mptcp does not count this"),
        ({"measure": "qps_hit"}, "tcp", "tcp does not count this"),
        ({"measure": "ev_changes"}, "tcp", "tcp does not count this"),
        ({"measure": "goodput", "plane": 1}, "mrc", ""),
        ({"measure": "goodput", "plane": 1}, "tcp", "each plane"),
        ({"measure": "lost_per_qp"}, "mrc", ""),
        ({"measure": "lost_per_qp", "from": "1us"}, "mrc", "the whole run"),
    ],
)
def test_inapplicable(values: dict[str, Any], over: Over, said: str) -> None:
    found = compare.inapplicable(check(**values), over)
    assert said in found and bool(said) is bool(found)


def judged(busy: float = 0.5, *, mrc: float = 0.95, simulated: float = 1.0) -> list[CheckVerdict]:
    beside = {"mptcp": (0.5, None, 1.0), SIMULATOR: (simulated, 0.004, 1.0)}
    seeds = [checks.Measured(seed, (mrc, 0.0, 1.0), beside) for seed in (1, 2)]
    return compare.verdicts(scenario(checks=CHECKS), ("mrc", "mptcp"), seeds, busy)


def test_judged__beside_the_others() -> None:
    goodput, again, completed = judged()
    assert (goodput.value, goodput.met) == (0.95, True)
    assert goodput.baselines == {"mptcp": 0.5, SIMULATOR: 1.0}
    assert goodput.differs == ("mptcp",)
    assert (again.met, again.differs) == (True, ())
    assert again.not_applicable == {"mptcp": "mptcp does not count this"}
    assert completed.met
    assert compare.explanations((goodput, again, completed)) == [
        "goodput: late hosts",
        "retransmitted does not apply to mptcp: mptcp does not count this",
    ]


def test_judged__a_miss() -> None:
    assert judged(mrc=0.8)[0].met is False


def test_judged__no_verdict_of_a_busy_machine() -> None:
    """Rates may be the machine's; counts are not."""
    goodput, again, completed = judged(busy=0.96, mrc=0.5)
    assert goodput.met is None and goodput.value == 0.5
    assert "the processors were 96% busy" in goodput.not_judged
    assert (again.met, completed.met, again.not_judged) == (True, True, "")
    assert any("not judged" in line for line in compare.explanations([goodput]))


@pytest.mark.parametrize(
    ("measure", "simulated", "value", "expected"),
    [
        ("goodput", 1.0, 0.91, False),
        ("goodput", 1.0, 0.89, True),
        ("goodput", None, 0.5, True),
        ("goodput", None, None, False),
        ("retransmitted", 0.01, 0.014, False),
        ("retransmitted", 0.01, 0.016, True),
        ("qp_errors", 0.0, 1.0, True),
    ],
)
def test_differs(measure: str, simulated: float, value: float, expected: bool) -> None:
    assert compare.differs(measure, simulated, value) is expected


# ---- JSON ----------------------------------------------------------------------------------------


JSON_CHECKS = [
    {"measure": "goodput", "at_least": 0.0, "note": "hosts are <late>"},
    {"measure": "inner_busy", "at_least": 0.5},
    {"measure": "completed"},
]


def compared(busy: float = 0.5) -> Comparison:
    part = scenario(checks=JSON_CHECKS, title="a <scene>")
    answers = (HostAnswer(sent=(SENT,), received=(), changes=()),)
    ran = BedResult(replace(result(), scenario=part), "mrc", answers, busy, 7)
    simulated = run(part, 1)
    first = replace(part, checks=(part.checks[0], part.checks[2]))
    goodput, done = checks.values_of(first, ran.result, None)
    beside = {compare.SIMULATOR: checks.values_of(part, simulated, None)}
    measured = [checks.Measured(1, (goodput, None, done), beside)]
    judged = compare.verdicts(part, ("mrc",), measured, busy)
    return Comparison(part, ("mrc",), (ran,), (simulated,), tuple(judged))


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


# ---- The command ---------------------------------------------------------------------------------


class FakeBed:
    shape = Shape(hosts=4, planes=2, t0=2)
    plan = make_plan("x", shape)


@pytest.fixture
def refusal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str]]:
    """Runs mrc testbed run on a test bed that is not asked; exit code and stderr."""
    monkeypatch.setattr("mrc.testbed.cli.main.enter_namespaces", lambda args: None)
    monkeypatch.setattr("mrc.testbed.bed.Testbed.existing", lambda name: FakeBed())

    def run(*words: str) -> tuple[int, str]:
        code = main(["testbed", "run", *words])
        return code, capsys.readouterr().err

    return run


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["permutation", "--over", "mrc,udp"], "'udp' is not one of mrc, tcp, mptcp, iperf3"),
        (["permutation", "--scale", "0"], "'0' is not a factor such as 0.1 or 10%"),
        (["permutation", "--set", "topology"], "topology"),
        (["nothing"], "no scenario 'nothing'"),
        (["nothing.toml"], "nothing.toml: No such file"),
        (["ring", "--over", "iperf3"], "ring: iperf3 sends all of a flow at once"),
        (["cold-start"], "another shape; mrc testbed up cold-start builds that of the file"),
        (["plane-silent", "--set", "faults.0.target=plane:1", "--set", "faults.0.kind=lose",
          "--set", "faults.0.n=1", "--set", "faults.0.of=9"], "lose is only for mrc sim"),
        (["permutation", "--set", "transport.kind=ecmp"], "transport.kind ecmp is simulated"),
    ],
)  # fmt: skip
def test_run__refusals_are_wrong_usage(
    refusal: Callable[..., tuple[int, str]], words: list[str], said: str
) -> None:
    code, complaint = refusal(*words)
    assert code == 2 and said in complaint and complaint.count("\n") == 1


@pytest.mark.parametrize(
    ("over", "said"),
    [("iperf3", "iperf3 is missing: apt-get install iperf3"), ("mptcp", "CONFIG_MPTCP")],
)
def test_run__without_what_a_transport_needs(
    refusal: Callable[..., tuple[int, str]], monkeypatch: pytest.MonkeyPatch, over: str, said: str
) -> None:
    monkeypatch.setattr(system, "find", lambda name: None)
    monkeypatch.setattr("mrc.testbed.bed.Testbed.has_mptcp", lambda: False)
    code, complaint = refusal("permutation", "--over", over)
    assert code == 1 and said in complaint


# ---- Faults without traffic ----------------------------------------------------------------------


def test_until__what_is_due_before_it_happens_however_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine the run came to a fault only after its end, and left it out."""
    ended: list[bool] = []

    def run(_: Any, __: Any, wait: Callable[[float | None], bool], ___: Any) -> None:
        now = time.monotonic()
        assert wait(now + 60)  # due after the end
        ended.extend((wait(now - 60), wait(None)))  # the first was due before the end

    monkeypatch.setattr("mrc.testbed.bed.Testbed.existing", lambda name: BedOfFaults())
    monkeypatch.setattr("mrc.testbed.schedule.load_faults", lambda path, plan: ())
    monkeypatch.setattr("mrc.testbed.schedule.run_faults", run)
    words = ["testbed", "run", "faults.toml", "--until", "50ms", "--faults-only"]
    assert testbed_run.run(build_parser(["testbed"]).parse_args(words)) == 0
    assert ended == [False, True]


class BedOfFaults:
    plan = make_plan("x", Shape(planes=2, fabric=Fabric.EMULATED))
    machines = None

    def connect(self) -> None:
        """It is on this machine."""


FAULTS = """
[[faults]]
target = "plane:1"
kind = "silent"
at = "1s"
[[faults]]
target = "plane:2"
kind = "silent"
at = "2s"
"""


@pytest.mark.parametrize(
    ("until", "code", "complaint"),
    [
        ("2s", 0, "left out, since --until 2 s ends the run before: plane:2 at 2 s"),
        ("1s", 2, "--until 1 s: every fault of {} begins later: plane:1 at 1 s, plane:2 at 2 s"),
    ],
)
def test_until__before_faults_begin(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    until: str,
    code: int,
    complaint: str,
) -> None:
    path = tmp_path / "faults.toml"
    path.write_text(FAULTS)
    monkeypatch.setattr("mrc.testbed.bed.Testbed.existing", lambda name: BedOfFaults())
    monkeypatch.setattr("mrc.testbed.schedule.run_faults", lambda *_: None)
    assert main(["testbed", "run", str(path), "--until", until]) == code
    assert capsys.readouterr().err == f"mrc testbed run: {complaint.format(path)}\n"


def test_run__tells_that_changes_were_late(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def run(_: Any, scheduled: Any, __: Any, told: Callable[[Any, float], object]) -> None:
        for event, late in zip(schedule.fault_changes(scheduled), (0.01, 0.87), strict=True):
            told(event, event.at_ns / 1e9 + late)

    path = tmp_path / "faults.toml"
    path.write_text(FAULTS)
    monkeypatch.setattr("mrc.testbed.bed.Testbed.existing", lambda name: BedOfFaults())
    monkeypatch.setattr("mrc.testbed.schedule.run_faults", run)
    assert main(["testbed", "run", str(path)]) == 0
    assert capsys.readouterr().err == (
        "mrc testbed run: late: 1 of 2 changes, the worst by 870 ms: this machine is too busy"
        " for this schedule\n"
    )


@pytest.mark.parametrize(
    ("text", "factor"), [("0.1", 0.1), ("10%", 0.1), ("2", 2.0), ("1e-3", 0.001)]
)
def test_scale_argument(text: str, factor: float) -> None:
    assert testbed_run.scale_argument(text) == pytest.approx(factor)


def test_overs_argument__each_once() -> None:
    assert testbed_run.overs_argument("tcp, mrc,tcp") == ("tcp", "mrc")


def test_testbed__loads_the_simulator_and_the_engine_only_where_they_run() -> None:
    code = "p = build_parser(['testbed'])\ntry: p.parse_args(['testbed', 'run', '--help'])\n"
    modules = loaded(f"from mrc.cli.main import build_parser\n{code}except SystemExit: pass")
    assert "mrc.sim.action" in modules
    assert not {"mrc.sim.compare", "mrc._sim", "mrc._core", "numpy", "rich"} & modules
    parsed = {f"mrc.sim.{name}" for name in ("action", "options", "results", "task")}
    assert not {name for name in modules if name.startswith("mrc.sim.")} - parsed
