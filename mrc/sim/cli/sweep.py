# SPDX-License-Identifier: Apache-2.0
"""`mrc sim sweep` and `mrc sim plot`: a scenario over a grid of parameters, and its picture."""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from mrc.cli import csv_text
from mrc.cli.arguments import add
from mrc.cli.exits import Exit, UsageError
from mrc.cli.output import Output, add_options
from mrc.results.plain import like
from mrc.sim import drawing, report, sweep, sweep_folder, sweep_plot
from mrc.sim.checks import evaluate
from mrc.sim.cli.arguments import add_seeds, add_settings, seeds_of
from mrc.sim.cli.runs import by_job, check_table, progress_bar, usage_errors
from mrc.sim.many import Bounds, bounds_here, check_memory, run_all
from mrc.sim.results import LostJob, LostTrial, Point, Sweep, SweptJob
from mrc.sim.sweep import Planned, Spot, Swept
from mrc.sim.sweep_on import CHOICES, executor
from mrc.units import counted
from mrc.whole import write_whole

UNBOUNDED = 1 << 62
SWEEP = f"""
scenario NAME|FILE     name of a built-in scenario, or a TOML file
--grid KEY=V1,V2...    run with each of these values, and with all combinations if it is repeated
--output FOLDER        append a line for each job to a file in this folder; jobs that have one do
                       not run again
--part I/N             run only every N-th job, from the I-th on: for arrays of Slurm or Kubernetes
--on EXECUTOR          where jobs run: {CHOICES} [processes on this machine]
--memory SIZE          start a job only if it fits, by an estimate, beside those that run [the
                       available memory; with --on no limit]
"""
PLOT = """
folder FOLDER    what mrc sim sweep --output wrote
--x KEY          a parameter of the sweep
--y KEY          a check, or one of the fabric's totals such as trimmed_packets
--by KEY...      draw a line for each value of this parameter; repeatable
--output FILE    the SVG file; requires matplotlib and Jinja2
"""
_REQUIRED = {"required": True}


def add_sweep(parser: argparse.ArgumentParser) -> None:
    add(parser, SWEEP, grid={"required": True}, output=_REQUIRED, part={"type": _part})
    add_seeds(parser, 1)
    add_settings(parser)
    csv_text.add_option(parser, "the value of each check of each job")
    add_options(parser)


def add_plot(parser: argparse.ArgumentParser) -> None:
    add(parser, PLOT, x=_REQUIRED, y=_REQUIRED, output=_REQUIRED)
    parser.set_defaults(json=False, quiet=False)


def _part(text: str) -> tuple[int, int]:
    match = re.fullmatch(r"(\d{1,9})/(\d{1,9})", text, re.ASCII)
    if match is None or not 1 <= int(match[1]) <= int(match[2]):
        raise argparse.ArgumentTypeError(f"{text!r} is not a part such as 3/40")
    return int(match[1]), int(match[2])


def run_sweep(out: Output, args: argparse.Namespace) -> int:
    """Runs what is missing. Checks that miss their targets do not fail the command."""
    with usage_errors(args):
        grid = dict(sweep.parse_axis(text) for text in args.grid)
        settings = dict(sweep.parse_setting(text) for text in args.settings)
        if len(grid) < len(args.grid) or grid.keys() & settings.keys():
            raise ValueError("--grid: a key is given twice")
        spots = sweep.plan(args.scenario, settings, grid, seeds_of(args))
    folder, (part, parts) = Path(args.output), args.part or (1, 1)
    name = f"part-{part}-of-{parts}" if args.part else "jobs"
    with sweep_folder.appending(folder, name) as add_line:
        there = {line.job for line in sweep_folder.read(folder)}
        jobs = [job for spot in spots for job in spot.jobs][part - 1 :: parts]
        missing = [job for job in jobs if job.name not in there]
        lost, interrupted = _run(out, args, missing, add_line)
    lines = {line.job: line for line in sweep_folder.read(folder)}
    _show(out, spots, lines, seeds_of(args), lost)
    for each in lost:
        if not interrupted:
            out.warn(str(each))
    if interrupted:
        raise KeyboardInterrupt
    return Exit.FAILED if lost else Exit.OK


def _run(
    out: Output,
    args: argparse.Namespace,
    missing: Sequence[Planned],
    add_line: sweep_folder.Append,
) -> tuple[list[LostJob], bool]:
    """Runs jobs, and appends a line for each that ends. The lost ones, and whether it was
    interrupted.
    """
    if not missing:
        return [], False
    lost: list[LostJob] = []

    def done(number: int, result: Swept | LostTrial) -> None:
        planned = missing[number]
        show(number, result)
        if isinstance(result, Swept) and result.version == sweep.version_here():
            add_line(sweep.line_of(planned, result))
        elif isinstance(result, Swept):
            lost.append(
                _lost(planned, f"ran with mrc {result.version}, not {sweep.version_here()}")
            )
        else:
            lost.append(_lost(planned, result.reason))

    with ExitStack() as stack:
        pool = None
        if args.on is None:
            bounds = bounds_here(args.memory)
        else:
            bounds = Bounds(UNBOUNDED, args.memory or UNBOUNDED)
        check_memory((planned.scenario for planned in missing), bounds)
        if args.on is not None:
            with usage_errors(args):
                pool = stack.enter_context(executor(args.on))
        names = [" ".join(map(str, planned.parameters.values())) for planned in missing]
        bar = stack.enter_context(progress_bar(out, missing[0].scenario.name, len(missing)))
        show = by_job(bar, names)
        jobs = [planned.job for planned in missing]
        ran = run_all(sweep.swept_of, jobs, bounds, done, pool)
    return lost, ran.interrupted


def _lost(planned: Planned, reason: str) -> LostJob:
    return like(
        LostJob,
        planned.scenario,
        scenario=planned.scenario.name,
        seed=planned.seed,
        parameters=planned.parameters,
        reason=reason,
    )


def _show(
    out: Output,
    spots: Sequence[Spot],
    lines: Mapping[str, SweptJob],
    seeds: Sequence[int],
    lost: Sequence[LostJob],
) -> None:
    outcomes = [evaluate(spot.scenario, sweep.found_at(spot, lines)) for spot in spots]
    jobs = [job.name for spot in spots for job in spot.jobs]
    missing = sum(name not in lines for name in jobs)
    before = [
        [sweep.text_of(value) for value in spot.grid.values()]
        for spot, found in zip(spots, outcomes, strict=True)
        for _ in found
    ]
    flat = [outcome for found in outcomes for outcome in found]
    out.text(check_table(flat, spread=len(seeds) > 1, head=list(spots[0].grid), before=before))
    if missing:
        out.note(f"no result yet: {missing} of {counted(len(jobs), 'job')}")
    out.rows(list(sweep.rows(spots, lines)))
    out.result(
        Sweep(
            scenario=spots[0].scenario.name,
            seeds=tuple(seeds),
            jobs=len(jobs),
            missing=missing,
            points=tuple(
                Point(
                    parameters=spot.grid,
                    checks=report.checks(found),
                    values=report.values(found),
                )
                for spot, found in zip(spots, outcomes, strict=True)
            ),
            lost=tuple(lost),
        )
    )


def run_plot(_: Output, args: argparse.Namespace) -> int:
    if not drawing.available():
        raise UsageError(args.prog, drawing.HINT)
    jobs = sweep_folder.read(Path(args.folder))
    with usage_errors(args):
        if not jobs:
            raise ValueError(f"{args.folder} has no lines of mrc sim sweep")
        svg = sweep_plot.draw(jobs, args.x, args.y, args.by)
    write_whole(Path(args.output), drawing.standalone(svg).encode())
    return Exit.OK
