# SPDX-License-Identifier: Apache-2.0
"""`mrc testbed import` on the command line."""

from __future__ import annotations

from pathlib import Path

import pytest
import topology_plans
import yaml
from printed import printed

from mrc.cli.main import main
from mrc.lab import ocdai


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    path = tmp_path / "topology-map.yaml"
    path.write_text(yaml.safe_dump(topology_plans.plan()))
    return path


def typed(*words: object) -> int:
    return main(["testbed", "import", *map(str, words)])


def test_import__what_plan_reads(plan: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wrote = plan.with_name("small.toml")
    assert typed(plan, "--output", wrote) == 0
    first, *_, last = capsys.readouterr().out.splitlines()
    assert first == f"wrote {wrote}: 16 hosts, 2 planes of 4 T0s and 2 T1s"
    assert last == f"show it with: mrc testbed plan {wrote}"
    assert main(["testbed", "plan", str(wrote)]) == 0
    assert "uplinks 2.4 Tbit/s" in capsys.readouterr().out
    assert typed(plan) == 0
    assert capsys.readouterr().out == wrote.read_text()


def test_import__json(plan: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wrote = plan.with_name("small.toml")
    assert typed(plan, "--output", wrote, "--fabrics", "back-b", "--json") == 2
    assert "no NIC is connected to back-b" in capsys.readouterr().out
    assert typed(plan, "--output", wrote, "--fabrics", "back-b,back-a", "--json") == 0
    told = printed("testbed import", capsys.readouterr().out)
    assert (told["hosts"], told["planes"], told["t0"], told["t1"]) == (16, 2, 4, 2)
    assert told["notes"][-1] == "left out: fe of compute (front)"


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("a: [1,", "not YAML: line 1: "),
        ("\0", "not YAML: "),
        ("a: " + "9" * 5000, "not YAML: a number has too many digits"),
        ("a: 9999-99-99", "not YAML: "),
        ("a: " + "[" * 3000 + "]" * 3000, "not YAML: is nested too deeply"),
        ("a: 1\n" * (1 << 18), "has more than 1 MiB"),
        ("", "must be a table, not nothing"),
        ("a: &a [*a]", "switch_classes: is missing"),
    ],
)
def test_import__a_wrong_file_is_one_line(
    text: str, complaint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "x.yaml"
    path.write_text(text)
    assert typed(path) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"mrc testbed import: {path}: ") and complaint in line


def test_import__wrong_use_is_one_line(
    plan: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert typed(plan, "--json") == 2
    assert typed("no/such") == 2
    assert typed(plan, "--output", "/proc/no/x") == 1
    monkeypatch.setattr(ocdai, "find_spec", lambda _: None)
    assert typed(plan) == 2
    told = capsys.readouterr()
    assert "--json requires --output" in told.out + told.err
    assert "no/such: No such file" in told.err and "/proc/no/x: " in told.err
    assert "pip install 'mrc-transport[yaml]'" in told.err
