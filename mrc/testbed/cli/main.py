# SPDX-License-Identifier: Apache-2.0
"""`mrc testbed`: builds hosts and a fabric from network namespaces, and injects faults."""

from __future__ import annotations

import argparse
from contextlib import nullcontext

from mrc.cli.arguments import add
from mrc.cli.ending import interruptible, undisturbed
from mrc.cli.exits import Exit, UsageError
from mrc.cli.output import Output, add_options
from mrc.cli.programs import become, refused
from mrc.errors import ArgumentError, ConfigError, StateError
from mrc.lab.cli import export as testbed_export
from mrc.lab.cli import join as testbed_join
from mrc.lab.cli import ocdai as testbed_import
from mrc.lab.cli import on as testbed_on
from mrc.linux import installed, netns
from mrc.results.plain import like
from mrc.testbed import machines, mptcp, rootless, spread
from mrc.testbed import state as stored
from mrc.testbed.bed import Testbed
from mrc.testbed.cli import capture as testbed_capture
from mrc.testbed.cli import drain as testbed_drain
from mrc.testbed.cli import fault as testbed_fault
from mrc.testbed.cli import plan as testbed_plan
from mrc.testbed.cli import rsh as testbed_rsh
from mrc.testbed.cli import shell as testbed_shell
from mrc.testbed.cli import status as testbed_status
from mrc.testbed.cli.shape import add_shape, shape_of
from mrc.testbed.names import DEFAULT_NAME
from mrc.testbed.programs import Removal
from mrc.testbed.results import Built, Removed
from mrc.view.cli import view as testbed_view
from mrc.workload.cli import run as testbed_run

_WITHOUT_BED = (testbed_plan.run, testbed_export.run, testbed_import.run, testbed_on.run_part)

HELP = "build hosts and planes from network namespaces, inject faults"
EXAMPLES = """\
examples:
  mrc testbed up                       2 hosts, 4 planes with 2 T1s, 500 Mbit/s
  mrc testbed exec h1 -- mrc recv --output /tmp/in
  mrc testbed exec h0 -- mrc send big.bin h1
  mrc testbed exec h0 -- ping h1.p2    in plane 2; h1: on all planes; h1.mgmt
  mrc testbed exec --mptcp h0 -- iperf3 -c h1
  mrc testbed fail plane:2             plane 2 drops all packets; links stay up
  mrc testbed fail t1:3.0 --loss 20%   T1 0 of plane 3 drops 20% of its packets
  mrc testbed fail plane:2 --delay 1ms --reorder 1%
  mrc testbed fail 't0:1.0>h0' --mtu 1500    one direction drops larger packets
  mrc testbed heal all                 end all faults
  mrc testbed drain t1:2.0             move traffic off this T1 without loss; undrain
  mrc testbed run faults.toml          inject the faults scheduled in this file
  mrc testbed run ring --over mrc,tcp  run the traffic of a scenario, beside the simulator
  mrc testbed shell h0                 open a shell in host h0
  mrc testbed rsh h0 'uname -n'        as ssh: by a shell, with the name of the host
  mrc testbed exec t1:2.0 -- ip -6 route    in a switch, by the name that faults use
  mrc testbed capture link:h0.2 a.pcap capture packets, until ^C
  mrc testbed capture h0 - | tshark -r -
  mrc testbed status --watch           refresh rates and queues once a second
  mrc testbed view                     watch it in a browser, and break it by clicks
  mrc testbed plan clos --svg clos.svg show a topology without building it
  mrc testbed export clos --netns-script clos.sh    also --containerlab, --switches
  mrc testbed import topology-map.yaml --output ocdai.toml    of OCP's Open Cluster Designs
  mrc testbed up clos --rate 100mbit   a built-in topology, with a lower rate
  mrc testbed up --hosts 4 --pods 2 --t2 2    three tiers: two pods, joined by two T2s
  mrc testbed up my.toml               a topology from a file
  mrc testbed up --fabric emulated     switches that queue, mark and trim
  mrc testbed up --uplink eth0         hosts reach the world: mrc testbed exec h0 -- ping 1.1.1.1
  mrc testbed up --planes 2 --real-host h1=tap1,tap2    h1 is a machine at the other end of these
  mrc testbed join h1                  a script for this machine
  mrc testbed up clos --on host-a,host-b --mtu 1450    over two machines, by ssh
  mrc testbed down                     remove the test bed
"""
EXEC = """
--schedule FILE  inject the faults that this file schedules, at times from the command's start
--mptcp          use MPTCP over all planes instead of TCP, by mptcpize
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    name_help = "name of the test bed; several can be up at the same time [lab]"
    parser.add_argument("--name", default=DEFAULT_NAME, metavar="NAME", help=name_help)
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    for word, act, add_its_arguments, text in (
        ("plan", testbed_plan.run, testbed_plan.add_arguments,
         "show what up would build, without building it"),
        ("export", testbed_export.run, testbed_export.add_arguments,
         "write a topology for containerlab, or as a script of ip(8)"),
        ("import", testbed_import.run, testbed_import.add_arguments,
         "make a topology file from a topology plan of OCP's Open Cluster Designs"),
        ("up", _up, _add_up_arguments, "build the test bed; a test bed that is up stays as it is"),
        ("down", _down, None, "remove the test bed, and end the programs of exec and shell in it"),
        ("status", testbed_status.run, testbed_status.add_arguments,
         "show the test bed, its faults and its traffic"),
        ("view", testbed_view.run, testbed_view.add_arguments,
         "show the test bed in a browser, where a click breaks and heals its parts"),
        ("join", testbed_join.run, testbed_join.add_arguments,
         "print what a real machine has to configure to be a host of the test bed"),
        ("exec", _exec, _add_exec_arguments,
         "run a command in a host, with MRC_CONFIG set, or in a switch"),
        ("shell", testbed_shell.run, testbed_shell.add_arguments,
         "open $SHELL in a host or a switch"),
        ("rsh", testbed_rsh.run, testbed_rsh.add_arguments,
         "run a command in a host as ssh would, for mpirun and other launchers"),
        ("capture", testbed_capture.run, testbed_capture.add_arguments,
         "write the packets of a host, a switch or a link to a pcap file"),
        ("fail", testbed_fault.fail, testbed_fault.add_fail_arguments,
         "inject a fault into a plane, a switch or a link"),
        ("drain", testbed_drain.drain, testbed_drain.add_drain_arguments,
         "move the hosts' traffic off a plane, a switch or a link without loss"),
        ("undrain", testbed_drain.undrain, testbed_drain.add_undrain_arguments,
         "let traffic return to what was drained"),
        ("run", testbed_run.run, testbed_run.add_arguments,
         "run the traffic and the faults of a scenario, or the faults that a file schedules"),
        ("heal", testbed_fault.heal, testbed_fault.add_heal_arguments,
         "end the fault of a target, or all faults"),
        ("part", testbed_on.run_part, testbed_on.add_part_arguments,
         "serve this machine's part of a test bed over several: up --on starts it"),
    ):  # fmt: skip
        action = actions.add_parser(word, help=text, description=text)
        # --name may come before or after the action; the last one counts.
        action.add_argument("--name", default=argparse.SUPPRESS, metavar="NAME", help=name_help)
        action.set_defaults(act=act)
        if add_its_arguments is not None:
            add_its_arguments(action)
        if act not in (_exec, testbed_shell.run, testbed_rsh.run, testbed_on.run_part):
            add_options(action)


def _add_up_arguments(parser: argparse.ArgumentParser) -> None:
    add_shape(parser)
    testbed_on.add_option(parser)


def _add_exec_arguments(parser: argparse.ArgumentParser) -> None:
    testbed_shell.add_arguments(parser)
    add(parser, EXEC)
    parser.add_argument(
        "words", nargs=argparse.REMAINDER, metavar="-- COMMAND", help="the command to run"
    )


def run(args: argparse.Namespace) -> int:
    try:
        with testbed_view.prepared(args) if args.act is testbed_view.run else nullcontext():
            if args.act not in _WITHOUT_BED:
                _enter(args)
            with interruptible():
                code: int = args.act(args)
    except ArgumentError as exc:
        raise UsageError(args.prog, str(exc)) from exc
    finally:
        with undisturbed():  # cut off in the middle, it would leave the keeper
            rootless.leave(stored.names)
    return code


def _enter(args: argparse.Namespace) -> None:
    """Makes an ordinary user root of the user namespace that holds the user's test beds."""
    if args.act is _up and args.on is not None and (lacks := netns.lacks()):
        raise StateError(f"a test bed over several machines requires root on each: needs {lacks}")
    without = (testbed_status.run, _down)
    if rootless.enter(create=args.act is _up) or args.act in without:
        return
    if stored.load(args.name) is not None:
        raise StateError(f"test bed {args.name} belongs to root: run this command as root")
    raise StateError(f"test bed {args.name} is not up: mrc testbed up --name {args.name}")


def _up(args: argparse.Namespace) -> int:
    out = Output.of(args)
    wanted = testbed_on.machines_of(args)
    bed = spread.of(args.name, shape_of(args), None if wanted is None else machines.located(wanted))
    built = bed.up()
    summary = testbed_status.summary(bed.shape)
    first = f"{args.name} {'is up' if built else 'was up already'}: {summary}"
    out.text("\n".join([first, *testbed_on.lines(bed)]))
    if out.as_json:  # else nothing that may fail: the test bed is up
        out.result(like(Built, testbed_status.bed_result(bed, {}), built=built))
    return 0


def _down(args: argparse.Namespace) -> int:
    out = Output.of(args)
    found = Removal(removed=False)
    if not netns.lacks() or stored.load(args.name) is not None:
        found = _named(args.name).down()
    for each in found.ended:
        out.text(f"ended in {each.node}: {each.command} (process {each.pid})")
    for each in found.left:
        out.warn(f"still runs, in {each.node} that is gone: {each.command} (process {each.pid})")
    out.text(f"{args.name} {'is down' if found.removed else 'was not up'}")
    for machine, why in found.unreachable.items():
        out.warn(
            f"{machine} does not answer: {why}; it keeps its part until mrc testbed down "
            f"--name {args.name} there"
        )
    out.result(like(Removed, found, name=args.name))
    return Exit.UNREACHABLE if found.unreachable else Exit.OK


def _named(name: str) -> Testbed:
    """A test bed to take down: also one whose file is damaged."""
    try:
        return spread.named(name)
    except ConfigError:
        return Testbed(name)


def _exec(args: argparse.Namespace) -> int:
    """Replaces this process by the command. Returns if the command cannot be run, and with
    --schedule when the command ends.
    """
    _take_options(args)
    bed = spread.existing(args.name)
    program = args.words[0]
    if args.mptcp:
        args.words = [*installed.require(mptcp.WRAPPER), "run", *args.words]
    argv, environment = bed.host_command(args.host, args.words, user=args.user)
    here = bed.elsewhere(args.host) is None
    if here and (code := refused(args.prog, program, environment["PATH"])):
        return code
    if args.mptcp:
        bed.prepare_mptcp(args.host)
    if args.schedule is not None:
        return testbed_run.run_beside(bed, args.schedule, argv, environment, args.prog)
    return become(args.prog, argv, environment)


def _take_options(args: argparse.Namespace) -> None:
    """Takes the options between HOST and `--`, and leaves the command in `args.words`."""
    parser = argparse.ArgumentParser(prog=args.prog, allow_abbrev=False, add_help=False)
    parser.add_argument("--name")
    parser.add_argument("--user")
    parser.add_argument("--schedule")
    parser.add_argument("--mptcp", action="store_true", default=argparse.SUPPRESS)
    options = ("--name", "--user", "--schedule", "--mptcp")
    words = args.words
    while words and (taken := words[0].split("=")[0]) in options:
        count = 1 if "=" in words[0] or taken == "--mptcp" else 2
        if len(words) < count:
            raise UsageError(args.prog, f"argument {taken}: expected one argument")
        parser.parse_args(words[:count], namespace=args)
        words = words[count:]
    if words and words[0] == "--":
        words = words[1:]
    elif words and words[0].startswith("-"):
        raise UsageError(
            args.prog, f"unrecognized option {words[0]}; a command comes after --, see --help"
        )
    if not words:
        raise UsageError(args.prog, f"no command: {args.prog} {args.host} -- COMMAND")
    args.words = words
