# SPDX-License-Identifier: Apache-2.0
"""`mrc schema`: prints the JSON Schema of a command's output, made from the declared types of its
results.
"""

from __future__ import annotations

import argparse
import ast
import json
from collections.abc import Iterable, Iterator
from enum import IntEnum
from importlib import import_module
from inspect import getsource
from itertools import pairwise
from textwrap import dedent
from typing import Any

import msgspec
from msgspec import inspect

from mrc import products
from mrc.cli.output import Exit, UsageError
from mrc.results import Failure

DIALECT = "https://json-schema.org/draft/2020-12/schema"

COMMANDS: dict[str, tuple[str, ...]] = {
    "send": ("transfer.results.Transfer",),
    "recv": ("transfer.results.Transfer",),
    "perf": ("perf.results.Perf", "perf.results.PerfFailed"),
    "perf --server": ("perf.results.PerfServed",),
    "perf --json-stream": (
        "perf.results.StartEvent", "perf.results.IntervalEvent", "perf.results.TestEvent",
        "perf.results.EndEvent",
    ),
    "paths": ("cli.paths.Paths",),
    "top": ("cli.top.Top", "view.feed.PageAddress"),
    "key": ("cli.key.KeyFile",),
    "dissect": ("dissect.cli.Dissected",),
    "dissect --readings": ("conform.report.ReadingCounts",),
    "testbed plan": ("testbed.results.Planned", "testbed.results.Topologies"),
    "testbed export": ("lab.export.Export",),
    "testbed import": ("lab.ocdai.ImportedTopology",),
    "testbed join": ("lab.export.HostSetup",),
    "testbed up": ("testbed.results.Built",),
    "testbed down": ("testbed.results.Removed",),
    "testbed status": ("testbed.results.Status", "testbed.results.NotUp"),
    "testbed view": ("view.feed.PageAddress",),
    "testbed capture": ("testbed.capture.Captured",),
    "testbed fail": ("testbed.results.Injection",),
    "testbed run": ("testbed.schedule.Scheduled",),
    "testbed run --over": ("sim.compare.Workload",),
    "testbed heal": ("testbed.results.Healed",),
    "testbed drain": ("testbed.results.Drained",),
    "testbed undrain": ("testbed.results.Drained",),
    "demo": ("demo.cli.Demo",),
    "lab": ("lab.cli.Lessons", "lab.cli.Lesson"),
    "sim list": ("sim.results.Scenarios",),
    "sim run": ("sim.results.Experiment",),
    "sim report": ("sim.results.Report",),
    "sim sweep": ("sim.results.Sweep",),
    "conform run": ("conform.report.Conformance",),
    "conform list": ("conform.case.Cases",),
    "conform show": ("conform.case.Cases",),
    "conform readings": ("conform.readings.Readings",),
    "conform vectors": ("conform.exchanges.Vectors",),
    "conform judge": ("conform.report.CaptureReport",),
    "doctor": ("doctor.Doctor",),
    "agent": ("agent.socket.AgentProfiles",),
}  # fmt: skip
"""The results of each command, by their place in `mrc`. Every command may print a Failure
instead."""


def commands() -> tuple[str, ...]:
    """The commands that print JSON, of the products that are in this tree."""
    return tuple(name for name in COMMANDS if _places(name))


def _places(command: str) -> list[str]:
    """The places of a command's results that are in this tree."""
    return [place for place in COMMANDS[command] if products.has(f"mrc.{place.rpartition('.')[0]}")]


def schema(command: str) -> dict[str, Any]:
    """The JSON Schema of one object that `mrc COMMAND --json` prints; KeyError for another name."""
    kinds = [*map(_result, _places(command)), Failure]
    references, parts = msgspec.json.schema_components(kinds, ref_template="#/$defs/{name}")
    for kind in _within(inspect.multi_type_info(kinds)):
        _complete(parts[kind.__name__], kind)
    return {
        "$schema": DIALECT,
        "title": f"mrc {command}",
        "anyOf": list(references),
        "$defs": parts,
    }


def _result(place: str) -> type:
    module, _, name = place.rpartition(".")
    kind: type = getattr(import_module(f"mrc.{module}"), name)
    return kind


def _within(kinds: Iterable[inspect.Type]) -> Iterator[type]:
    """The classes that these types mention, at any depth."""
    for kind in kinds:
        match kind:
            case inspect.StructType(cls=cls, fields=fields):
                yield cls
                yield from _within(field.type for field in fields)
            case inspect.EnumType(cls=cls):
                yield cls
            case inspect.UnionType(types=inner) | inspect.TupleType(item_types=inner):
                yield from _within(inner)
            case inspect.VarTupleType(item_type=item) | inspect.DictType(value_type=item):
                yield from _within((item,))


def _complete(part: dict[str, Any], kind: type) -> None:
    """Adds what msgspec cannot know: names of numbers, that no key is left out, and the docstrings
    of the fields.
    """
    if issubclass(kind, IntEnum):
        part["enum"] = list(kind.__members__)
    elif issubclass(kind, msgspec.Struct):
        part["required"] = list(part["properties"])
        key_of = dict(zip(kind.__struct_fields__, kind.__struct_encode_fields__, strict=True))
        for name, text in _field_texts(kind).items():
            part["properties"][key_of[name]]["description"] = text


def _field_texts(kind: type) -> dict[str, str]:
    """The string below each field of a class and of its bases, on one line. Where there is none,
    that of the class whose fields it shows, `texts_of`.
    """
    texts: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        if not issubclass(base, msgspec.Struct) or not (names := base.__struct_fields__):
            continue
        if shows := vars(base).get("texts_of"):
            texts |= {name: text for name, text in _field_texts(shows).items() if name in names}
        body = ast.parse(dedent(getsource(base))).body[0]
        assert isinstance(body, ast.ClassDef)
        for field, below in pairwise(body.body):
            match field, below:
                case (
                    ast.AnnAssign(target=ast.Name(id=name)),
                    ast.Expr(value=ast.Constant(value=str(text))),
                ):
                    texts[name] = " ".join(text.split()).replace("None", "null")
    return texts


# ---- The command ---------------------------------------------------------------------------------


HELP = "print the JSON Schema of a command's --json output"
EXAMPLES = """\
examples:
  mrc schema                           list the commands that print JSON
  mrc schema perf                      the schema of mrc perf --json
  mrc schema testbed status > status.schema.json
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Prints the JSON Schema (2020-12) of one line of a command's --json output.\n"
        "Without COMMAND it lists the commands that have one."
    )
    parser.add_argument(
        "command_words", nargs=argparse.REMAINDER, metavar="COMMAND",
        help="a command, such as perf, perf --server or testbed status",
    )  # fmt: skip


def run(args: argparse.Namespace) -> int:
    command = " ".join(args.command_words)
    if not command:
        print("\n".join(commands()))
        return Exit.OK
    if command not in commands():
        raise UsageError(args.prog, f"no schema for {command!r}; {args.prog} lists the commands")
    print(json.dumps(schema(command), indent=2))
    return Exit.OK
