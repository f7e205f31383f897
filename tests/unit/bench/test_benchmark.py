# SPDX-License-Identifier: Apache-2.0
"""The options, the rounds and the result that all benchmarks share."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from benchmark import EARLIER, Benchmark, run_rounds
from end import BenchError
from options import Option, only, repeats, within


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
    """As text, JSON, page and picture. `judge` decides the exit code."""
    earlier, again, page = (tmp_path / name for name in ("run.json", "again.json", "run.html"))
    earlier.write_text(json.dumps({"value": 3}))
    whole = bench(page=("plot", lambda result: "a page"), picture=lambda result: "<svg/>")
    words = ["--from", str(earlier), "--json", str(again), "--plot", str(page)]
    monkeypatch.setattr(sys, "argv", ["some", *words, "--picture", str(tmp_path / "drawn")])
    assert code_of(whole) == 0
    assert capsys.readouterr().out == "3 rounds\n"
    assert json.loads(again.read_text()) == {"value": 3}
    assert page.read_text() == "a page"
    assert "prefers-color-scheme:dark" in (tmp_path / "drawn.svg").read_text()

    def judge(result: dict[str, Any]) -> None:
        raise KeyError(result["value"])

    monkeypatch.setattr(sys, "argv", ["some", "--from", str(earlier), "--json"])
    assert code_of(bench(judge=judge, failures={KeyError: 77})) == 77
    assert json.loads(capsys.readouterr().out) == {"value": 3}


def test_main__missing_programs_end_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("benchmark.require_root", lambda: None)
    monkeypatch.setattr(sys, "argv", ["some"])
    assert code_of(bench(missing=lambda: "X is not installed: apt-get install x")) == 1
    assert capsys.readouterr().err == "bench: X is not installed: apt-get install x\n"


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
