# SPDX-License-Identifier: Apache-2.0
"""On the other machines of a test bed: `mrc testbed part` serves theirs; `shell` and `capture`."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Sequence

from msgspec import convert

from mrc.cli.arguments import add
from mrc.cli.output import Output
from mrc.cli.runner import FirstSignal
from mrc.errors import StateError
from mrc.lab import part
from mrc.lab.machines import Machine
from mrc.linux import programs
from mrc.testbed import extras
from mrc.testbed.cli.actions import opened_file, print_captured
from mrc.testbed.cli.main import Action, Needs
from mrc.testbed.results import Captured

PART = """\
Serve the part of a test bed that is on this machine, over stdin and stdout.
mrc testbed starts this on the machines of up --on; nobody has to type it.
"""
PART_OPTIONS = """
--traffic  instead serve mrc testbed run: pass on what the processes in the hosts of this machine
           are told and say
"""


def add_part_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = PART
    add(parser, PART_OPTIONS)


def run_part(args: argparse.Namespace) -> int:
    if args.traffic:
        extras.need("mrc.workload.hosts").serve_relay(args.name)
    else:
        part.serve(args.name, sys.stdin.buffer, sys.stdout.buffer)
    return 0


def forward(machine: Machine, words: Sequence[str]) -> int:
    """Replaces this process by `mrc testbed` on another machine."""
    argv = machine.command(words, terminal=os.isatty(0) and os.isatty(1))
    if programs.find(argv[0]) is None:
        raise StateError(f"{machine.name}: {programs.not_found(argv[0])}")
    return os.execvp(argv[0], argv)


def capture(args: argparse.Namespace, out: Output, machine: Machine) -> int:
    """Captures on another machine of the test bed. The end of its stdin ends it."""
    words = ["capture", "--name", args.name, args.where, "-", "--until-eof"]
    words += ["--snaplen", str(args.snaplen)]
    words += ["--count", str(args.count)] if args.count is not None else []
    words += ["--seconds", str(args.seconds)] if args.seconds is not None else []
    pipe, result = subprocess.PIPE, None
    with (
        FirstSignal() as ending,
        opened_file(args.file) as file,
        subprocess.Popen(
            machine.command(words), bufsize=0, stdin=pipe, stdout=file, stderr=pipe, process_group=0
        ) as process,
    ):
        assert process.stdin is not None and process.stderr is not None
        while True:
            if not process.stdin.closed:
                ending.wait(None, process.stderr.fileno())
            if ending.signum is not None:
                process.stdin.close()
            line = process.stderr.readline().decode(errors="replace").strip()
            if not line:
                break
            said = line.removeprefix(f"{args.prog}: ")
            if said.startswith("{"):
                result = convert(json.loads(said), Captured)
            else:
                out.note(f"{machine.name}: {said}")
        process.stdin.close()
        code = process.wait()
    if result is None:
        return code
    print_captured(out, result)
    return 0


ACTIONS = {"part": Action(run_part, add_part_arguments, Needs.NONE, prints=False)}
