# SPDX-License-Identifier: Apache-2.0
"""`mrc demo`: sends a file over four planes, one of which falls silent during the transfer."""

from __future__ import annotations

import argparse
import os
from operator import attrgetter

from msgspec.structs import replace

from mrc.cli.arguments import size_argument
from mrc.cli.figures import column_chart
from mrc.cli.output import (
    Exit,
    Output,
    UsageError,
    add_options,
    format_bytes,
    format_rate,
    format_seconds,
    format_table,
)
from mrc.cli.runner import run_async
from mrc.demo.run import FAULTY_PLANE, RECOVERED_SHARE, DemoPlan, DemoResult, run_demo
from mrc.errors import ArgumentError
from mrc.linux import processes, programs
from mrc.testbed.bed import PROGRAMS
from mrc.testbed.cli.plan import rate_argument
from mrc.testbed.rootless import become_root, enter
from mrc.transfer.threads import in_thread
from mrc.units import counted

HELP = "send a file through a test bed while one of its planes fails"
EXAMPLES = """\
examples:
  mrc demo                             256 MiB over four planes of 500 Mbit/s
  mrc demo --planes 8 --rate 200mbit --size 512MiB
  mrc demo --json | jq .recovery_seconds
"""
_MIN_BYTES = 1 << 20
_CHART_ROWS = 6
_CHART_COLUMNS = 72


def size(text: str) -> int:
    """An argparse type: 268435456, 256MiB, 1 GiB."""
    count = size_argument(text)
    if count < _MIN_BYTES:
        wrong = "less than 1 MiB: the file would arrive before the plane fails"
        raise argparse.ArgumentTypeError(f"{text!r} is {wrong}")
    return count


def rate(text: str) -> int:
    """An argparse type: 500mbit."""
    bps = rate_argument(text)
    if bps is None:
        raise argparse.ArgumentTypeError("the demo compares goodput with the rate: name a rate")
    return bps


def planes(text: str) -> int:
    """An argparse type: enough planes that one survives the fault of another."""
    if not text.isdigit() or int(text) < FAULTY_PLANE:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a number of planes from {FAULTY_PLANE}: one of the planes fails"
        )
    return int(text)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    for option, kind, default, text in (
        ("--rate", rate, "500mbit", "rate of each plane"),
        ("--planes", planes, 4, f"number of planes, at least {FAULTY_PLANE}"),
        ("--t1", int, 2, "T1s in each plane"),
        ("--size", size, "256MiB", "size of the file, at least 1MiB"),
        ("--seed", int, 1, "seed of the random bytes in the file"),
    ):
        parser.add_argument(option, type=kind, default=default, help=f"{text} [%(default)s]")
    parser.add_argument("--name", help="name of the test bed [demo-PID]")
    parser.add_argument("--keep", action="store_true", help="keep the test bed up after the demo")
    add_options(parser)


def run(args: argparse.Namespace) -> int:
    if args.keep:
        enter(create=True)
    else:
        become_root()
    plan = DemoPlan(
        name=args.name or f"demo-{os.getpid()}",
        rate_bps=args.rate,
        planes=args.planes,
        t1=args.t1,
        bytes=args.size,
        seed=args.seed,
        keep=args.keep,
    )
    try:
        return run_async(_demo(plan, Output.of(args)))
    except ArgumentError as error:
        raise UsageError(args.prog, str(error)) from error


async def _demo(plan: DemoPlan, out: Output) -> int:
    programs.require(*PROGRAMS)
    earlier = await in_thread(processes.measure_processors)
    if earlier.is_busy:
        out.note(f"this machine {earlier}; the figures below are lower for it")
    result = await run_demo(plan, out.note)
    machine = min(earlier, await in_thread(processes.measure_processors), key=attrgetter("share"))
    out.text(_planes_table(result))
    out.text("")
    out.text("\n".join(_chart(result)))
    out.text("")
    lower = "; the figures above are lower for it" if machine.is_busy else ""
    out.text("\n".join([*_summary(result), f"the machine     {machine}{lower}"]))
    out.result(replace(result.report(), processor_share=machine.share))
    return Exit.OK if result.identical else Exit.NOT_VERIFIED


def _planes_table(result: DemoResult) -> str:
    """The rate of each plane's payload before the fault, during it, and after healing."""
    at_fault, at_heal, at_end = result.plane_bytes
    phases: tuple[tuple[float, dict[int, int], dict[int, int]], ...] = (
        (result.failed - result.began, {}, at_fault),
        (result.healed - result.failed, at_fault, at_heal),
        (result.ended - result.healed, at_heal, at_end),
    )
    head = ("plane", "before", "while silent", "after healing", "packets", "lost", "share")
    total = sum(plane["sent_bytes"] for plane in result.sender["planes"]) or 1
    rows = []
    for plane in result.sender["planes"]:
        number = plane["plane"]
        rates = (
            format_rate(max(end.get(number, 0) - begin.get(number, 0), 0) * 8 / seconds)
            if seconds > 0
            else "not measured"
            for seconds, begin, end in phases
        )
        share = f"{plane['sent_bytes'] / total:.1%}"
        rows.append((number, *rates, plane["sent_packets"], plane["lost_packets"], share))
    return format_table(head, rows)


def _chart(result: DemoResult) -> list[str]:
    """Goodput over time. Marks show when the plane failed and when it was healed."""
    bins = result.bins()
    if not bins:
        return ["too short for a chart: use a larger --size"]
    group = -(-len(bins) // _CHART_COLUMNS)
    grouped = [bins[i : i + group] for i in range(0, len(bins), group)]
    values = [sum(each.bits_per_second for each in part) / len(part) for part in grouped]
    width = bins[0].width * group
    marks = {
        int((moment - result.began) / width): letter
        for moment, letter in ((result.failed, "F"), (result.healed, "H"))
    }
    rows = _CHART_ROWS
    lines = column_chart(values, top=result.capacity, rows=rows, marks=marks, label=format_rate)
    meaning = f"F: plane {FAULTY_PLANE} falls silent, H: it is healed"
    return [*lines, f"{'':>14}a column is {format_seconds(width)}; {meaning}"]


def _summary(result: DemoResult) -> list[str]:
    planes = result.plan.planes
    before = result.limit(planes, result.before)
    after = result.limit(planes - 1, result.after)
    return [
        f"sent            {format_bytes(result.plan.bytes)} in"
        f" {format_seconds(result.ended - result.began)}",
        f"goodput before  {format_rate(result.goodput_before)},"
        f" {result.goodput_before / before:.1%} of {format_rate(before)}, which"
        f" {counted(planes, 'plane')} can carry with full buckets",
        f"goodput after   {format_rate(result.goodput_after)},"
        f" {result.goodput_after / after:.1%} of {format_rate(after)}, which the surviving"
        f" {planes - 1} can carry",
        f"recovery        {_recovery(result)}",
        f"retransmitted   {result.sender['retransmitted_packets']} of"
        f" {counted(result.sender['sent_packets'], 'packet')}",
        f"the bytes       {'are the same' if result.identical else 'DIFFER'}",
    ]


def _recovery(result: DemoResult) -> str:
    level = f"{RECOVERED_SHARE:.0%} of the surviving capacity"
    if not result.dips:
        return f"goodput was never below {level}"
    seconds = result.recovery_seconds
    if seconds is None:
        back = "it did not recover"
    elif seconds == 0:
        back = "it did not dip at the fault"
    else:
        back = f"it recovered {format_seconds(seconds)} after the fault"
    return f"goodput was below {level} for {format_seconds(result.below_seconds)} in total; {back}"
