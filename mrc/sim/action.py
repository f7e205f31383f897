# SPDX-License-Identifier: Apache-2.0
"""`mrc testbed run`: injects the faults that a file schedules; of a file with traffic, runs that
too.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from mrc.cli.arguments import add
from mrc.cli.output import Output, UsageError
from mrc.fabric import document
from mrc.sim.options import add_seeds, add_settings
from mrc.sim.task import OVERS, Over
from mrc.testbed import schedule
from mrc.testbed.bed import Testbed
from mrc.testbed.cli.main import Action
from mrc.testbed.signals import FirstSignal
from mrc.units import scaled

DESCRIPTION = """\
Run a scenario of mrc sim on the test bed: its traffic between the hosts, with
its faults at their times. The simulator runs it too, with the rates of the test
bed, and the values of the checks stand side by side. Times of the file become
longer as the links are slower. Exit code 1 if mrc, or the first transport of
--over, misses a target.

Of a file without [[traffic]], inject the [[faults]] only. Each has target, kind,
at, until, and every with for; times count from the start of this command. It
exits when the last fault has ended, at --until or at SIGINT, and heals the
faults that it has injected.
"""
OPTIONS = """
file FILE        built-in scenario, or TOML file with [[traffic]], or with [[faults]] only
--until TIME     heal all faults of the file and exit at this time [when the last fault, or the
                 traffic, has ended]
--faults-only    inject the faults of a file with traffic, without its traffic
"""
TRAFFIC = """
--over LIST      what carries the traffic: mrc, tcp, mptcp, iperf3 (only flows without steps), or
                 several with commas, one run after the other [mrc]
--scale FACTOR   multiply the sizes of writes, and the times, by this, such as 0.1 [1]
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = DESCRIPTION
    add(parser, OPTIONS)
    group = parser.add_argument_group("only with traffic")
    add(
        group,
        TRAFFIC,
        over={"type": overs_argument, "default": ("mrc",)},
        scale={"type": scale_argument, "default": 1.0},
    )
    add_seeds(group, 1)
    add_settings(group)


def overs_argument(text: str) -> tuple[Over, ...]:
    """Transports, without repetition."""
    names = list(dict.fromkeys(name.strip() for name in text.split(",")))
    found = tuple(over for name in names for over in OVERS if over == name)
    if len(found) < len(names):
        wrong = next(name for name in names if name not in OVERS)
        raise ValueError(f"{wrong!r} is not one of {', '.join(OVERS)}")
    return found


def scale_argument(text: str) -> float:
    """A factor above 0, or a percentage."""
    try:
        found = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        found = 0.0
    if not 1e-6 <= found <= 1e6:
        raise ValueError(f"{text!r} is not a factor such as 0.1 or 10%")
    return found


def run(args: argparse.Namespace) -> int:
    out = Output.of(args)
    bed = Testbed.existing(args.name)
    if not args.faults_only and _has_traffic(args.file):
        from mrc.sim import compare  # slow import: the simulator

        return compare.run_traffic(args, out, bed)
    scheduled = schedule.load_faults(args.file, bed.plan)
    if args.until is not None:
        _check_until(args, out, scheduled)
    late = schedule.Lateness(out)
    bed.connect()
    with FirstSignal() as ending:
        end = None if args.until is None else time.monotonic() + args.until / 1e9

        def wait(until: float | None) -> bool:
            over = end is not None and (until is None or until >= end)
            return ending.wait(end if over else until) or over

        schedule.run_faults(bed, scheduled, wait, late.counted(partial(_tell, out)))
        ending.check()
        late.tell()
    return 0


def _has_traffic(name: str) -> bool:
    """Raises BadFileError for a file that does not exist."""
    known = document.builtin("sim/scenarios")
    if name not in known and Path(name).exists():
        return "traffic" in document.load(Path(name), name)
    return "traffic" in document.read(name, known, "scenario").values


def _check_until(
    args: argparse.Namespace, out: Output, scheduled: Sequence[schedule.ScheduledFault]
) -> None:
    """Names the faults that begin only after the end."""
    after = [each for each in scheduled if each.times.at_ns >= args.until]
    named = ", ".join(f"{each.target} at {scaled(each.times.at_ns / 1e9, 's')}" for each in after)
    end = f"--until {scaled(args.until / 1e9, 's')}"
    if after and len(after) == len(scheduled):
        raise UsageError(args.prog, f"{end}: every fault of {args.file} begins later: {named}")
    if after:
        out.warn(f"left out, since {end} ends the run before: {named}")


def _tell(out: Output, event: schedule.FaultChange, seconds: float) -> None:
    out.text(event.line(seconds))
    out.result(event.result(seconds))


ACTIONS = {"run": Action(run, add_arguments)}
