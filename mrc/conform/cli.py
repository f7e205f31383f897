# SPDX-License-Identifier: Apache-2.0
"""`mrc conform`: judges implementations of MRC by packets."""

from __future__ import annotations

import argparse
import io
import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

from mrc import versions
from mrc.cli.arguments import add
from mrc.cli.output import Exit, Output, UsageError, format_table
from mrc.cli.runner import run_async
from mrc.config import ContextConfig
from mrc.conform import engine, exchanges, report
from mrc.conform.adapter import ManualDevice, ProgramAdapter, TcpAdapter, TestedDevice
from mrc.conform.case import Case, Cases, CaseText, load_cases, selected
from mrc.conform.engine import OobDevice
from mrc.conform.packets import JudgePeer
from mrc.conform.player import CaseOutcome, Player, Verdict
from mrc.conform.readings import READINGS, Readings, ReadingText
from mrc.dissect import vectors
from mrc.dissect.capture import CapturedFrame
from mrc.enums import Reading
from mrc.errors import BadFileError, ConfigError
from mrc.linux.system import check_writable, write_whole
from mrc.results import like
from mrc.units import counted, scaled

HELP = "judge an implementation of MRC by its packets"
EXAMPLES = """\
examples:
  mrc conform run                         mrc's own engine, over loopback
  mrc conform run h1                      the device at h1, where its adapter listens
  mrc conform run --adapter './nic.py'    a device behind a program of yours
  mrc conform run --exchange h1           mrc perf --server --insecure at h1, without an adapter
  mrc conform run h1 --case 'sack*' --captures out --junit out/junit.xml
  mrc conform run --attributes - --address 192.0.2.7 --case beyond-window
  mrc conform list                        the cases
  mrc conform show beyond-window          the steps of a case
  mrc conform readings                    where sources disagree, and what mrc does
  mrc conform vectors --json > v.json     golden packets, explained byte by byte
  mrc conform judge a.pcap                what a capture shows of two implementations
  mrc conform device                      the adapter of mrc's engine: for the other host
"""
RUN = """
device HOST[:PORT]     where the adapter of the device listens [mrc's engine, on this host]
--adapter COMMAND      run this program as the adapter, on its standard input and output
--exchange HOST[:PORT]  no adapter: connect as mrc's programs do, best to mrc perf --server
--attributes FILE      no adapter: QPs with these attributes, a line of JSON for each case; - for
                       standard input, where each line may follow the judge's own attributes
--address ADDRESS...   address of the judge, one for each plane [that towards the device]
--case PATTERN...      only cases whose name or file matches, such as 'sack*' or window
--cases FILE...        cases of these files in place of mrc's own
--wait SECONDS         how long a step waits for a packet [2 s]
--reading NAME...      judge and mrc's own engine follow this reading, such as C3-B
--first                stop after the first failed case
--seed N               draws QPN, PSN and ids from this number [a random one]
--captures FOLDER      write a pcap of each failed case there
--junit FILE           write the verdicts as JUnit XML
--html FILE            write the verdicts as a page
-v, --verbose          print the packets of failed cases
"""
CASES = "--cases FILE...  cases of these files in place of mrc's own"
PCAP = "--pcap FILE  write them to this capture, too"
DEVICE = """
-B, --interface NAME...   an interface or address to use, one for each plane [all]
--reading NAME...         follow this reading in place of mrc's own, such as C4-A
--listen                  serve judges over TCP, one after the other [standard input and output]
--port PORT               TCP port for --listen [%(default)s]
"""
JUDGE = """
file FILE        pcap or pcapng file with both directions
-p, --port PORT  UDP port that packets are sent to; may be repeated [all that carry MRC]
"""
JUDGE_HELP = "judge two implementations by a capture; exit code 1 if they break an invariant"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Judges an implementation of MRC: plays cases as its peer and compares its packets.\n"
        "A verdict names the readings of the specification that it assumed."
    )
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    path, patterns = {"type": Path}, "pattern PATTERN...  names of cases, or patterns\n"
    number = {"type": 65535, "what": "a port number"}
    of_run = {
        "device": {"nargs": "?"},
        "wait": {"default": 2.0},
        "case": {"metavar": "PATTERN"}, "cases": path, "captures": path, "junit": path,
        "html": path,
    }  # fmt: skip
    of_judge = {"file": {"nargs": None}, "port": number | {"action": "append"}}
    rows: tuple[tuple[str, Callable[[argparse.Namespace], int], str, dict[str, Any], str], ...] = (
        ("run", _run, RUN, of_run, "play cases against a device; exit code 1 if one fails"),
        ("list", _list, CASES, {"cases": path}, "list the cases"),
        ("show", _list, patterns + CASES, {"cases": path}, "print the steps of a case"),
        ("readings", _readings, "", {}, "print where sources disagree"),
        ("vectors", _vectors, PCAP, {"pcap": path},
         "print golden packets and exchanges, with their bytes explained"),
        ("judge", _judge, JUDGE, of_judge, JUDGE_HELP),
        ("device", _device, DEVICE, {"port": number | {"default": versions.TCP_PORT}},
         "be the adapter of mrc's engine"),
    )  # fmt: skip
    for word, act, options, types, text in rows:
        action = actions.add_parser(word, help=text, description=text)
        action.set_defaults(act=act)
        if options:
            add(action, options, **types)
        if word != "device":
            Output.add_options(action)


def run(args: argparse.Namespace) -> int:
    code: int = args.act(args)
    return code


# ---- Cases and readings ----------------------------------------------------------------------


def _list(args: argparse.Namespace) -> int:
    """Lists all cases, or shows the steps of some."""
    patterns = getattr(args, "pattern", ())
    out, cases = Output.of(args), selected(load_cases(args.cases), patterns)
    if patterns:
        out.text("\n\n".join(case.text for case in cases))
    else:
        rows = [(case.topic, case.name, case.title) for case in cases]
        out.text(format_table(("topic", "case", "a device"), rows))
        out.text(f"\n{counted(len(cases), 'case')}")
    out.result(Cases(cases=tuple(like(CaseText, case) for case in cases)))
    return Exit.OK


def _readings(args: argparse.Namespace) -> int:
    out = Output.of(args)
    for each in READINGS:
        place = f" (section {each.section})" if each.section else ""
        out.text(f"{each.id}  {each.title}{place}")
        for one in each.alternatives:
            ours = " <- mrc" if one.letter == each.ours else ""
            out.text(f"    {one.letter}: {one.text} ({', '.join(one.sources)}){ours}")
    out.result(Readings(readings=tuple(like(ReadingText, each) for each in READINGS)))
    return Exit.OK


def _vectors(args: argparse.Namespace) -> int:
    out = Output.of(args)
    packets, found = [*vectors.load().values(), *vectors.sealed()], exchanges.load_exchanges()
    out.text("\n".join(exchanges.golden_lines(packets, found)).rstrip())
    out.result(exchanges.golden_result(packets, found))
    if args.pcap is not None:
        made = io.BytesIO()
        exchanges.write_golden(made, packets, found)
        write_whole(args.pcap, made.getvalue())
    return Exit.OK


# ---- Devices ---------------------------------------------------------------------------------


def _run(args: argparse.Namespace) -> int:
    out = Output.of(args)
    ways = [each for each in (args.device, args.adapter, args.exchange, args.attributes) if each]
    readings = _readings_of(args)
    if len(ways) > 1:
        what = "HOST, --adapter, --exchange, --attributes"
        raise UsageError(args.prog, f"{what}: use only one of them")
    cases = selected(load_cases(args.cases), args.case)
    if args.captures is not None:
        args.captures.mkdir(parents=True, exist_ok=True)
    check_writable(args.junit, args.html)
    device, name, addresses = _opened(out, args)
    try:
        with closing(JudgePeer(args.address or addresses)) as peer:
            if isinstance(device, OobDevice):
                device.play_with(peer)
            player = Player(peer, device, readings, seconds=args.wait, seed=args.seed)
            outcomes = _played(out, player, cases, only_first=args.first)
    finally:
        device.close()
    _print(args, out, name, outcomes)
    failed = any(each.verdict is Verdict.FAILED for each in outcomes)
    return Exit.FAILED if failed else Exit.OK


def _opened(out: Output, args: argparse.Namespace) -> tuple[TestedDevice, str, list[str]]:
    """The device, its name, and the address of the judge towards it."""
    if args.device is not None:
        tcp = TcpAdapter(*args.device)
        return tcp, str(args.device), [tcp.local_address]
    if args.exchange is not None:
        host, port = args.exchange
        exchange = OobDevice(host, port, _readings_of(args))
        return exchange, str(args.exchange), [exchange.local_address]
    if (args.attributes is not None or args.adapter is not None) and not args.address:
        raise UsageError(args.prog, "--address is missing: the judge's own address")
    if args.attributes is not None:
        return ManualDevice(_lines(args.attributes), args.attributes, out.note), args.attributes, []
    if args.adapter is not None:
        return ProgramAdapter(args.adapter), args.adapter, []
    addresses = args.address or ["127.0.0.1", "127.0.0.2"]
    words = [sys.executable, "-P", "-m", "mrc", "conform", "device"]
    for address in addresses:
        words += ["--interface", address]
    for reading in args.reading:
        words += ["--reading", reading]
    return ProgramAdapter(shlex.join(words)), "mrc's engine", addresses


def _lines(name: str) -> Iterator[str]:
    """The lines of a file, or of standard input as they come."""
    if name == "-":
        return iter(sys.stdin)
    try:
        return iter(Path(name).read_text().splitlines())
    except (OSError, UnicodeDecodeError) as error:
        raise BadFileError(f"{name}: {getattr(error, 'strerror', None) or error}") from error


def _played(
    out: Output, player: Player, cases: list[Case], *, only_first: bool
) -> list[CaseOutcome]:
    outcomes: list[CaseOutcome] = []
    for case in cases:
        outcome = player.play(case)
        failed = outcome.verdict is Verdict.FAILED
        more = outcome.reason or report.agreement(outcome.readings)
        out.text(f"{outcome.verdict:8} {case.topic:10} {case.name}{': ' * bool(more)}{more}")
        if failed and out.verbose:
            out.text(report.transcript(outcome))
        outcomes.append(outcome)
        if player.is_lost or (only_first and failed):
            break
    if left := len(cases) - len(outcomes):
        out.note(f"not played: {counted(left, 'case')}")
    return outcomes


def _print(args: argparse.Namespace, out: Output, name: str, outcomes: list[CaseOutcome]) -> None:
    captures = {}
    if args.captures is not None:
        captures = {
            each.case.name: report.capture(args.captures, each)
            for each in outcomes
            if each.verdict is Verdict.FAILED
        }
    if args.junit is not None:
        report.write_junit(args.junit, name, outcomes)
    if args.html is not None:
        report.write_html(args.html, name, outcomes)
    names, told = report.agreed_readings(outcomes), report.counts_text(outcomes)
    took = scaled(sum(each.seconds for each in outcomes), "s")
    out.text(f"\n{name}: {told} in {took}")
    if names:
        out.text(report.agreement(names))
    for subject in report.contradictions(names):
        out.warn(f"the device follows several alternatives of {subject}")
    if unchecked := sum(len(each.unchecked) for each in outcomes):
        out.note(f"not checked: {counted(unchecked, 'step')}: the device cannot be asked")
    out.result(report.case_results(name, outcomes, captures))


# ---- Captures --------------------------------------------------------------------------------


def _judge(args: argparse.Namespace) -> int:
    out = Output.of(args)
    judge, packets = report.judged(CapturedFrame.of_file(args.file), args.port)
    result = report.capture_result(judge, packets)
    out.text("\n".join(report.capture_lines(result)))
    out.result(result)
    if not result.directions:
        out.note("no data of MRC was found")
    return Exit.FAILED if any(way.broken for way in result.directions) else Exit.OK


# ---- The adapter of mrc's engine -------------------------------------------------------------


def _device(args: argparse.Namespace) -> int:
    async def serve() -> None:
        async with engine.opened(tuple(args.interface), _readings_of(args)) as device:
            if args.listen:
                note = f"{args.prog}: waiting for judges at TCP port {args.port}"
                told = partial(print, note, file=sys.stderr, flush=True)
                await engine.listen(device, args.port, told)
            else:
                await engine.serve_standard_streams(device)

    run_async(serve())
    return Exit.OK


def _readings_of(args: argparse.Namespace) -> Reading:
    """The readings of the options. Raises UsageError for one without a switch."""
    known = {str(each.name).replace("_", "-"): each for each in Reading}
    found = Reading.OURS
    for name in args.reading:
        if name not in known:
            raise UsageError(args.prog, f"--reading: {name!r} is none of {', '.join(known)}")
        found |= known[name]
    try:
        ContextConfig(readings=found)
    except ConfigError as error:
        raise UsageError(args.prog, f"--reading: {error}") from None
    return found
