# SPDX-License-Identifier: Apache-2.0
"""`mrc sim`: experiments in a simulated fabric, in virtual time."""

from __future__ import annotations

import argparse
import sys
import tomllib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from mrc.cli import csv_text
from mrc.cli.arguments import add, count_argument
from mrc.cli.exits import Exit, UsageError
from mrc.cli.output import Output, add_options, format_rate, format_seconds, format_table
from mrc.cli.parser import Parser
from mrc.errors import ConfigError
from mrc.results.plain import like
from mrc.results.sim import Experiment, LostTrial, Report, Scenarios, Title
from mrc.sim import drawing, page, reader, report
from mrc.sim.checks import Outcome, flow_goodput_bps
from mrc.sim.many import Ran, check_memory, run_all, workers_for
from mrc.sim.run import Progress as OnProgress
from mrc.sim.scenario import Scenario
from mrc.sim.trial import Timed, Trial, full_trial, n_runs, run_trial, summarize, timed_summary_of
from mrc.whole import write_whole

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
"""
REPORT_SEEDS = 20
ONE = """
scenario NAME|FILE  name of a built-in scenario, or a TOML file
--trace FILE        write one line for each packet sent, lost or delivered; only for a single run
--plot FILE         draw the results into this SVG file; requires matplotlib and Jinja2
"""
REPORT = """
--output FILE  write the report to this HTML file; requires matplotlib and Jinja2
--paper        only the scenarios that reproduce a figure of the MRC paper, beside its claims
"""
SEEDS = """
--seed N   seed of the random numbers in the first run [%(default)s]
--seeds N  number of runs, each with the next seed; checks use the median, and the table shows the
           quartiles [%(default)s]
"""
SETTINGS = """
--set KEY=VALUE...  replace a value of the scenario, such as traffic.0.writes=2; repeatable
"""


def add_arguments(parser: Parser) -> None:
    parser.description = (
        "Runs the protocol engine in a simulated fabric, in virtual time.\n"
        "mrc sim NAME is short for mrc sim run NAME."
    )
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    for word, act, text in (
        ("list", _list, "list the built-in scenarios"),
        ("run", _one, "run a scenario; exit code 1 if it misses one of its targets"),
        ("report", _report, "run all built-in scenarios and write an HTML report"),
    ):
        action = actions.add_parser(word, help=text, description=text)
        action.set_defaults(act=act)
        if act is not _list:
            _add_run_arguments(action, is_report=act is _report)
        add_options(action)
    parser.actions, parser.usual = tuple(actions.choices), "run"


def _add_run_arguments(parser: argparse.ArgumentParser, *, is_report: bool) -> None:
    if is_report:
        add(parser, REPORT, output={"required": True})
    else:
        add(parser, ONE)
    seeds = {"type": count_argument(10000), "default": REPORT_SEEDS if is_report else 1}
    add(parser, SEEDS, seed={"type": _seed, "default": 1}, seeds=seeds)
    csv_text.add_option(parser, "the value of each check with each seed")
    add(parser, SETTINGS, set={"dest": "settings"})


def _seed(text: str) -> int:
    if not text.isdecimal() or int(text) >= 1 << 64:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 0 to {(1 << 64) - 1}")
    return int(text)


def parse_setting(text: str) -> tuple[str, Any]:
    """ "a.b=3" -> ("a.b", 3). A value that is not TOML is text: rates and times need no quotes."""
    key, separator, value = text.partition("=")
    if not key or not separator:
        raise ValueError(f"{text!r} is not KEY=VALUE")
    try:
        return key, tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return key, value


def run(args: argparse.Namespace) -> int:
    code: int = args.act(Output.of(args), args)
    return code


def _seeds(args: argparse.Namespace) -> Sequence[int]:
    return range(args.seed, args.seed + args.seeds)


def _one(out: Output, args: argparse.Namespace) -> int:
    if args.plot and not drawing.available():
        raise UsageError(args.prog, drawing.HINT)
    if args.trace is not None and args.seeds > 1:
        raise UsageError(args.prog, "--trace: requires a single seed; drop --seeds")
    seeds = _seeds(args)
    scenario = _load(args, args.scenario)
    if args.trace is not None and scenario.variants:
        raise UsageError(args.prog, "--trace: requires a single variant; add --set variants=[]")
    ran, n = _run(out, scenario, seeds, args.trace), len(seeds)
    parts = _by_part(ran, n)
    experiment = page.Experiment(scenario, [[summarize(each) for each in part] for part in parts])
    outcomes = page.flat([experiment])
    for first in [part[0] for part in parts if part]:
        _print(out, first, of_several=n > 1)
    out.text(_check_table(outcomes, seeds, with_scenario=False))
    out.rows(list(report.seed_rows(scenario.parts, experiment.summaries)))
    if out.as_json:
        out.result(
            Experiment(
                scenario=report.scenario_result(scenario),
                checks=report.checks(outcomes),
                values=report.values(outcomes),
                runs=tuple(
                    report.run_result(each)
                    for part in parts
                    for trial in part
                    for each in trial.results
                ),
                lost=ran.lost,
            )
        )
    if args.plot is not None and all(parts):
        write_whole(Path(args.plot), drawing.standalone(experiment.plot()).encode())
    if _tell_lost(out, ran):
        return Exit.FAILED
    if all(outcome.met is not False for outcome in outcomes):
        return Exit.OK
    if n < REPORT_SEEDS:
        out.note(f"targets are for the median of {REPORT_SEEDS} seeds: see --seeds {REPORT_SEEDS}")
    return Exit.FAILED


def _run(out: Output, scenario: Scenario, seeds: Sequence[int], trace: str | None) -> Ran[Trial]:
    """Runs every part with every seed, on all cores."""
    check_memory(scenario.parts)
    jobs = [(part, seed) for part in scenario.parts for seed in seeds]
    if len(jobs) == 1:
        with _bar(out, scenario.name, n_runs(scenario)) as bar:
            show = None if bar is None else _by_run(bar)
            return Ran([run_trial(*jobs[0], trace=trace, progress=show)], interrupted=False)
    with _bar(out, scenario.name, len(jobs)) as bar:
        return run_all(full_trial, jobs, workers_for(jobs), _by_job(bar))


def _report(out: Output, args: argparse.Namespace) -> int:
    """Runs all built-in scenarios that are not slow. The page shows missed targets; they do not
    fail the command.
    """
    if not drawing.available():
        raise UsageError(args.prog, drawing.HINT)
    seeds = _seeds(args)
    scenarios = [s for s in (_load(args, name) for name in reader.names()) if not s.slow]
    scenarios = [s for s in scenarios if s.figure or not args.paper]
    jobs = [(part, seed) for s in scenarios for part in s.parts for seed in seeds]
    with _bar(out, "report", len(jobs)) as bar:
        ran = run_all(timed_summary_of, jobs, workers_for(jobs), _by_job(bar))
    timed = iter(_by_part(ran, len(seeds)))
    experiments = [_experiment(s, [next(timed) for _ in s.parts]) for s in scenarios]
    shown = page.of_paper(experiments) if args.paper else experiments
    text = page.render(shown, seeds, is_paper=args.paper)
    write_whole(Path(args.output), text.encode())
    outcomes = page.flat(experiments)
    out.text(_check_table(outcomes, seeds, with_scenario=True))
    out.rows([
        row for each in experiments
        for row in report.seed_rows(each.scenario.parts, each.summaries)
    ])  # fmt: skip
    out.result(
        Report(
            seeds=tuple(seeds),
            checks=report.checks(outcomes),
            values=report.values(outcomes),
            figures=tuple(map(report.figure, page.of_paper(experiments))),
            lost=ran.lost,
        )
    )
    return Exit.FAILED if _tell_lost(out, ran) else Exit.OK


def _experiment(scenario: Scenario, timed: Sequence[Sequence[Timed]]) -> page.Experiment:
    summaries = [[each.summary for each in part] for part in timed]
    return page.Experiment(
        scenario, summaries, sum(each.seconds for part in timed for each in part)
    )


def _by_part(ran: Ran[T], n_seeds: int) -> list[list[T]]:
    """The results of each part of a scenario, without the lost ones."""
    found = ran.results
    return [
        [each for each in found[i : i + n_seeds] if not isinstance(each, LostTrial)]
        for i in range(0, len(found), n_seeds)
    ]


def _tell_lost(out: Output, ran: Ran[T]) -> bool:
    """Names the trials without a result. Raises KeyboardInterrupt after an interrupt."""
    if ran.interrupted:
        raise KeyboardInterrupt
    for each in ran.lost:
        out.warn(str(each))
    return bool(ran.lost)


def _load(args: argparse.Namespace, name: str) -> Scenario:
    try:
        return reader.load(name, dict(parse_setting(text) for text in args.settings))
    except (ValueError, ConfigError) as error:
        raise UsageError(args.prog, str(error)) from error


def _list(out: Output, _: argparse.Namespace) -> int:
    scenarios = [reader.load(name) for name in reader.names()]
    rows = [[scenario.name, scenario.title] for scenario in scenarios]
    out.text(format_table(["scenario", "title"], rows))
    titles = tuple(like(Title, scenario) for scenario in scenarios)
    out.result(Scenarios(scenarios=titles))
    return Exit.OK


Bar = Callable[[float, str], None]
"""Shows the completed part of the work, and a text beside the bar."""


@contextmanager
def _bar(out: Output, name: str, total: int) -> Iterator[Bar | None]:
    """A progress bar on stderr; None under --quiet or without a terminal."""
    if out.quiet or not sys.stderr.isatty():
        yield None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[now]}"))
    with Progress(*columns, TimeElapsedColumn(), console=Console(stderr=True)) as bar:
        task = bar.add_task(name, total=total, now="")
        yield lambda done, now: bar.update(task, completed=done, now=now)


def _by_job(bar: Bar | None) -> Callable[[int, str], None]:
    """A callback that shows how many runs have ended."""
    return lambda done, name: None if bar is None else bar(done, name)


def _by_run(bar: Bar) -> OnProgress:
    """A callback that shows the progress of runs that follow each other."""
    done = last = 0.0

    def show(part: float, now_ns: int) -> None:
        nonlocal done, last
        done, last = done + (part < last), part  # a smaller part: the next run has begun
        bar(done + part, format_seconds(now_ns / 1e9))

    return show


def _print(out: Output, trial: Trial, *, of_several: bool) -> None:
    scenario, stats = trial.result.scenario, trial.result.stats
    first = "the first run, seed " if of_several else "seed "
    title = ", ".join(filter(None, (scenario.title, scenario.variant)))
    out.text(
        f"{scenario.name}: {title}\n\n"
        f"{first}{trial.result.seed}: {format_seconds(stats.now_ns / 1e9)},"
        f" {stats.packets} packets;"
        f" {stats.lost} lost by faults, {stats.trimmed} trimmed, {stats.dropped} dropped,"
        f" {stats.marked} marked"
    )
    rows = []
    for result in trial.results:
        for name in dict.fromkeys(flow.traffic.group for flow in result.flows):
            numbers = result.of_group(name)
            rates = [flow_goodput_bps(result, i) for i in numbers]
            again = sum(result.infos[i].retransmitted_packets for i in numbers)
            goodput = (format_rate(min(rates)), format_rate(sum(rates) / len(rates)))
            rows.append((name, result.scenario.transport.kind, len(numbers), *goodput, again))
    head = ["traffic", "transport", "flows", "slowest", "mean", "packets retransmitted"]
    out.text(format_table(head, rows) + "\n")


def _check_table(outcomes: Sequence[Outcome], seeds: Sequence[int], *, with_scenario: bool) -> str:
    kinds = list(dict.fromkeys(kind for outcome in outcomes for kind in outcome.baselines))
    spread = len(seeds) > 1
    value = ["median", "quartiles"] if spread else ["value"]
    head = ["scenario", "check", *value, *kinds, "target", "met"]
    rows = [
        [
            outcome.scenario,
            outcome.name,
            page.number(outcome.value),
            *([f"{page.number(outcome.low)} to {page.number(outcome.high)}"] if spread else []),
            *(page.number(outcome.baselines[k]) if k in outcome.baselines else "" for k in kinds),
            "" if outcome.target is None else f"{outcome.relation} {outcome.target:g}",
            "" if outcome.met is None else "yes" if outcome.met else "NO",
        ]
        for outcome in outcomes
    ]
    first = 0 if with_scenario else 1
    return format_table(head[first:], [row[first:] for row in rows])
