# SPDX-License-Identifier: Apache-2.0
"""The published schemas: they are complete and valid. mrc/cli/README.md: the commands of its plots
parse, and the keys in them exist.
"""

from __future__ import annotations

import argparse
import ast
import json
import math
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import walls
from jsonschema import Draft202012Validator, ValidationError
from msgspec import Struct
from printed import printed
from project_text import ROOT

from mrc import products
from mrc.cli.main import build_parser, main
from mrc.cli.output import Output, UsageError, csv_text
from mrc.cli.paths import Probe, ProbedEv
from mrc.cli.schema import commands, schema
from mrc.enums import EvState
from mrc.events import EvInfo
from mrc.perf.results import Latency
from mrc.results import Failure, like, plain

COMMANDS = commands()
TESTS = Path(__file__).parents[2]
FAILURE = json.dumps({"result": "Failure", "schema": 1, "error": "no such file", "exit_code": 1})
EV = EvInfo(
    index=0, ev=7, plane=1, path="t1:1.0", destination="fd00::1", usids=("0101",), segments=(),
    state=EvState.ASSUMED_BAD, active=True, sent_packets=1, sent_bytes=2, lost_packets=3,
    sent_probes=4, rtt_ns=None,
)  # fmt: skip


def json_commands(parser: argparse.ArgumentParser, words: str = "") -> Iterator[str]:
    """Every command and action that takes --json."""
    nested = [each for each in parser._actions if isinstance(each, argparse._SubParsersAction)]
    for each in nested:
        for word, inner in each.choices.items():
            yield from json_commands(inner, f"{words} {word}".strip())
    options = {option for action in parser._actions for option in action.option_strings}
    if "--json" in options and not nested:
        yield words


def test_schemas__of_every_command_that_prints_json() -> None:
    assert {name for name in COMMANDS if "--" not in name} == set(json_commands(build_parser()))


@pytest.mark.parametrize("command", COMMANDS)
def test_schema__is_valid_and_explains_every_key(command: str) -> None:
    found = schema(command)
    Draft202012Validator.check_schema(found)
    assert found["title"] == f"mrc {command}"
    for name, part in found["$defs"].items():
        for key, value in part.get("properties", {}).items():
            assert value.get("description"), f"{name}.{key}"
            assert "None" not in value["description"], f"{name}.{key}"
        assert part.get("required", []) == list(part.get("properties", {})), name


@walls.needs("beds", "programs", "judge", "lab")
@pytest.mark.parametrize("command", COMMANDS)
def test_schema__a_test_holds_the_command_against_it(command: str) -> None:
    call = f'printed("{command}"'
    texts = (path.read_text() for path in TESTS.rglob("test_*.py"))
    said = 'printed(f"testbed {action}"' if command.startswith("testbed ") else call
    assert any(call in text or said in text for text in texts)


@pytest.mark.parametrize("command", COMMANDS)
def test_schema__a_failure_is_allowed_and_nothing_else(command: str) -> None:
    assert printed(command, FAILURE)["exit_code"] == 1
    for wrong in ("{}", FAILURE.replace("1}", '"1"}'), FAILURE.replace("}", ', "more": 1}')):
        with pytest.raises(ValidationError):
            printed(command, wrong)


def test_schema__names_of_states() -> None:
    states = schema("paths")["$defs"]["ProbedEv"]["properties"]["state"]["enum"]
    assert set(states) == {*EvState.__members__, "NO_ANSWER"}


def test_command__lists_and_prints(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["schema"]) == 0
    assert capsys.readouterr().out.splitlines() == list(COMMANDS)
    assert main(["schema", "paths"]) == 0
    assert json.loads(capsys.readouterr().out) == schema("paths")
    assert main(["schema", "perf", "--server"]) == 0
    assert json.loads(capsys.readouterr().out) == schema("perf --server")


def test_command__of_no_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["schema", "testbed", "shell"]) == 2
    assert "no schema for 'testbed shell'; mrc schema lists the commands" in capsys.readouterr().err


# ---- Results as plain data ------------------------------------------------------------------


def test_plain__names_arrays_and_null() -> None:
    probed = like(ProbedEv, EV, probe=Probe(answered=False, rtt_ns=None, ce=None), quality=None)
    found: dict[str, Any] = plain(probed)
    assert json.loads(json.dumps(found)) == found
    assert (found["state"], found["usids"], found["rtt_ns"]) == ("ASSUMED_BAD", ["0101"], None)
    assert found["probe"] == {"answered": False, "rtt_ns": None, "ce": None}
    assert plain({1: math.pi}) == {"1": math.pi}


def test_like__takes_what_is_shared_and_misses_nothing() -> None:
    assert like(EvInfo, EV, plane=2).plane == 2
    with pytest.raises(TypeError, match="probe"):
        like(ProbedEv, EV)
    told = {"result": "Failure", "schema": 1, "error": "x", "exit_code": 2}
    assert Failure(error="x", exit_code=2).to_dict() == told


# ---- The README ----------------------------------------------------------------------------------


PLOTS = re.findall(
    r"^# mrc (.*) > (\S+): .*\n((?:[^#\n`].*\n)+)",
    (ROOT / "mrc/cli/README.md").read_text(),
    re.MULTILINE,
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
    assert len(tree.body) <= 3
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


# ---- CSV -----------------------------------------------------------------------------------------


class Row(Struct, frozen=True):
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
