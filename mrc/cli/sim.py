# SPDX-License-Identifier: Apache-2.0
"""`mrc sim`: experiments in a simulated fabric, in virtual time."""

from __future__ import annotations

import argparse
import sys
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from mrc.cli.exits import Exit, UsageError
from mrc.cli.output import Output, add_options, format_rate, format_seconds, format_table
from mrc.errors import ConfigError
from mrc.sim import checks, page, plot, reader, report
from mrc.sim.checks import Outcome
from mrc.sim.run import Progress as OnProgress
from mrc.sim.run import Result, reference_of, run
from mrc.sim.scenario import Scenario

EXAMPLES = """\
examples:
  mrc sim list
  mrc sim lossy-ev
  mrc sim incast-victim --seeds 20 --json
  mrc sim permutation --set topology.hosts=16 --set topology.routing=ecmp
  mrc sim my.toml --seed 7 --trace packets.txt --plot goodput.svg
  mrc sim report --output report.html --seeds 20
"""


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "sim",
        help="run experiments in a simulated fabric",
        description="Runs the engine in a simulated fabric, in virtual time. The exit code is 1"
        " when a check of the scenario is not met.",
        examples=EXAMPLES,
    )
    parser.add_argument(
        "scenario",
        metavar="NAME|FILE",
        help="a scenario or a TOML file; list for all names, report for a page about all of them",
    )
    parser.add_argument(
        "--seed",
        type=_seed,
        default=1,
        metavar="N",
        help="decides all that is random [%(default)s]",
    )
    parser.add_argument(
        "--seeds", type=_count, default=1, metavar="N",
        help="run so many seeds, from --seed on; checks take the median [%(default)s]",
    )  # fmt: skip
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", dest="settings",
        help="replace a value of the scenario, such as traffic.0.writes=2",
    )  # fmt: skip
    parser.add_argument(
        "--trace", metavar="FILE", help="write a line for every packet sent, lost or delivered"
    )
    parser.add_argument("--plot", metavar="FILE", help="draw the first seed's goodput, as SVG")
    parser.add_argument("--output", metavar="FILE", help="the page that report writes, as HTML")
    add_options(parser)
    parser.set_defaults(run=run_command)


def _seed(text: str) -> int:
    seed = int(text)
    if not 0 <= seed < 1 << 64:
        raise ValueError
    return seed


def _count(text: str) -> int:
    count = int(text)
    if not 1 <= count <= 10000:
        raise ValueError
    return count


def parse_setting(text: str) -> tuple[str, Any]:
    """ "a.b=3" -> ("a.b", 3). What is no TOML value is text: rates and times need no quotes."""
    key, separator, value = text.partition("=")
    if not key or not separator:
        raise ValueError(f"{text!r} is not KEY=VALUE")
    try:
        return key, tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return key, value


def run_command(args: argparse.Namespace) -> int:
    out = Output.of(args)
    if args.scenario == "list":
        return _list(out)
    if (args.scenario == "report") != (args.output is not None):
        raise UsageError(args.prog, "report and --output FILE go together")
    if args.trace is not None and (args.seeds > 1 or args.scenario == "report"):
        raise UsageError(args.prog, "--trace is for one scenario and one seed")
    seeds = range(args.seed, args.seed + args.seeds)
    return _report(out, args, seeds) if args.scenario == "report" else _one(out, args, seeds)


def _one(out: Output, args: argparse.Namespace, seeds: Sequence[int]) -> int:
    scenario = _load(args, args.scenario)
    results, outcomes = _run(out, scenario, seeds, args.trace)
    _print(out, results, outcomes)
    if args.plot is not None:
        Path(args.plot).write_text(plot.goodput_svg(results[0]), encoding="utf-8")
    return Exit.OK if all(outcome.met for outcome in outcomes) else Exit.FAILED


def _report(out: Output, args: argparse.Namespace, seeds: Sequence[int]) -> int:
    """Runs all built-in scenarios; what is not met is told on the page, and is no failure."""
    experiments = []
    for name in reader.names():
        results, outcomes = _run(out, _load(args, name), seeds, None)
        experiments.append(page.Experiment(results[0], outcomes))
    Path(args.output).write_text(page.render(experiments, seeds), encoding="utf-8")
    outcomes = [outcome for experiment in experiments for outcome in experiment.outcomes]
    out.text(_check_table(outcomes, with_scenario=True))
    out.result({"seeds": list(seeds), "checks": report.checks_json(outcomes)})
    return Exit.OK


def _load(args: argparse.Namespace, name: str) -> Scenario:
    try:
        return reader.load(name, dict(parse_setting(text) for text in args.settings))
    except (ValueError, ConfigError) as error:
        raise UsageError(args.prog, str(error)) from error


def _list(out: Output) -> int:
    scenarios = [reader.load(name) for name in reader.names()]
    rows = [[scenario.name, scenario.title] for scenario in scenarios]
    out.text(format_table(["scenario", "what happens"], rows))
    out.result({"scenarios": [{"name": name, "title": title} for name, title in rows]})
    return Exit.OK


def _run(
    out: Output, scenario: Scenario, seeds: Sequence[int], trace: str | None
) -> tuple[list[Result], list[Outcome]]:
    """Every seed, and beside each its reference where a check compares with one."""
    runs: list[tuple[Result, Result | None]] = []
    reference = reference_of(scenario) if checks.needs_reference(scenario) else None
    with _bar(out, scenario.name, len(seeds) * (2 if reference else 1)) as progress:
        for seed in seeds:
            result = run(scenario, seed, trace=trace, progress=progress)
            beside = run(reference, seed, progress=progress) if reference else None
            runs.append((result, beside))
    return [result for result, _ in runs], checks.evaluate(runs)


@contextmanager
def _bar(out: Output, name: str, n_runs: int) -> Iterator[OnProgress | None]:
    """Progress over all runs on stderr, when that is a terminal."""
    if out.quiet or not sys.stderr.isatty():
        yield None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[now]}"))
    done = last = 0.0
    with Progress(*columns, TimeElapsedColumn(), console=Console(stderr=True)) as bar:
        task = bar.add_task(name, total=n_runs, now="")

        def show(part: float, now_ns: int) -> None:
            nonlocal done, last
            if part < last:  # the next run
                done += 1
            last = part
            bar.update(task, completed=done + part, now=format_seconds(now_ns / 1e9))

        yield show


def _print(out: Output, results: Sequence[Result], outcomes: Sequence[Outcome]) -> None:
    first = results[0]
    scenario, stats = first.scenario, first.stats
    out.text(
        f"{scenario.name}: {scenario.title}\n\n"
        f"seed {first.seed}: {format_seconds(stats.now_ns / 1e9)}, {stats.packets} packets;"
        f" {stats.lost} lost by faults, {stats.trimmed} trimmed, {stats.dropped} dropped,"
        f" {stats.marked} marked"
    )
    rows = [
        [g.name, g.flows, format_rate(g.slowest_bps), format_rate(g.mean_bps), g.retransmitted]
        for g in report.groups(first)
    ]
    head = ["traffic", "flows", "slowest", "mean", "packets retransmitted"]
    out.text(format_table(head, rows) + "\n")
    out.text(_check_table(outcomes, with_scenario=False))
    out.result(
        {
            "scenario": report.scenario_json(scenario),
            "checks": report.checks_json(outcomes),
            "runs": [report.result_json(result) for result in results],
        }
    )


def _check_table(outcomes: Sequence[Outcome], *, with_scenario: bool) -> str:
    head = ["scenario", "check", "value", "target", "met"]
    rows = [
        [
            outcome.scenario,
            outcome.name,
            "none" if outcome.value is None else f"{outcome.value:.4g}",
            f"{outcome.relation} {outcome.target:g}",
            "yes" if outcome.met else "NO",
        ]
        for outcome in outcomes
    ]
    first = 0 if with_scenario else 1
    return format_table(head[first:], [row[first:] for row in rows])
