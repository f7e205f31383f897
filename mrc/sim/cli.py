# SPDX-License-Identifier: Apache-2.0
"""`mrc sim`: experiments in a simulated fabric, in virtual time."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import TypeVar

from msgspec.structs import replace
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

import mrc
from mrc.cli.arguments import add
from mrc.cli.output import (
    Exit,
    Output,
    UsageError,
    format_table,
)
from mrc.linux.system import check_writable, write_whole
from mrc.results import like
from mrc.sim import drawing, page, sweep
from mrc.sim.checks import evaluate
from mrc.sim.options import add_seeds, add_settings, loaded, seeds_of, usage_errors
from mrc.sim.results import (
    Experiment,
    GridPoint,
    LostJob,
    LostTrial,
    Report,
    Scenarios,
    Sweep,
    SweptJob,
    Title,
    Value,
)
from mrc.sim.run import Progress as OnProgress
from mrc.sim.scenario import Scenario, load_scenario, scenario_names
from mrc.sim.sweep import CHOICES, Spot, SweepJob, executor_named
from mrc.sim.trials import (
    Bounds,
    JobResults,
    Trial,
    bounds_here,
    check_memory,
    run_all,
    run_trial,
    summarize,
    summary_of,
)
from mrc.tasks import begun
from mrc.units import counted, digits, scaled

T = TypeVar("T")

HELP = "run experiments in a simulated fabric"
EXAMPLES = """\
examples:
  mrc sim list
  mrc sim lossy-ev
  mrc sim incast-victim --seeds 20 --json
  mrc sim lossy-ev --seeds 20 --csv > seeds.csv
  mrc sim permutation --set topology.hosts=16 --set topology.routing=ecmp
  mrc sim my.toml --seed 7 --trace packets.txt --plot goodput.svg
  mrc sim report --output report.html   all scenarios, 20 seeds each
  mrc sim report --paper --output paper.html   the figures of the MRC paper
  mrc sim sweep permutation --grid topology.t1=4,8,16 --seeds 5 --output runs
"""
ONE = """
scenario NAME|FILE  name of a built-in scenario, or a TOML file
--trace FILE        write one line for each packet sent, lost or delivered; only for a single run
--threads N         threads that simulate a large fabric; several runs take one each, and a trace
                    takes one [one for each processor]
--plot FILE         draw the results into this SVG file; requires matplotlib and Jinja2
--details           with --json: flows, events and last hops also of runs of more than 1,024 flows
"""
REPORT = """
--output FILE  write the report to this HTML file; requires matplotlib and Jinja2
--paper        only the scenarios that reproduce a figure of the MRC paper, beside its claims
"""
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
SWEEP_HELP = "run a scenario over a grid of parameters; exit code 1 if a job has no result"

REPORT_SEEDS = 20
_UNBOUNDED = 1 << 62
_REQUIRED = {"required": True}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Runs the protocol engine in a simulated fabric, in virtual time.\n"
        "mrc sim NAME is short for mrc sim run NAME."
    )
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    for word, act, text in (
        ("list", _list, "list the built-in scenarios"),
        ("run", _one, "run a scenario; exit code 1 if it misses one of its targets"),
        ("report", _report, "run all built-in scenarios and write an HTML report"),
        ("sweep", _sweep, SWEEP_HELP),
    ):
        action = actions.add_parser(word, help=text, description=text)
        action.set_defaults(act=act)
        _add_action(action, word)
    parser.set_defaults(usual="run")


def _add_action(parser: argparse.ArgumentParser, word: str) -> None:
    if word == "sweep":
        add(parser, SWEEP, grid=_REQUIRED, output=_REQUIRED, part={"type": _part})
        add_seeds(parser, 1)
        add_settings(parser)
        add(parser, "--csv  print only CSV on stdout: the value of each check of each job")
    elif word != "list":
        if word == "run":
            add(parser, ONE, threads={"type": 1024, "default": bounds_here().jobs})
        else:
            add(parser, REPORT, output=_REQUIRED)
        add_seeds(parser, 1 if word == "run" else REPORT_SEEDS)
        add(parser, "--csv  print only CSV on stdout: the value of each check with each seed")
        add_settings(parser)
    Output.add_options(parser)


def _part(text: str) -> tuple[int, int]:
    match = re.fullmatch(r"(\d{1,9})/(\d{1,9})", text, re.ASCII)
    if match is None or not 1 <= int(match[1]) <= int(match[2]):
        raise ValueError(f"{text!r} is not a part such as 3/40")
    return int(match[1]), int(match[2])


def run(args: argparse.Namespace) -> int:
    code: int = args.act(Output.of(args), args)
    return code


# ---- Runs ------------------------------------------------------------------------------------


def _one(out: Output, args: argparse.Namespace) -> int:
    if args.plot and not drawing.available():
        raise UsageError(args.prog, drawing.HINT)
    if args.trace is not None and args.seeds > 1:
        raise UsageError(args.prog, "--trace: requires a single seed; drop --seeds")
    seeds = seeds_of(args)
    scenario = _load(args, args.scenario)
    check_writable(args.plot)
    if args.trace is not None and scenario.variants:
        raise UsageError(args.prog, "--trace: requires a single variant; add --set variants=[]")
    ran, n = _run(out, scenario, seeds, args), len(seeds)
    parts = _by_part(ran, n)
    experiment = page.ScenarioRuns(scenario, [[summarize(each) for each in part] for part in parts])
    outcomes = page.flat([experiment])
    for first in [part[0] for part in parts if part]:
        _print(out, first, of_several=n > 1)
    out.text(_check_table(outcomes, spread=n > 1))
    out.rows(list(page.seed_rows(scenario.parts, experiment.summaries)))
    if out.as_json:
        out.result(
            Experiment(
                scenario=page.scenario_result(scenario),
                checks=page.checks_of(outcomes),
                values=page.values_of(outcomes),
                runs=tuple(
                    page.run_result(each, details=args.details)
                    for part in parts
                    for trial in part
                    for each in trial.results
                ),
                lost=ran.lost,
            )
        )
    if args.plot is not None and all(parts):
        write_whole(Path(args.plot), drawing.standalone(experiment.plot()).encode())
    if _tell_lost(out, ran.lost, interrupted=ran.interrupted):
        return Exit.FAILED
    if all(outcome.met is not False for outcome in outcomes):
        return Exit.OK
    if n < REPORT_SEEDS:
        out.note(f"targets are for the median of {REPORT_SEEDS} seeds: see --seeds {REPORT_SEEDS}")
    return Exit.FAILED


def _run(
    out: Output, scenario: Scenario, seeds: Sequence[int], args: argparse.Namespace
) -> JobResults[Trial]:
    """Runs every part with every seed, on all cores."""
    bounds = bounds_here()
    check_memory(scenario.parts, bounds)
    jobs = [(part, seed) for part in scenario.parts for seed in seeds]
    if len(jobs) == 1:
        runs = (1 + len(scenario.baselines)) * (2 if scenario.needs_reference else 1)
        with _progress_bar(out, scenario.name, runs) as bar:
            show = None if bar is None else _by_run(bar)
            trial = begun(
                run_trial, *jobs[0], trace=args.trace, progress=show, threads=args.threads
            ).result()
            return JobResults([trial], interrupted=False)
    with _progress_bar(out, scenario.name, len(jobs)) as bar:
        return run_all(run_trial, jobs, bounds, _by_job(bar, [part.name for part, _ in jobs]))


def _report(out: Output, args: argparse.Namespace) -> int:
    """Runs all built-in scenarios that are not slow. The page shows missed targets; they do not
    fail the command.
    """
    if not drawing.available():
        raise UsageError(args.prog, drawing.HINT)
    seeds = seeds_of(args)
    scenarios = [s for s in (_load(args, name) for name in scenario_names()) if not s.slow]
    scenarios = [s for s in scenarios if s.figure or not args.paper]
    jobs = [(part, seed) for s in scenarios for part in s.parts for seed in seeds]
    check_writable(args.output)
    with _progress_bar(out, "report", len(jobs)) as bar:
        show = _by_job(bar, [part.name for part, _ in jobs])
        ran = run_all(summary_of, jobs, bounds_here(), show)
    parts = iter(_by_part(ran, len(seeds)))
    experiments = [page.ScenarioRuns(s, [next(parts) for _ in s.parts]) for s in scenarios]
    shown = page.of_paper(experiments) if args.paper else experiments
    text = page.render(shown, seeds, is_paper=args.paper)
    write_whole(Path(args.output), text.encode())
    outcomes = page.flat(experiments)
    names = [[outcome.scenario] for outcome in outcomes]
    out.text(_check_table(outcomes, spread=len(seeds) > 1, head=["scenario"], before=names))
    out.rows([
        row for each in experiments
        for row in page.seed_rows(each.scenario.parts, each.summaries)
    ])  # fmt: skip
    out.result(
        Report(
            seeds=tuple(seeds),
            checks=page.checks_of(outcomes),
            values=page.values_of(outcomes),
            figures=tuple(map(page.figure_of, page.of_paper(experiments))),
            lost=ran.lost,
        )
    )
    return Exit.FAILED if _tell_lost(out, ran.lost, interrupted=ran.interrupted) else Exit.OK


def _by_part(ran: JobResults[T], n_seeds: int) -> list[list[T]]:
    """The results of each part of a scenario, without the lost ones."""
    found = ran.results
    return [
        [each for each in found[i : i + n_seeds] if not isinstance(each, LostTrial)]
        for i in range(0, len(found), n_seeds)
    ]


def _tell_lost(out: Output, lost: Sequence[LostTrial], *, interrupted: bool) -> bool:
    """Names the trials without a result. Raises KeyboardInterrupt after an interrupt."""
    if interrupted:
        raise KeyboardInterrupt
    for each in lost:
        out.warn(str(each))
    return bool(lost)


def _load(args: argparse.Namespace, name: str) -> Scenario:
    return loaded(args, partial(load_scenario, name))


def _list(out: Output, _: argparse.Namespace) -> int:
    scenarios = [load_scenario(name) for name in scenario_names()]
    rows = [[scenario.name, scenario.title] for scenario in scenarios]
    out.text(format_table(["scenario", "title"], rows))
    titles = tuple(like(Title, scenario) for scenario in scenarios)
    out.result(Scenarios(scenarios=titles))
    return Exit.OK


def _by_run(bar: Bar) -> OnProgress:
    """A callback that shows the progress of runs that follow each other."""
    done = last = 0.0

    def show(part: float, now_ns: int) -> None:
        nonlocal done, last
        done, last = done + (part < last), part  # a smaller part: the next run has begun
        bar(done + part, scaled(now_ns / 1e9, "s"))

    return show


def _print(out: Output, trial: Trial, *, of_several: bool) -> None:
    scenario, stats = trial.result.scenario, trial.result.stats
    first = "the first run, seed " if of_several else "seed "
    title = ", ".join(filter(None, (scenario.title, scenario.variant)))
    out.text(
        f"{scenario.name}: {title}\n\n"
        f"{first}{trial.result.seed}: {scaled(stats.now_ns / 1e9, 's')},"
        f" {counted(stats.packets, 'packet')};"
        f" {stats.lost} lost by faults, {stats.trimmed} trimmed, {stats.dropped} dropped,"
        f" {stats.marked} marked"
    )
    rows = [
        (name, result.scenario.transport.kind, *page.group_row(result, name))
        for result in trial.results
        for name in dict.fromkeys(flow.traffic.group for flow in result.flows)
    ]
    head = ["traffic", "transport", "flows", "slowest", "mean", "packets retransmitted"]
    out.text(format_table(head, rows) + "\n")


# ---- Sweeps ----------------------------------------------------------------------------------


def _sweep(out: Output, args: argparse.Namespace) -> int:
    """Runs what is missing. Checks that miss their targets do not fail the command."""
    with usage_errors(args):
        grid = dict(sweep.parse_axis(text) for text in args.grid)
        settings = dict(sweep.parse_setting(text) for text in args.settings)
        if len(grid) < len(args.grid) or grid.keys() & settings.keys():
            raise ValueError("--grid: a key is given twice")
        spots = sweep.plan_sweep(args.scenario, settings, grid, seeds_of(args))
    folder, (part, parts) = Path(args.output), args.part or (1, 1)
    name = f"part-{part}-of-{parts}" if args.part else "jobs"
    with sweep.append_jobs(folder, name) as add_line:
        there = {line.job for line in sweep.read_jobs(folder)}
        jobs = [job for spot in spots for job in spot.jobs][part - 1 :: parts]
        missing = [job for job in jobs if job.name not in there]
        lost, interrupted = _run_jobs(out, args, missing, add_line)
    lines = {line.job: line for line in sweep.read_jobs(folder)}
    _show_sweep(out, spots, lines, seeds_of(args), lost)
    return Exit.FAILED if _tell_lost(out, lost, interrupted=interrupted) else Exit.OK


def _run_jobs(
    out: Output,
    args: argparse.Namespace,
    missing: Sequence[SweepJob],
    add_line: sweep.Append,
) -> tuple[list[LostJob], bool]:
    """Runs jobs, and appends a line for each that ends. The lost ones, and whether it was
    interrupted.
    """
    if not missing:
        return [], False
    lost: list[LostJob] = []

    def done(number: int, result: SweptJob | LostTrial) -> None:
        planned = missing[number]
        show(number, result)
        if isinstance(result, SweptJob):
            if result.version == mrc.__version__:
                add_line(replace(result, job=planned.name, parameters=planned.parameters))
                return
            reason = f"ran with mrc {result.version}, not {mrc.__version__}"
        else:
            reason = result.reason
        lost.append(
            LostJob(
                scenario=planned.scenario.name,
                variant=planned.scenario.variant,
                seed=planned.seed,
                parameters=planned.parameters,
                reason=reason,
            )
        )

    with ExitStack() as stack:
        pool = None
        if args.on is None:
            bounds = bounds_here(args.memory)
        else:
            bounds = Bounds(_UNBOUNDED, args.memory or _UNBOUNDED)
        check_memory((planned.scenario for planned in missing), bounds)
        if args.on is not None:
            with usage_errors(args):
                pool = stack.enter_context(executor_named(args.on))
        names = [" ".join(map(str, planned.parameters.values())) for planned in missing]
        bar = stack.enter_context(_progress_bar(out, missing[0].scenario.name, len(missing)))
        show = _by_job(bar, names)
        jobs = [(planned.scenario, planned.seed) for planned in missing]
        ran = run_all(sweep.swept_of, jobs, bounds, done, pool)
    return lost, ran.interrupted


def _show_sweep(
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
    out.text(_check_table(flat, spread=len(seeds) > 1, head=list(spots[0].grid), before=before))
    if missing:
        out.note(f"no result yet: {missing} of {counted(len(jobs), 'job')}")
    out.rows(list(sweep.rows_of_sweep(spots, lines)))
    out.result(
        Sweep(
            scenario=spots[0].scenario.name,
            seeds=tuple(seeds),
            jobs=len(jobs),
            missing=missing,
            points=tuple(
                GridPoint(
                    parameters=spot.grid,
                    checks=page.checks_of(found),
                    values=page.values_of(found),
                )
                for spot, found in zip(spots, outcomes, strict=True)
            ),
            lost=tuple(lost),
        )
    )


# ---- Shared ----------------------------------------------------------------------------------


Bar = Callable[[float, str], None]
"""Shows the completed part of the work, and a text beside the bar."""


@contextmanager
def _progress_bar(out: Output, name: str, total: int) -> Iterator[Bar | None]:
    """A progress bar on stderr; None under --quiet or without a terminal."""
    if out.quiet or not sys.stderr.isatty():
        yield None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[now]}"))
    with Progress(*columns, TimeElapsedColumn(), console=Console(stderr=True)) as bar:
        task = bar.add_task(name, total=total, now="")
        yield lambda done, now: bar.update(task, completed=done, now=now)


def _by_job(bar: Bar | None, names: Sequence[str]) -> Callable[[int, object], None]:
    """A callback that shows how many of the jobs with these names have ended."""
    done = 0

    def show(number: int, _: object) -> None:
        nonlocal done
        done += 1
        if bar is not None:
            bar(done, names[number])

    return show


def _check_table(
    outcomes: Sequence[Value],
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
