# SPDX-License-Identifier: Apache-2.0
"""Results as CSV."""

from __future__ import annotations

import argparse
from dataclasses import dataclass

import pytest

from mrc.cli.output import Output, UsageError, csv_text
from mrc.enums import EvState
from mrc.perf.results import Latency


@dataclass
class Row:
    name: str
    latency: Latency | None
    good: bool
    state: EvState
    planes: tuple[int, ...] = (1, 2)


def test_csv_text__objects_become_columns_and_lists_do_not() -> None:
    rows = [
        Row('a "b", c', Latency(1, 2, 3, 4, 5, 6, 7), True, EvState.GOOD),
        Row("x\x1b[2J\ny", None, False, EvState.SKIP),
    ]
    head, first, second = csv_text(rows).split("\n")
    assert head == (
        "name,latency.count,latency.min_ns,latency.mean_ns,latency.p50_ns,latency.p99_ns,"
        "latency.p999_ns,latency.max_ns,good,state"
    )
    assert first == '"a ""b"", c",1,2,3,4,5,6,7,true,GOOD'
    assert second.endswith(",,,,,,,,false,SKIP") and "\x1b" not in second


def test_csv_text__a_key_may_begin_another() -> None:
    rows = [{"transport.spray": 1, "transport": "mrc"}]
    assert csv_text(rows) == "transport.spray,transport\n1,mrc"


def test_output__csv_and_json_exclude_each_other(capsys: pytest.CaptureFixture[str]) -> None:
    args = argparse.Namespace(prog="mrc perf", json=True, csv=True, quiet=False)
    with pytest.raises(UsageError, match="--csv and --json: use only one of them"):
        Output.of(args)
    args.json = False
    out = Output.of(args)
    out.text("for people")
    out.rows([{"a": 1}])
    assert capsys.readouterr().out == "a\n1\n"
