# SPDX-License-Identifier: Apache-2.0
"""What all benchmarks share: options, rounds, results, figures, and the programs of contenders."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import figures
import peers
import program
import pytest
from bed import BenchError, last_words, start_once, stop, until, wait_for, words_of
from benchmark import EARLIER, Benchmark, run_rounds
from faults import _first_traffic
from figures import Check
from program import Option, only, repeats, within
from streams import Contender


def bench(**more: Any) -> Benchmark:
    return Benchmark(
        "some",
        "Measures something.",
        "examples:",
        measure=lambda args: {"value": args.repeats},
        lines=lambda result: [f"{result['value']} rounds"],
        options=(
            repeats(5),
            Option("share", 0.5, "a share", kind=within(float, 0, 1, ": more makes no sense")),
            Option("rates", (1, 2), "rates", kind=int, quick=(7,)),
            only(("a", "b"), "one", quick=("b",)),
            Option("deep-look", False, "a flag"),
            EARLIER,
        ),
        **more,
    )


def code_of(benchmark: Benchmark) -> object:
    with pytest.raises(SystemExit) as caught:
        benchmark.main()
    return caught.value.code


def parse(monkeypatch: pytest.MonkeyPatch, *words: str) -> argparse.Namespace:
    monkeypatch.setattr(sys, "argv", ["some", *words])
    return bench().parse()


def test_parse__defaults_quick_values_and_what_the_user_gives(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    usual = parse(monkeypatch)
    assert (usual.repeats, usual.share, usual.rates, usual.only) == (5, 0.5, (1, 2), ())
    assert not usual.deep_look and usual.json is None
    quick = parse(monkeypatch, "--quick")
    assert (quick.repeats, quick.share, quick.rates, quick.only) == (1, 0.5, (7,), ("b",))
    given = parse(monkeypatch, "--quick", "--only", "a", "--only", "b", "--rates", "3", "4",
                  "--deep-look", "--repeats", "2", "--json")  # fmt: skip
    assert (given.repeats, given.rates, given.only) == (2, [3, 4], ["a", "b"])
    assert given.deep_look and given.json == "-"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--repeats", "0"], "--repeats: must be at least 1"),
        (["--share", "1.5"], "--share: must be 0 to 1: more makes no sense"),
        (["--only", "c"], "--only: "),
    ],
)
def test_parse__wrong_values_end_the_program(
    words: list[str],
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit, match="2"):
        parse(monkeypatch, *words)
    assert said in capsys.readouterr().err


def test_help__names_defaults_and_choices(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="0"):
        parse(monkeypatch, "--help")
    text = " ".join(capsys.readouterr().out.split())
    for words in ("--repeats N measured rounds [5]", "--rates N [N ...] rates [1 2]",
                  "measure only this one; may be repeated: a; b"):  # fmt: skip
        assert words in text


def test_main__shows_an_earlier_result(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """As text, JSON and picture. Checks that are not judged have an exit code."""
    earlier, again = (tmp_path / name for name in ("run.json", "again.json"))
    earlier.write_text(json.dumps({"value": 3}))
    whole = bench(picture=lambda result: "<svg/>")
    words = ["--from", str(earlier), "--json", str(again)]
    monkeypatch.setattr(sys, "argv", ["some", *words, "--picture", str(tmp_path / "drawn")])
    assert code_of(whole) == 0
    assert capsys.readouterr().out == "3 rounds\n"
    assert json.loads(again.read_text()) == {"value": 3}
    assert "prefers-color-scheme:dark" in (tmp_path / "drawn.svg").read_text()

    monkeypatch.setattr(sys, "argv", ["some", "--from", str(earlier), "--json"])
    assert code_of(bench(not_judged=lambda result: f"no {result['value']}")) == 77
    shown = capsys.readouterr()
    assert json.loads(shown.out) == {"value": 3} and shown.err == "bench: no 3\n"


def test_main__missing_programs_end_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("benchmark.require_root", lambda: None)
    monkeypatch.setattr(sys, "argv", ["some"])
    assert code_of(bench(missing=lambda: "X is not installed: apt-get install x")) == 1
    assert capsys.readouterr().err == "bench: X is not installed: apt-get install x\n"

    def fails() -> str:
        raise KeyError("x")

    assert code_of(bench(missing=fails, failures={KeyError: 5})) == 5


def test_run_rounds__interleaves_and_leaves_out_the_warm_up() -> None:
    calls: list[str] = []

    def row(name: str) -> int:
        calls.append(name)
        return len(calls)

    rows = {name: lambda name=name: row(name) for name in "ab"}
    assert run_rounds(rows, 2, warm_up=True) == ({"a": [3, 5], "b": [4, 6]}, {})
    assert calls == ["a", "b"] * 3


def test_run_rounds__a_peer_that_fails_ends_its_row_only() -> None:
    def fails() -> int:
        raise BenchError("no answer")

    found = run_rounds({"mrc": lambda: 1, "UCX": fails}, 2, warm_up=False, peers=["UCX"])
    assert found == ({"mrc": [1, 1]}, {"UCX": "no answer"})
    with pytest.raises(BenchError, match="mrc: no answer"):
        run_rounds({"mrc": fails}, 2, warm_up=False, peers=["UCX"])


BENCH = Path(__file__).resolve().parents[3] / "bench"


def test_program__its_ends_start_as_an_installed_mrc_does() -> None:
    """Python may keep the compiled modules, whatever the environment says."""
    code = "import os, program; print(os.environ.get('PYTHONDONTWRITEBYTECODE'))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": str(BENCH), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "None\n"


# ---- figures -------------------------------------------------------------------------------------


def test_ratios__round_by_round() -> None:
    ours, theirs = ([{"a": value} for value in values] for values in ((4, 9), (2, 3)))
    assert figures.ratios(ours, theirs, "a") == [2, 3]
    assert figures.spreads(ours)["a"] == {"median": 6.5, "min": 4, "max": 9, "rounds": [4, 9]}


def test_told__the_median_of_the_runs_counts() -> None:
    def runs(*values: float) -> list[list[Check]]:
        return [[Check("share", value, ">=", 0.97)] for value in values]

    (check,) = figures.told(runs(0.99, 0.5, 0.98))
    assert check == {"name": "share", "value": 0.98, "relation": ">=", "target": 0.97, "met": True,
                     "smallest": 0.5, "largest": 0.99}  # fmt: skip
    assert not figures.told(runs(0.9, 0.96, 1.0))[0]["met"]


def test_checks_table__says_what_is_not_met() -> None:
    met, missed = Check("a", 0.9, ">=", 0.9).encode(), Check("b", 2.0, "<=", 0.5).encode()
    assert figures.checks_table([met, missed]).splitlines() == [
        "check  median  target",
        "a      0.9     >= 0.9  met",
        "b      2       <= 0.5  NOT MET",
    ]
    spread = [{**check, "smallest": 0.1, "largest": 3} for check in (met, missed)]
    assert figures.checks_table(spread, "busy").splitlines()[1:] == [
        "a      0.9     0.1 - 3    >= 0.9  met",
        "b      2       0.1 - 3    <= 0.5  not judged",
    ]


def test_aligned__numbers_end_below_each_other() -> None:
    assert figures.aligned(("", "Gbit/s"), [("mrc", "12.5"), ("UDP floor", 9)]).splitlines() == [
        "           Gbit/s",
        "mrc          12.5",
        "UDP floor       9",
    ]


# ---- programs of contenders, here without a bed --------------------------------------------------


class Here:
    """In place of a bed: commands run as they are."""

    def command(self, host: int, argv: list[str]) -> tuple[list[str], dict[str, str]]:
        return argv, dict(os.environ)


def started(code: str) -> Any:
    return start_once(Here(), 0, [sys.executable, "-c", code])


def test_start_once__stdin_is_a_terminal_wherever_the_benchmark_runs() -> None:
    """Also where stdin is closed, as for a job of cron. Otherwise the ucx_perftest of Debian 13
    expects mpirun.
    """
    before = os.dup(0)
    os.close(0)
    try:
        printed = wait_for(started("import os; print(os.isatty(0))")).output
    finally:
        os.dup2(before, 0)
        os.close(before)
    assert printed == "True\n"


def test_words_of__a_program_that_ends_at_once() -> None:
    process = started("raise SystemExit('cannot run here')")
    process.wait()
    assert words_of(process) == "cannot run here"
    with started("import time; time.sleep(600)") as running:
        assert words_of(running) == ""
        stop(running)


def test_until__sees_what_came_with_the_end() -> None:
    came: list[str] = []

    def words() -> str:
        came.append("ended with exit code 0")
        return came[0]

    until(lambda: came, words, "late")
    with pytest.raises(BenchError, match="ended with exit code 0"):
        until(lambda: False, words, "late")


def test_wait_for__raises_the_last_words() -> None:
    with pytest.raises(BenchError, match=r"^cannot run here$"):
        wait_for(started("raise SystemExit('cannot run here')"))


def test_last_words__rulers_say_nothing() -> None:
    assert last_words("one\ncannot run: two \n-----\n\n", 1) == "cannot run: two"
    assert last_words("-----\n", 3) == "ended with exit code 3"


def test_result_of__output_without_a_result() -> None:
    sent: Any = SimpleNamespace(output="error - no route\n")
    with pytest.raises(BenchError, match="printed no result: error - no route"):  # noqa: SIM117
        with peers.result_of(sent):
            [].pop()


def test_first_traffic__an_end_that_ends_before_says_why() -> None:
    """Instead of a wait for traffic that cannot come."""

    class Ended(Contender):
        def words(self) -> str:
            return "cannot run here"

        def start(self, *_: object) -> None: ...
        def finish(self) -> Any: ...

    bed: Any = SimpleNamespace(sent_bytes=lambda: [0])
    with pytest.raises(BenchError, match="cannot run here"):
        _first_traffic(Ended(bed))


def test_python__both_faces_of_mrc_and_streams(tmp_path: Path) -> None:
    rows = ["mrc, asyncio", "mrc, blocking", "TCP streams, asyncio"]
    words = [word for row in rows for word in ("--only", row)]
    argv = [sys.executable, str(program.ROOT / "bench" / "python"), "--quick", *words]
    done = subprocess.run(
        [*argv, "--window", "64", "--json", str(tmp_path / "x.json")],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    found = json.loads((tmp_path / "x.json").read_text())["rows"]
    assert [each["row"] for each in found] == rows
    assert all(each["rounds"][0]["messages_per_second"] > 0 for each in found)
    assert all(row in done.stdout for row in rows)
