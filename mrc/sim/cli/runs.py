# SPDX-License-Identifier: Apache-2.0
"""What the actions of `mrc sim` share: progress, and the table of checks."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from mrc.cli.exits import UsageError
from mrc.cli.output import Output, format_table
from mrc.errors import ConfigError
from mrc.sim import page
from mrc.sim.checks import Outcome
from mrc.units import digits

T = TypeVar("T")

REPORT_SEEDS = 20


@contextmanager
def usage_errors(args: argparse.Namespace) -> Iterator[None]:
    """Wrong values and scenarios are wrong usage."""
    try:
        yield
    except (ValueError, ConfigError) as error:
        raise UsageError(args.prog, str(error)) from error


Bar = Callable[[float, str], None]
"""Shows the completed part of the work, and a text beside the bar."""


@contextmanager
def progress_bar(out: Output, name: str, total: int) -> Iterator[Bar | None]:
    """A progress bar on stderr; None under --quiet or without a terminal."""
    if out.quiet or not sys.stderr.isatty():
        yield None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[now]}"))
    with Progress(*columns, TimeElapsedColumn(), console=Console(stderr=True)) as bar:
        task = bar.add_task(name, total=total, now="")
        yield lambda done, now: bar.update(task, completed=done, now=now)


def by_job(bar: Bar | None, names: Sequence[str]) -> Callable[[int, object], None]:
    """A callback that shows how many of the jobs with these names have ended."""
    done = 0

    def show(number: int, _: object) -> None:
        nonlocal done
        done += 1
        if bar is not None:
            bar(done, names[number])

    return show


def check_table(
    outcomes: Sequence[Outcome],
    *,
    spread: bool,
    head: Sequence[str] = (),
    before: Sequence[Sequence[object]] = (),
) -> str:
    """A row for each check; `head` and `before` are columns in front of it."""
    kinds = list(dict.fromkeys(kind for outcome in outcomes for kind in outcome.baselines))
    value = ["median", "quartiles"] if spread else ["value"]
    rows = [
        [
            *(before[i] if before else ()),
            outcome.name,
            page.number(outcome.value),
            *([f"{page.number(outcome.low)} to {page.number(outcome.high)}"] if spread else []),
            *(page.number(outcome.baselines[k]) if k in outcome.baselines else "" for k in kinds),
            "" if outcome.target is None else f"{outcome.relation} {digits(outcome.target)}",
            "" if outcome.met is None else "yes" if outcome.met else "NO",
        ]
        for i, outcome in enumerate(outcomes)
    ]
    return format_table([*head, "check", *value, *kinds, "target", "met"], rows)
