# SPDX-License-Identifier: Apache-2.0
"""`mrc testbed`: a fabric of network namespaces on this machine, and faults in it."""

from __future__ import annotations

import argparse
import os
import shutil
from collections.abc import Callable, Iterable
from dataclasses import asdict
from typing import Any

from mrc import topology
from mrc.cli.exits import UsageError
from mrc.cli.output import Output, add_options, format_rate, print_error
from mrc.errors import ArgumentError, StateError
from mrc.sim.units import parse_size, parse_time
from mrc.testbed import (
    DEFAULT_NAME,
    DEFAULT_RATE,
    Fabric,
    Fault,
    Mode,
    Testbed,
    parse_loss,
    picture,
)
from mrc.testbed import state as stored
from mrc.testbed.plan import parse_rate
from mrc.testbed.rootless import require_root
from mrc.testbed.targets import FORMS

NOT_FOUND = 127

EXAMPLES = """\
examples:
  mrc testbed up                       two hosts, four planes, two T1s each, 500 Mbit/s
  mrc testbed exec h1 -- mrc recv --output /tmp/in
  mrc testbed exec h0 -- mrc send big.bin h1
  mrc testbed fail plane:2             its packets vanish, every link stays up
  mrc testbed fail t1:3.0 --loss 20%   one T1 of plane 3 loses every fifth packet
  mrc testbed heal all
  mrc testbed down
  mrc testbed up --fabric emulated --delay 5us     queues that mark and trim, in real time
  mrc testbed fail plane:2 --delay 1ms --reorder 1%
"""


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "testbed", help="build hosts, T0s and T1s from network namespaces", examples=EXAMPLES
    )
    name_help = "which test bed; several live side by side [lab]"
    parser.add_argument("--name", default=DEFAULT_NAME, metavar="NAME", help=name_help)
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)

    def add(word: str, act: Any, text: str) -> argparse.ArgumentParser:
        action: argparse.ArgumentParser = actions.add_parser(word, help=text, description=text)
        # The option is taken before and after the action; what stands later wins.
        action.add_argument("--name", default=argparse.SUPPRESS, metavar="NAME", help=name_help)
        action.set_defaults(run=run, act=act)
        return action

    up = add("up", _up, "build it; nothing happens if it is up already")
    _add_shape(up)
    down = add("down", _down, "remove it and all that belongs to it")
    status = add("status", _status, "show what is up and what fails")
    execute = add("exec", _exec, "run a command in a host, with MRC_CONFIG set")
    execute.add_argument("host", metavar="HOST", help="h0, h1, ...")
    execute.add_argument("--user", help="drop from root to this user")
    execute.add_argument(
        "words", nargs=argparse.REMAINDER, metavar="-- COMMAND", help="the command to run"
    )
    fail = add("fail", _fail, "let a plane, a switch or a link fail")
    fail.add_argument("target", metavar="TARGET", help=FORMS)
    fail.add_argument(
        "--mode", choices=[*Mode], default=Mode.SILENT,
        help="silent: drop packets, links stay up; down: take the links down [%(default)s]",
    )  # fmt: skip
    fail.add_argument(
        "--loss", type=_share, metavar="PERCENT", help="drop only so many, such as 20%%"
    )
    _add_impairments(fail)
    heal = add("heal", _heal, "end a fault")
    heal.add_argument("target", metavar="TARGET", help=f"all, {FORMS}")
    for action in (up, down, status, fail, heal):
        add_options(action)


def _add_shape(parser: argparse.ArgumentParser) -> None:
    for option, default, text in (
        ("--hosts", 2, "number of hosts"),
        ("--planes", 4, "number of planes"),
        ("--t1", 2, "T1s per plane"),
        ("--mtu", 9000, "of every link of the fabric, in bytes"),
    ):
        parser.add_argument(
            option, type=int, default=default, metavar="N", help=f"{text} [%(default)s]"
        )
    parser.add_argument(
        "--rate", default=DEFAULT_RATE, metavar="RATE",
        help="of every link of the fabric, such as 10gbit; none for no limit [%(default)s]",
    )  # fmt: skip
    parser.add_argument(
        "--fabric", choices=[*Fabric], default=Fabric.KERNEL,
        help="kernel: a namespace for each switch; emulated: the simulator's switches in real "
        "time, which queue, mark and trim [%(default)s]",
    )  # fmt: skip

    group = parser.add_argument_group("of an emulated fabric")
    for option, metavar, text in (
        ("--delay", "TIME", "of every link, such as 5us [0]"),
        ("--jitter", "TIME", "added to it by chance, up to this [0]"),
        ("--buffer", "SIZE", "of a switch port [10 ms at the rate, at least 256KiB]"),
        ("--ecn-low", "SIZE", "data is marked by chance from here on [a tenth of the buffer]"),
        ("--ecn-high", "SIZE", "and always from here on [four tenths of the buffer]"),
    ):
        parse = _time if metavar == "TIME" else _size
        group.add_argument(option, type=parse, default=0, metavar=metavar, help=text)
    group.add_argument(
        "--no-trim", action="store_true", help="drop what finds no room, with its header"
    )


def _add_impairments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("in an emulated fabric, alone or together")
    for word, text in (
        ("corrupt", "flip a bit in so many packets"),
        ("duplicate", "deliver so many twice"),
        ("reorder", "delay so many by up to 1 ms"),
    ):
        group.add_argument(f"--{word}", type=_share, metavar="PERCENT", help=text)
    group.add_argument(
        "--delay", type=_time, metavar="TIME", dest="delay_ns", help="add to all, such as 1ms"
    )
    group.add_argument(
        "--jitter", type=_time, metavar="TIME", dest="jitter_ns", help="add up to this by chance"
    )
    group.add_argument(
        "--rate", type=_rate, metavar="RATE", dest="rate_bps", help="of its links, such as 50mbit"
    )


def _unit(parse: Callable[[str], Any]) -> Callable[[str], Any]:
    def parsed(text: str) -> Any:
        try:
            return parse(text)
        except ValueError as exc:
            raise argparse.ArgumentTypeError(str(exc)) from exc

    return parsed


_time, _size, _rate, _share = map(_unit, (parse_time, parse_size, parse_rate, parse_loss))


def run(args: argparse.Namespace) -> int:
    if args.act is not _status:
        require_root()
    try:
        code: int = args.act(args)
    except ArgumentError as exc:
        raise UsageError(args.prog, str(exc)) from exc
    return code


def _up(args: argparse.Namespace) -> int:
    out = Output.of(args)
    shape = {key: getattr(args, key) for key in ("hosts", "planes", "t1", "rate", "mtu", "fabric")}
    if args.fabric == Fabric.EMULATED:
        shape |= {"delay_ns": args.delay, "jitter_ns": args.jitter, "trim": not args.no_trim}
        shape |= {"buffer_bytes": args.buffer}
        shape |= {"ecn_low_bytes": args.ecn_low, "ecn_high_bytes": args.ecn_high}
    elif any((args.delay, args.jitter, args.buffer, args.ecn_low, args.ecn_high, args.no_trim)):
        raise UsageError(args.prog, "a kernel fabric has none of these: --fabric emulated")
    bed = Testbed(args.name, **shape)
    built = bed.up()
    out.text(f"{args.name} {'is up' if built else 'was up already'}: {_summary(bed)}")
    out.result(_json(bed, {}) | {"built": built})
    return 0


def _down(args: argparse.Namespace) -> int:
    out = Output.of(args)
    removed = Testbed(args.name).down()
    out.text(f"{args.name} {'is down' if removed else 'was not up'}")
    out.result({"name": args.name, "state": "down", "removed": removed})
    return 0


def _status(args: argparse.Namespace) -> int:
    out = Output.of(args)
    found = stored.load(args.name)
    if found is None or not found.up:
        state = "down" if found is None else "half built"
        others = _listed(name for name in stored.names() if name != args.name)
        out.text(f"{args.name} is {state}; other test beds: {others}")
        out.result({"name": args.name, "state": state})
        return 1
    bed = Testbed.existing(args.name)
    out.text("\n".join([f"{args.name} is up: {_summary(bed)}", *_details(bed, found.faults)]))
    measured: dict[str, Any] = {}
    if bed.shape.fabric is Fabric.EMULATED and not bed.missing():
        measured = {"counters": bed.counters(), "links": bed.links()}
    out.result(_json(bed, found.faults) | measured)
    return 0


def _exec(args: argparse.Namespace) -> int:
    """Become the command; returns only if there is none of that name."""
    _take_options(args)
    bed = Testbed.existing(args.name)
    argv, environment = bed.host_command(args.host, args.words, user=args.user)
    for program, remedy in ((args.words[0], ""), (argv[0], ": apt-get install iproute2")):
        if shutil.which(program, path=environment["PATH"]) is None:
            print_error(args.prog, f"no command {program}{remedy}", NOT_FOUND, as_json=False)
            return NOT_FOUND
    return os.execvpe(argv[0], argv, environment)


def _take_options(args: argparse.Namespace) -> None:
    """Our own options may still stand between HOST and `--`; the command begins after them."""
    parser = argparse.ArgumentParser(prog=args.prog, allow_abbrev=False, add_help=False)
    parser.add_argument("--name")
    parser.add_argument("--user")
    words = args.words
    while words and (taken := words[0].split("=")[0]) in ("--name", "--user"):
        count = 1 if "=" in words[0] else 2
        if len(words) < count:
            raise UsageError(args.prog, f"argument {taken}: expected one argument")
        parser.parse_args(words[:count], namespace=args)
        words = words[count:]
    if words and words[0] == "--":
        words = words[1:]
    if not words:
        raise UsageError(args.prog, f"what to run? {args.prog} {args.host} -- COMMAND")
    args.words = words


def _fail(args: argparse.Namespace) -> int:
    out = Output.of(args)
    bed = Testbed.existing(args.name)
    words = ("corrupt", "duplicate", "reorder", "delay_ns", "jitter_ns", "rate_bps")
    impairment = {word: value for word in words if (value := getattr(args, word))}
    bed.fail(args.target, args.mode, args.loss, **impairment)
    fault = bed.faults()[args.target]
    out.text(f"{args.target} fails: {fault}")
    out.result({"name": args.name} | _fault_json(args.target, fault))
    return 0


def _heal(args: argparse.Namespace) -> int:
    out = Output.of(args)
    bed = Testbed.existing(args.name)
    healed = bed.heal(args.target)
    left = bed.faults()
    out.text(f"healed: {_listed(healed)}; still failing: {_listed(left)}")
    out.result({"name": args.name, "healed": healed, "failing": list(left)})
    return 0


def _listed(names: Iterable[str]) -> str:
    return ", ".join(names) or "none"


def _summary(bed: Testbed) -> str:
    shape = bed.shape
    rate = "no rate limit" if shape.rate_bps is None else f"{format_rate(shape.rate_bps)} a link"
    return (
        f"{shape.hosts} hosts, {shape.planes} planes, {shape.t1} T1s a plane, {rate}, "
        f"MTU {shape.mtu}" + (", emulated" if shape.fabric is Fabric.EMULATED else "")
    )


def _details(bed: Testbed, faults: dict[str, Fault]) -> list[str]:
    lines = picture.draw(bed.shape, faults)
    lines += [
        "",
        *_emulated(bed),
        *(f"{target} fails: {fault}" for target, fault in faults.items()),
    ]
    gone = bed.missing()
    if gone:
        lines.append(f"namespaces missing: {', '.join(gone)}; mrc testbed up builds it anew")
    return lines if lines[-1] else lines[:-1]


def _emulated(bed: Testbed) -> list[str]:
    """What an emulated fabric counted: in all, and on each link that did not just carry."""
    if bed.shape.fabric is Fabric.KERNEL or bed.missing():
        return []
    words = ("received", "sent", "marked", "trimmed", "dropped", "lost", "unroutable", "overloaded")
    try:
        counters = bed.counters()
    except StateError as exc:
        return [str(exc)]
    lines = ["packets: " + ", ".join(f"{counters[word]} {word}" for word in words)]
    if counters["overloaded"]:
        lines.append("overloaded: this machine is too slow for what it carries; results are wrong")
    for link, info in bed.links().items():
        told = [f"{info[word]} {word}" for word in words if info.get(word)]
        if told:
            lines.append(f"{link:16} {', '.join(told)}, queue up to {info['peak_bytes']} bytes")
    return [*lines, ""]


def _fault_json(target: str, fault: Fault) -> dict[str, Any]:
    """With what it does beside losing packets only where it does that."""
    told = {key: value for key, value in asdict(fault).items() if value}
    return {"target": target, "mode": fault.mode, "loss": fault.loss} | told


def _json(bed: Testbed, faults: dict[str, Fault]) -> dict[str, Any]:
    shape = bed.shape
    return {
        "name": bed.name,
        "state": "up",
        "hosts": [
            {
                "host": f"h{host}",
                "namespace": bed.plan.nodes[f"h{host}"].namespace,
                "config": str(stored.config_path(bed.name, f"h{host}")),
                "address": str(topology.host_address(host)),
                "oob": str(topology.oob_address(host)),
            }
            for host in range(shape.hosts)
        ],
        "planes": shape.planes,
        "t1": shape.t1,
        "rate_bits_per_second": shape.rate_bps,
        "mtu_bytes": shape.mtu,
        "fabric": shape.fabric,
        "faults": [_fault_json(target, fault) for target, fault in faults.items()],
        "missing": bed.missing(),
    }
