# SPDX-License-Identifier: Apache-2.0
"""A benchmark: its options, its run, its result as JSON, text and picture.

All programs of this folder are one. A program declares what differs: contenders, rows and checks.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from textwrap import fill
from typing import Any, NoReturn, TypeVar

import program
from bed import HOSTS, BenchError, core, require_root
from program import Option

from mrc.cli.output import Exit
from mrc.errors import MrcError
from mrc.linux import netns
from mrc.sim import drawing
from mrc.testbed import rootless

Result = dict[str, Any]
Row = TypeVar("Row", str, tuple[str, int])
Found = TypeVar("Found")

QUICK = "one short round, without a warm-up: tests the benchmark, not the speed"
NOT_JUDGED = 77  # what test programs return to be counted as skipped
_NOTES = (
    "an idle machine with two or more cores; other load changes the results."
    " A check that is not met is printed, but is not a failure."
)
EARLIER = Option("from", None, "measure nothing: show the results in this JSON file",
                 "FILE", kind=Path)  # fmt: skip


@dataclass(frozen=True)
class Benchmark:
    """One program. `measure` returns its part of the result, `lines` shows a result as text."""

    name: str
    about: str | None
    examples: str
    measure: Callable[[argparse.Namespace], Result]
    lines: Callable[[Result], Iterable[str]]
    options: Sequence[Option] = ()
    quick: str = QUICK  # help of --quick
    picture: Callable[[Result], str] | None = None  # SVG
    inputs: str = ""  # help of the arguments that are files
    ordinary: bool = False  # whether ordinary users can run it, in a user namespace
    needs: str = ""  # other programs that it requires
    remark: str = ""  # about its checks
    exits: str = ""  # further exit codes
    missing: Callable[[], str] = str  # which program is not installed; empty: none
    indent: int | None = 2  # of the JSON
    not_judged: Callable[[Result], str] = lambda result: ""  # why; empty: all checks are
    failures: Mapping[type[Exception], int] = field(default_factory=dict)

    def main(self) -> NoReturn:
        codes: dict[type[Exception], int] = {
            **self.failures,
            **dict.fromkeys((BenchError, MrcError, OSError), Exit.FAILED),
        }
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
        try:
            self._run()
        except tuple(codes) as error:
            print(f"bench: {error}", file=sys.stderr)
            sys.exit(next(code for kind, code in codes.items() if isinstance(error, kind)))
        except KeyboardInterrupt:
            sys.exit(Exit.INTERRUPTED)
        sys.exit(Exit.OK)

    def parse(self) -> argparse.Namespace:
        about = (self.about or "").partition("\n")[0]
        root = "root or user namespaces" if self.ordinary else "root"
        needs = f"{root}, {self.needs}" if self.needs else root
        text = f"Requires {needs}, and {_NOTES} {self.remark}"
        codes = f"0 measured, 1 failed, 2 wrong usage, {self.exits}130 interrupted"
        end = f"{self.examples}\n{fill(text, 100)}\nExit codes: {codes}."
        parser = program.parser(f"bench/{self.name}", about, end)
        add = parser.add_argument
        if self.inputs:
            add("files", nargs="*", metavar="FILE", help=self.inputs)
        add("--json", nargs="?", const="-", metavar="FILE",
            help="write the result as JSON; - or nothing for stdout, without tables")  # fmt: skip
        if self.picture:
            add("--picture", type=Path, metavar="STEM", help="write STEM.svg, for both themes")
        add("--quick", action="store_true", help=self.quick)
        return program.parse(parser, self.options)

    def _run(self) -> None:
        args, started = self.parse(), time.monotonic()
        if earlier := vars(args).get("from"):
            result = json.loads(earlier.read_text())
        else:
            result = self._measured(args)
        self._show(args, result)
        if words := self.not_judged(result):
            print(f"bench: {words}", file=sys.stderr)
            sys.exit(NOT_JUDGED)
        program.note(f"{time.monotonic() - started:.0f} s")

    def _measured(self, args: argparse.Namespace) -> Result:
        if self.ordinary and netns.lacks():
            argv = rootless.command([sys.executable, *sys.argv])
            os.execvp(argv[0], argv)
        require_root()
        if missing := self.missing():
            raise BenchError(missing)
        where = machine()
        found = self.measure(args)
        return {
            "schema": 1,
            "commit": program.git("describe", "--always", "--dirty") or "unknown",
            "ended": datetime.now(UTC).isoformat(timespec="seconds"),
            "command": " ".join([f"bench/{self.name}", *sys.argv[1:]]),
            "machine": where,
            **found,
        }

    def _show(self, args: argparse.Namespace, result: Result) -> None:
        if args.json == "-":
            print(json.dumps(result))
        else:
            print("\n".join(self.lines(result)))
            for name, why in result.get("skipped", {}).items():
                print(f"left out: {name}: {why}")
            if args.json:
                Path(args.json).write_text(json.dumps(result, indent=self.indent) + "\n")
        if self.picture and args.picture:
            path = args.picture.with_name(f"{args.picture.name}.svg")
            path.write_text(drawing.standalone(self.picture(result)))


@contextmanager
def unless_failed(row: Row, peers: Iterable[Row], failed: dict[Row, str]) -> Iterator[None]:
    """A peer that fails is left out: `failed` gets its words. Others end the benchmark."""
    try:
        yield
    except BenchError as error:
        if row not in peers:
            name = row if isinstance(row, str) else ", ".join(map(str, row))
            raise BenchError(f"{name}: {error}") from error
        failed[row] = str(error)


def run_rounds(
    rows: Mapping[Row, Callable[[], Found]],
    repeats: int,
    *,
    warm_up: bool,
    where: str = "",
    peers: Iterable[Row] = (),
    brief: Callable[[Row, Found], str] | None = None,
) -> tuple[dict[Row, list[Found]], dict[Row, str]]:
    """Runs every row once a round, so that a slow moment of the machine affects adjacent rows. A
    warm-up is a round before the others, which does not count.

    Returns what the rows found, and why rows of `peers` are missing. `brief` describes what a row
    found, `where` all of them.
    """
    found: dict[Row, list[Found]] = {row: [] for row in rows}
    failed: dict[Row, str] = {}
    for number in range(0 if warm_up else 1, repeats + 1):
        if not brief:
            program.note(f"{where}round {number} of {repeats}")
        for row, measure in rows.items():
            if row in failed:
                continue
            with unless_failed(row, peers, failed):
                each = measure()
                if number > 0:
                    found[row].append(each)
                if brief:
                    program.note(f"{where}round {number}: {brief(row, each)}")
    return {row: each for row, each in found.items() if each}, failed


# ---- the machine ---------------------------------------------------------------------------------

_SYSCTLS = ("net/core/rmem_max", "net/core/wmem_max", "net/ipv4/tcp_rmem", "net/ipv4/tcp_wmem")


def machine() -> dict[str, Any]:
    """The properties of this machine that affect the results."""
    cpu = Path("/proc/cpuinfo").read_text().split("model name", 1)[-1].split("\n", 1)[0]
    policy = {0: "other", 1: "fifo", 2: "rr"}.get(os.sched_getscheduler(0), "?")
    return {
        "kernel": platform.release(),
        "cpu": cpu.strip(" \t:"),
        "cores": os.cpu_count(),
        "pinned": {f"h{host}": core(host) for host in HOSTS},
        "scheduler": policy,
        "load_at_start": list(os.getloadavg()),
        "python": platform.python_version(),
        "sysctls": {name: Path("/proc/sys", name).read_text().strip() for name in _SYSCTLS},
    }
