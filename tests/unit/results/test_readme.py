# SPDX-License-Identifier: Apache-2.0
"""The README of the results: the commands of its plots parse, and the keys in them exist."""

from __future__ import annotations

import ast
import json
import re
import shlex

import pytest
from project_text import ROOT

from mrc import products
from mrc.cli.main import build_parser
from mrc.results.schemas import schema

PLOTS = re.findall(
    r"from `mrc ([^>`]*) > (\S+)`:\n\n<!--[^\n]*\n```python\n(.*?)```",
    (ROOT / "mrc/results/README.md").read_text(),
    re.DOTALL,
)
IN_CSV = {  # columns that no JSON has; tests of --csv read them
    "perf": {"end", "latency.p50_ns", "latency.p99_ns"},
    "sim": {"seed", "check", "value"},
}


def test_plots__there_are_some() -> None:
    assert [name for _, name, _ in PLOTS] == ["perf.json", "bins.json", "sweep.csv", "seeds.csv"]


@pytest.mark.parametrize(
    ("command", "name", "program"),
    [each for each in PLOTS if each[0].split()[0] in products.commands()],
)
def test_plot__command_and_keys_exist(command: str, name: str, program: str) -> None:
    args = build_parser().parse_args(shlex.split(command))
    assert args.csv if name.endswith(".csv") else args.json
    known = set(re.findall(r"\w+", json.dumps(schema("perf")))) | IN_CSV[args.command]
    tree = ast.parse(program)
    assert len(tree.body) <= 5
    reads = [node for node in ast.walk(tree) if isinstance(node, ast.Subscript)]
    keys = {
        key.value
        for node in reads
        for key in ast.walk(node.slice)
        if isinstance(key, ast.Constant) and isinstance(key.value, str)
    }
    keys |= {
        word.value.value
        for word in ast.walk(tree)
        if isinstance(word, ast.keyword)
        and word.arg in ("x", "y", "index", "columns", "values")
        and isinstance(word.value, ast.Constant)
        and isinstance(word.value.value, str)
    }
    assert keys and keys <= known
    assert f'"{name}"' in program
