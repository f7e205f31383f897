# SPDX-License-Identifier: Apache-2.0
"""`mrc testbed run` of a file with traffic: run it on the test bed, and in the simulator."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Iterator, Sequence
from pathlib import Path

from msgspec.structs import replace

from mrc.cli.exits import Exit, UsageError
from mrc.cli.output import Output, format_rate, format_seconds, format_table
from mrc.cli.runner import run_async
from mrc.errors import BadFileError, ConfigError, StateError
from mrc.linux import programs
from mrc.linux.files import check_writable, write_whole
from mrc.sim import drawing
from mrc.sim.checks import flow_goodput_bps
from mrc.sim.cli.arguments import seeds_of
from mrc.sim.cli.sim import usage_errors
from mrc.sim.page import number
from mrc.sim.scenario import Scenario, load_scenario, with_seed
from mrc.sim.sweep import parse_setting
from mrc.testbed import bed as beds
from mrc.testbed.bed import Testbed
from mrc.testbed.schedule import FaultChange
from mrc.units import digits
from mrc.workload import fit
from mrc.workload.compare import (
    SIMULATOR,
    Compared,
    compare,
    explanations,
    render_page,
    title,
    value_of,
    workload_result,
)
from mrc.workload.compare import notes as notes_of
from mrc.workload.results import CheckVerdict, Over
from mrc.workload.run import scheduled_faults, unsupported
from mrc.workload.task import IPERF3

_LATE_NS = 50_000_000  # a change of a fault takes less, on a machine that is not too busy


def run(args: argparse.Namespace, out: Output, bed: Testbed) -> int:
    """Runs the traffic of the scenario `args.file`."""
    if args.page is not None and not drawing.available():
        raise UsageError(args.prog, drawing.HINT)
    with usage_errors(args):
        scenario = _load(args, bed)
    _require(args.over)
    check_writable(args.page)
    bed.connect()
    compared = run_async(_compare(args, out, bed, scenario))
    notes = list(notes_of(scenario, args.over))
    for each in compared:
        _print(out, each)
    for line in notes:
        out.note(line)
    if out.as_json:
        out.result(workload_result(scenario, compared))
    if args.page is not None:
        write_whole(Path(args.page), render_page(scenario, compared, notes).encode())
    missed = any(judged.met is False for each in compared for judged in each.judged)
    return Exit.FAILED if missed else Exit.OK


def _load(args: argparse.Namespace, bed: Testbed) -> Scenario:
    """Raises ConfigError, also for what this test bed or a transport cannot do."""
    settings = dict(parse_setting(text) for text in args.settings)
    try:
        scenario = fit.load(args.file, settings, bed.shape, args.scale)
    except BadFileError as error:
        load_scenario(args.file, settings)  # raises the same error, if the file itself is wrong
        raise ConfigError(
            f"{error}: the test bed has another shape; mrc testbed up {args.file} builds that of "
            "the file"
        ) from error
    if args.until is not None:
        scenario = _until(scenario, args.until)
    for part in scenario.parts:
        for over in args.over:
            if wrong := unsupported(part, over):
                raise ConfigError(f"{title(part)}: {wrong}")
        for seed in seeds_of(args):
            scheduled_faults(with_seed(part, seed), bed.plan)
    return scenario


def _require(overs: Sequence[Over]) -> None:
    """Raises StateError for a transport that this machine lacks."""
    if "iperf3" in overs:
        programs.require(IPERF3)
    if "mptcp" in overs and not beds.has_mptcp():
        raise StateError("this kernel has no MPTCP: it requires CONFIG_MPTCP")


def _until(scenario: Scenario, until_ns: int) -> Scenario:
    """Ends every run at this time."""
    variants = tuple(_until(part, until_ns) for part in scenario.variants)
    return replace(scenario, until_ns=min(scenario.until_ns, until_ns), variants=variants)


async def _compare(
    args: argparse.Namespace, out: Output, bed: Testbed, scenario: Scenario
) -> list[Compared]:
    loop = asyncio.get_running_loop()

    def told(event: FaultChange, seconds: float) -> None:
        what = "healed" if event.fault is None else f"fails: {event.fault}"
        line = f"{seconds:9.4f} s  {event.target} {what}"
        loop.call_soon_threadsafe(out.note, line)

    return [
        await compare(bed, part, seeds_of(args), args.over, out.note, told)
        for part in scenario.parts
    ]


def _print(out: Output, compared: Compared) -> None:
    out.text(f"{title(compared.part)}: {compared.part.title}\n")
    head = ["traffic", "over", "flows", "slowest", "mean", "packets retransmitted", "took"]
    out.text(format_table(head, list(_traffic_rows(compared))) + "\n")
    columns = (SIMULATOR, *compared.overs)
    rows = [list(_check_row(judged, columns)) for judged in compared.judged]
    out.text(format_table(["check", *columns, "target", "met"], rows) + "\n")
    for line in explanations(compared.judged):
        out.text(f"* {line}")
    for ran in compared.ran:
        if ran.late_ns > _LATE_NS:
            late = format_seconds(ran.late_ns / 1e9)
            out.warn(f"{ran.over}: a fault was {late} late: this machine is too busy")


def _traffic_rows(compared: Compared) -> Iterator[tuple[object, ...]]:
    """The first seed: each group in the simulator, and over each transport."""
    first = {SIMULATOR: compared.simulated[0]}
    first |= {over: compared.of(over)[0].result for over in compared.overs}
    for group in dict.fromkeys(traffic.group for traffic in compared.part.traffic):
        for name, result in first.items():
            numbers = result.of_group(group)
            rates = [flow_goodput_bps(result, i) for i in numbers]
            infos = [result.infos[i] for i in numbers]
            again = sum(info.retransmitted_packets for info in infos)
            end_ns = max(info.last_ns for info in infos)
            yield (
                group, name, len(numbers), format_rate(min(rates)),
                format_rate(sum(rates) / len(rates)),
                "-" if name == "mptcp" else again, format_seconds(end_ns / 1e9),
            )  # fmt: skip


def _check_row(judged: CheckVerdict, columns: Sequence[str]) -> Iterator[str]:
    yield judged.name
    for name in columns:
        if name in judged.not_applicable:
            yield "does not apply *"
        else:
            yield number(value_of(judged, name)) + (" *" if name in judged.differs else "")
    yield "" if judged.target is None else f"{judged.relation} {digits(judged.target)}"
    unmet = "" if judged.target is None else "not judged"
    yield unmet if judged.met is None else "yes" if judged.met else "no"
