# SPDX-License-Identifier: Apache-2.0
"""`mrc testbed run`, and `exec --schedule`: inject the faults that a file schedules."""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from functools import partial

from mrc.cli.arguments import add
from mrc.cli.ending import Ending
from mrc.cli.exits import UsageError
from mrc.cli.output import Output, format_seconds
from mrc.cli.testbed_fault import fault_result
from mrc.results import testbed as results
from mrc.testbed import schedule, spread
from mrc.testbed.bed import Testbed
from mrc.testbed.schedule import Event, Scheduled

_LATE_SECONDS = 0.05  # a change takes less, on a machine that is not too busy

DESCRIPTION = """\
Inject the faults that a TOML file schedules. Each [[faults]] table has target,
kind, at, until, and every with for, as in a scenario of mrc sim; times count
from the start of this command. It exits when the last fault has ended, at
--until or at SIGINT, and heals the faults that it has injected.
"""
OPTIONS = """
file FILE     TOML file with [[faults]]
--until TIME  heal all faults of the file and exit at this time [when the last fault has ended]
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = DESCRIPTION
    add(parser, OPTIONS)


def run(args: argparse.Namespace) -> int:
    out = Output.of(args)
    bed = spread.existing(args.name)
    scheduled = schedule.load(args.file, bed.plan)
    if args.until is not None:
        _check_until(args, out, scheduled)
    late = _Lateness(out)
    bed.connect()
    with Ending() as ending:
        end = None if args.until is None else time.monotonic() + args.until / 1e9

        def wait(until: float | None) -> bool:
            over = end is not None and (until is None or until >= end)
            return ending.wait(end if over else until) or over

        schedule.run(bed, scheduled, wait, late.counted(partial(_tell, out)))
        ending.check()
        late.tell()
    return 0


def _check_until(args: argparse.Namespace, out: Output, scheduled: Sequence[Scheduled]) -> None:
    """Names the faults that begin only after the end."""
    after = [each for each in scheduled if each.times.at_ns >= args.until]
    named = ", ".join(
        f"{each.target} at {format_seconds(each.times.at_ns / 1e9)}" for each in after
    )
    end = f"--until {format_seconds(args.until / 1e9)}"
    if after and len(after) == len(scheduled):
        raise UsageError(args.prog, f"{end}: every fault of {args.file} begins later: {named}")
    if after:
        out.warn(f"left out, since {end} ends the run before: {named}")


class _Lateness:
    """Counts the changes that came late, and names them as a whole."""

    def __init__(self, out: Output) -> None:
        self._out = out
        self._changes = 0
        self._late: list[float] = []

    def counted(self, told: Callable[[Event, float], None]) -> Callable[[Event, float], None]:
        """As `told`, but also counts."""

        def tell(event: Event, seconds: float) -> None:
            told(event, seconds)
            self._changes += 1
            late = seconds - event.at_ns / 1e9
            if late > _LATE_SECONDS:
                self._late.append(late)

        return tell

    def tell(self) -> None:
        if self._late:
            self._out.warn(
                f"{len(self._late)} of {self._changes} changes were late, the worst by "
                f"{format_seconds(max(self._late))}: this machine is too busy for this schedule"
            )


def run_beside(
    bed: Testbed, path: str, argv: Sequence[str], environment: dict[str, str], prog: str
) -> int:
    """Runs a command, and the scheduled faults until it ends; returns its exit code."""
    out = Output(prog, as_json=False, quiet=False)
    scheduled, late = schedule.load(path, bed.plan), _Lateness(out)
    bed.connect()
    with Ending() as ending, subprocess.Popen(argv, env=environment) as process:
        child = os.pidfd_open(process.pid)
        try:
            schedule.run(
                bed,
                scheduled,
                lambda until: ending.wait(until, child),
                late.counted(lambda event, seconds: out.note(_line(event, seconds))),
            )
            late.tell()
            ending.wait(None, child)
        finally:
            os.close(child)
        # At ^C the terminal itself sends SIGINT to the command.
        if ending.signum and not (ending.signum == signal.SIGINT and os.isatty(0)):
            process.send_signal(ending.signum)
        code = process.wait()
    return code if code >= 0 else 128 - code


def _tell(out: Output, event: Event, seconds: float) -> None:
    out.text(_line(event, seconds))
    target, fault = str(event.target), event.fault
    out.result(
        results.Scheduled(
            event="heal" if fault is None else "fail",
            target=target,
            due_seconds=event.at_ns / 1e9,
            seconds=round(seconds, 6),
            fault=None if fault is None else fault_result(target, fault),
        )
    )


def _line(event: Event, seconds: float) -> str:
    what = "healed" if event.fault is None else f"fails: {event.fault}"
    return f"{seconds:9.4f} s  {event.target} {what}"
