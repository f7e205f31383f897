# SPDX-License-Identifier: Apache-2.0
"""When `mrc testbed run` ends."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from loading import loaded

from mrc.cli.main import build_parser, main
from mrc.testbed import schedule
from mrc.testbed.plan import make_plan
from mrc.testbed.shape import Fabric, Shape
from mrc.workload import cli as testbed_run


def test_until__what_is_due_before_it_happens_however_late(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On a busy machine the run came to a fault only after its end, and left it out."""
    ended: list[bool] = []

    def run(_: Any, __: Any, wait: Callable[[float | None], bool], ___: Any) -> None:
        begun = time.monotonic()
        assert wait(begun + 60)  # due after the end
        ended.extend((wait(begun + 0.01), wait(None)))

    monkeypatch.setattr("mrc.testbed.bed.existing", lambda name: FakeBed())
    monkeypatch.setattr("mrc.testbed.schedule.load_faults", lambda path, plan: ())
    monkeypatch.setattr("mrc.testbed.schedule.run_faults", run)
    words = ["testbed", "run", "faults.toml", "--until", "50ms", "--faults-only"]
    assert testbed_run.run(build_parser(["testbed"]).parse_args(words)) == 0
    assert ended == [False, True]


class FakeBed:
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
    monkeypatch.setattr("mrc.testbed.bed.existing", lambda name: FakeBed())
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
    monkeypatch.setattr("mrc.testbed.bed.existing", lambda name: FakeBed())
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
    assert "mrc.workload.cli" in modules
    assert not {"mrc.workload.compare", "mrc._sim", "mrc._core", "numpy", "rich"} & modules
    options = {"mrc.sim.cli", "mrc.sim.cli.arguments", "mrc.sim.results"}
    running = {name for name in modules if name.startswith(("mrc.sim.", "mrc.workload.run"))}
    assert not running - options
