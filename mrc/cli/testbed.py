# SPDX-License-Identifier: Apache-2.0
"""`mrc testbed`: a fabric of network namespaces on this machine, and faults in it."""

from __future__ import annotations

import argparse
import os
import shutil

from mrc.cli import (
    testbed_capture,
    testbed_fault,
    testbed_plan,
    testbed_run,
    testbed_shell,
    testbed_status,
)
from mrc.cli.exits import UsageError
from mrc.cli.output import Output, add_options, print_error
from mrc.cli.testbed_shape import add_shape, shape_of
from mrc.errors import ArgumentError, StateError
from mrc.results.plain import like
from mrc.results.testbed import Built, Removed
from mrc.testbed import rootless
from mrc.testbed import state as stored
from mrc.testbed.bed import Testbed
from mrc.testbed.names import DEFAULT_NAME

NOT_FOUND = 127

HELP = "build hosts, T0s and T1s from network namespaces"
EXAMPLES = """\
examples:
  mrc testbed up                       two hosts, four planes, two T1s each, 500 Mbit/s
  mrc testbed exec h1 -- mrc recv --output /tmp/in
  mrc testbed exec h0 -- mrc send big.bin h1
  mrc testbed fail plane:2             its packets vanish, every link stays up
  mrc testbed fail t1:3.0 --loss 20%   one T1 of plane 3 loses every fifth packet
  mrc testbed heal all
  mrc testbed run faults.toml          faults at their times, until the last has ended
  mrc testbed shell h0                 a shell there
  mrc testbed capture link:h0.2 a.pcap until ^C; capture h0 - | tshark -r -
  mrc testbed down
  mrc testbed plan clos --svg clos.svg             show what a topology file would build
  mrc testbed up clos --rate 100mbit               a built-in topology, slower; or my.toml
  mrc testbed up --fabric emulated --delay 5us     queues that mark and trim, in real time
  mrc testbed fail plane:2 --delay 1ms --reorder 1%
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    name_help = "which test bed; several live side by side [lab]"
    parser.add_argument("--name", default=DEFAULT_NAME, metavar="NAME", help=name_help)
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    for word, act, add_its_arguments, text in (
        ("plan", testbed_plan.run, testbed_plan.add_arguments, "show what up would build"),
        ("up", _up, add_shape, "build it; nothing happens if it is up already"),
        ("down", _down, None, "remove it and all that belongs to it"),
        ("status", testbed_status.run, testbed_status.add_arguments,
         "show what is up, fails and is carried"),
        ("exec", _exec, _add_exec_arguments, "run a command in a host, with MRC_CONFIG set"),
        ("shell", testbed_shell.run, testbed_shell.add_arguments, "open $SHELL in a host"),
        ("capture", testbed_capture.run, testbed_capture.add_arguments,
         "write what passes a host or a link as pcap"),
        ("fail", testbed_fault.fail, testbed_fault.add_fail_arguments,
         "let a plane, a switch or a link fail"),
        ("run", testbed_run.run, testbed_run.add_arguments,
         "let it fail as a file says, at which times"),
        ("heal", testbed_fault.heal, testbed_fault.add_heal_arguments, "end a fault"),
    ):  # fmt: skip
        action = actions.add_parser(word, help=text, description=text)
        # The option is taken before and after the action; what stands later wins.
        action.add_argument("--name", default=argparse.SUPPRESS, metavar="NAME", help=name_help)
        action.set_defaults(act=act)
        if add_its_arguments is not None:
            add_its_arguments(action)
        if act not in (_exec, testbed_shell.run):
            add_options(action)


def _add_exec_arguments(parser: argparse.ArgumentParser) -> None:
    testbed_shell.add_arguments(parser)
    parser.add_argument("--schedule", metavar="FILE", help="with faults at times from its start")
    parser.add_argument(
        "words", nargs=argparse.REMAINDER, metavar="-- COMMAND", help="the command to run"
    )


def run(args: argparse.Namespace) -> int:
    if args.act is not testbed_plan.run:
        _enter(args)
    try:
        code: int = args.act(args)
    except ArgumentError as exc:
        raise UsageError(args.prog, str(exc)) from exc
    return code


def _enter(args: argparse.Namespace) -> None:
    """Make an ordinary user root of what holds their test beds."""
    without = (testbed_status.run, _down)
    if rootless.enter(create=args.act is _up) or args.act in without:
        return
    if stored.load(args.name) is not None:
        raise StateError(f"test bed {args.name} is root's, and so is all that can be done with it")
    raise StateError(f"test bed {args.name} is not up: mrc testbed up --name {args.name}")


def _up(args: argparse.Namespace) -> int:
    out = Output.of(args)
    bed = Testbed.of(args.name, shape_of(args))
    built = bed.up()
    summary = testbed_status.summary(bed.shape)
    out.text(f"{args.name} {'is up' if built else 'was up already'}: {summary}")
    out.result(like(Built, testbed_status.bed_result(bed, {}), built=built))
    return 0


def _down(args: argparse.Namespace) -> int:
    out = Output.of(args)
    bed = Testbed(args.name)
    removed = (os.geteuid() == 0 or stored.load(args.name) is not None) and bed.down()
    if not stored.names():
        rootless.leave_for_good()
    out.text(f"{args.name} {'is down' if removed else 'was not up'}")
    out.result(Removed(name=args.name, removed=removed))
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
    if args.schedule is not None:
        return testbed_run.run_beside(bed, args.schedule, argv, environment, args.prog)
    return os.execvpe(argv[0], argv, environment)


def _take_options(args: argparse.Namespace) -> None:
    """Our own options may still stand between HOST and `--`; the command begins after them."""
    parser = argparse.ArgumentParser(prog=args.prog, allow_abbrev=False, add_help=False)
    parser.add_argument("--name")
    parser.add_argument("--user")
    parser.add_argument("--schedule")
    words = args.words
    while words and (taken := words[0].split("=")[0]) in ("--name", "--user", "--schedule"):
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
