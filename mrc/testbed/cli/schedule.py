# SPDX-License-Identifier: Apache-2.0
"""Faults that a file schedules, beside a command: `mrc testbed exec --schedule`."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Sequence

from mrc.children import tied
from mrc.cli.ending import Ending
from mrc.cli.output import Output, format_seconds
from mrc.testbed import schedule
from mrc.testbed.bed import Testbed
from mrc.testbed.schedule import Event
from mrc.units import counted

_LATE_SECONDS = 0.05  # a change takes less, on a machine that is not too busy


class Lateness:
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
                f"late: {len(self._late)} of {counted(self._changes, 'change')}, the worst by "
                f"{format_seconds(max(self._late))}: this machine is too busy for this schedule"
            )


def run_beside(
    bed: Testbed, path: str, argv: Sequence[str], environment: dict[str, str], prog: str
) -> int:
    """Runs a command, and the scheduled faults until it ends; returns its exit code."""
    out = Output(prog, as_json=False, quiet=False)
    scheduled, late = schedule.load(path, bed.plan), Lateness(out)
    bed.connect()
    words = tied(argv, apart=False)
    with Ending() as ending, subprocess.Popen(words, env=environment) as process:
        child = os.pidfd_open(process.pid)
        try:
            schedule.run(
                bed,
                scheduled,
                lambda until: ending.wait(until, child),
                late.counted(lambda event, seconds: out.note(line(event, seconds))),
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


def line(event: Event, seconds: float) -> str:
    what = "healed" if event.fault is None else f"fails: {event.fault}"
    return f"{seconds:9.4f} s  {event.target} {what}"
