# SPDX-License-Identifier: Apache-2.0
"""`mrc schema`: prints the JSON Schema of a command's output."""

from __future__ import annotations

import argparse
import json

from mrc.cli.exits import Exit, UsageError
from mrc.results.schemas import commands, schema

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
