# SPDX-License-Identifier: Apache-2.0
"""Actions of `mrc testbed`: `up` and `down`; `exec`, `shell` and `rsh`: commands in a host or a
switch; `fail` and `heal`: faults; `drain` and `undrain`: maintenance without loss; `capture`: the
packets of a host or a link.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import select
import shutil
import sys
import time
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from mrc.cli.arguments import add
from mrc.cli.output import Exit, Output, UsageError
from mrc.cli.runner import become, refused
from mrc.errors import StateError
from mrc.linux import netns, system
from mrc.results import plain
from mrc.testbed import bed as beds
from mrc.testbed import capture, operations, schedule
from mrc.testbed.bed import Testbed
from mrc.testbed.cli import status
from mrc.testbed.cli.main import Action
from mrc.testbed.cli.plan import add_up_arguments
from mrc.testbed.faults import Mode, parse_loss, rate_fields
from mrc.testbed.shape import (
    DEFAULT_NAME,
    as_argument_error,
    extra,
    is_host,
    part_name,
)
from mrc.testbed.signals import FirstSignal
from mrc.testbed.topology import Target

# ---- up, down ------------------------------------------------------------------------------------


def _allowed(args: argparse.Namespace) -> AbstractContextManager[None]:
    if getattr(args, "on", None) is not None and (lacks := netns.lacks()):
        raise StateError(f"a test bed over several machines requires root on each: needs {lacks}")
    return nullcontext()


def up(args: argparse.Namespace) -> int:
    out = Output.of(args)
    shape, names = args.shape(args), getattr(args, "on", None)
    machines = None if names is None else extra("outside").located(names)
    bed = Testbed.spanning(args.name, shape, machines)
    built = bed.up()
    first = f"{args.name} {'is up' if built else 'was up already'}: {bed.summary()}"
    out.text("\n".join([first, *status.machines(bed)]))
    if out.as_json:  # else nothing that may fail: the test bed is up
        out.result(operations.built(bed, anew=built))
    return 0


def down(args: argparse.Namespace) -> int:
    out = Output.of(args)
    found = operations.down(args.name)
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
    out.result(found)
    return Exit.UNREACHABLE if found.unreachable else Exit.OK


# ---- exec, shell, rsh ----------------------------------------------------------------------------


# PS1 comes after the user's own file, because that file may set PS1.
_BASH = """\
[ -f ~/.bashrc ] && . ~/.bashrc
PS1="($MRC_HOST) $PS1"
"""
_INSIDE = """
host HOST|SWITCH  h0, h1, ...; in a kernel fabric also t0:P.N, t1:P.S, t2:P.M or mgmt
--user USER       run as this user instead of root
"""
_EXEC = """
--schedule FILE  inject the faults that this file schedules, at times from the command's start
--mptcp          use MPTCP over all planes instead of TCP, by mptcpize
"""
# Launchers tell hosts apart by their names, which network namespaces do not have. By the system
# call: in a user namespace, /proc/sys/kernel/hostname is not writable.
_AS_HOST = """\
import os, socket, sys
socket.sethostname(sys.argv[1])
os.execvp("sh", ["sh", "-c", sys.argv[2]])
"""


# Options of ssh(1) that launchers pass, by those that have a value. None means anything here.
_FLAGS, _VALUES = "46AaCfgKkNnqTtVvXxYy", "bceEFiIJlLmoOpQRSwW"


def add_exec_arguments(parser: argparse.ArgumentParser) -> None:
    add_shell_arguments(parser)
    add(parser, _EXEC)
    parser.add_argument(
        "words", nargs=argparse.REMAINDER, metavar="-- COMMAND", help="the command to run"
    )


def execute(args: argparse.Namespace) -> int:
    """Replaces this process by the command. Returns if the command cannot be run, and with
    --schedule when the command ends.
    """
    _take_options(args)
    bed = Testbed.existing(args.name)
    program = args.words[0]
    if args.mptcp:
        args.words = [*system.require(beds.MPTCP_WRAPPER), "run", *args.words]
    argv, environment = bed.host_command(args.host, args.words, user=args.user)
    here = bed.elsewhere(args.host) is None
    if here and (code := refused(args.prog, program, environment["PATH"])):
        return code
    if args.mptcp:
        bed.prepare_mptcp(args.host)
    if args.schedule is not None:
        return schedule.run_beside(bed, args.schedule, argv, environment, args.prog)
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


def add_shell_arguments(parser: argparse.ArgumentParser) -> None:
    add(parser, _INSIDE)


def shell(args: argparse.Namespace) -> int:
    """Replaces this process by the shell; returns only if the shell is not found."""
    bed = Testbed.existing(args.name)
    if (machine := bed.elsewhere(args.host)) is not None:
        user = ["--user", args.user] if args.user else []
        words = ["shell", "--name", args.name, args.host, *user]
        code: int = extra("remote").forward(machine, words)
        return code
    program = os.environ.get("SHELL") or "/bin/sh"
    if shutil.which(program) is None:
        raise StateError(f"{program}: shell not found: set SHELL")
    words = [program]
    if os.path.basename(program) == "bash":
        descriptor = os.memfd_create("mrc-shell", 0)  # an unnamed file, which the shell inherits
        os.write(descriptor, _BASH.encode())
        os.set_inheritable(descriptor, True)
        words += ["--rcfile", f"/proc/self/fd/{descriptor}"]
    argv, environment = bed.host_command(args.host, words, user=args.user)
    prompt = f"({args.host}@{args.name}) $ "
    environment |= {"MRC_HOST": f"{args.host}@{args.name}", "PS1": prompt, "PROMPT": prompt}
    return os.execvpe(argv[0], argv, environment)


def add_rsh_arguments(parser: argparse.ArgumentParser) -> None:
    for letter in _FLAGS:
        parser.add_argument(f"-{letter}", action="store_true", help=argparse.SUPPRESS)
    for letter in _VALUES:
        parser.add_argument(f"-{letter}", action="append", help=argparse.SUPPRESS)
    parser.add_argument("host", metavar="HOST", help="h0, h1, ...")
    parser.add_argument(
        "words", nargs=argparse.REMAINDER, metavar="COMMAND",
        help="words for a shell in that host, as for ssh",
    )  # fmt: skip


def rsh(args: argparse.Namespace) -> int:
    """Replaces this process by the command."""
    words = args.words[1:] if args.words[:1] == ["--"] else args.words
    if not words:
        raise UsageError(args.prog, f"no command: {args.prog} {args.host} COMMAND")
    around = os.environ.get(beds.FOLDER_VARIABLE)  # of a launcher that runs in a host
    name = Path(around).name if around and args.name == DEFAULT_NAME else args.name
    bed = Testbed.existing(name)
    (unshare,) = system.require("unshare")
    command = [unshare, "--uts", sys.executable, "-IS", "-c", _AS_HOST, args.host, " ".join(words)]
    argv, environment = bed.host_command(args.host, command)
    return os.execvpe(argv[0], argv, environment)


# ---- fail, heal, drain, undrain ------------------------------------------------------------------


_FAIL = f"""
target TARGET   what fails: {Target.FORMS}
--mode          silent: drop packets while links stay up; down: take the links down [%(default)s]
--loss PERCENT  drop this share of the packets, such as 20%% [100%%; 0%% with options below]
--rate RATE     limit each link to this rate, such as 50mbit, or to a share of its own rate, such as
                10%%
--mtu N         drop IPv6 packets larger than N bytes, both headers included
"""
_IMPAIRMENTS = """
--corrupt PERCENT    flip a bit in this share of the packets
--duplicate PERCENT  deliver this share of the packets twice
--reorder PERCENT    delay this share of the packets by up to 1 ms
--delay TIME         delay all packets by this time, such as 1ms
--jitter TIME        add a random delay of at most this time
"""
_DRAIN = """\
Move the hosts' traffic off a part of the fabric: each host withdraws its routes
over it. Packets in flight still arrive. mrc goes on on other paths without a
retransmission. What would leave two hosts without a path is refused.
"""


def add_fail_arguments(parser: argparse.ArgumentParser) -> None:
    mode = {"choices": [*Mode], "default": Mode.SILENT}
    add(
        parser,
        _FAIL,
        mode=mode,
        loss={"type": parse_loss},
        rate={"type": rate_fields, "default": {}},
    )
    group = "impairments (require an emulated fabric, or netem in the kernel)"
    shares = {word: {"type": parse_loss} for word in ("corrupt", "duplicate", "reorder")}
    times = {word: {"dest": f"{word}_ns"} for word in ("delay", "jitter")}
    add(parser.add_argument_group(group), _IMPAIRMENTS, **shares, **times)


def add_heal_arguments(parser: argparse.ArgumentParser) -> None:
    add(parser, f"target TARGET  what to heal: {Target.FORMS}; all: all faults")


def fail(args: argparse.Namespace) -> int:
    out = Output.of(args)
    bed = Testbed.existing(args.name)
    words = ("corrupt", "duplicate", "reorder", "delay_ns", "jitter_ns", "mtu")
    impairment = {word: value for word in words if (value := getattr(args, word)) is not None}
    before = bed.faults().get(args.target)
    result = operations.fail(bed, args.target, args.mode, args.loss, **impairment, **args.rate)
    fault = bed.faults()[args.target]
    replaced = f"; no longer: {before}" if before not in (None, fault) else ""
    out.text(f"{args.target} fails: {fault}{replaced}")
    out.result(result)
    return 0


def heal(args: argparse.Namespace) -> int:
    out = Output.of(args)
    bed = Testbed.existing(args.name)
    found = operations.heal(bed, args.target)
    out.text(
        f"healed: {status.listed(found.healed)}; still failing: {status.listed(found.failing)}"
    )
    out.result(found)
    return 0


def add_drain_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = _DRAIN
    add(parser, f"target TARGET  what to drain: {Target.FORMS}")


def add_undrain_arguments(parser: argparse.ArgumentParser) -> None:
    add(parser, f"target TARGET  what to use again: {Target.FORMS}; all: all that is drained")


def drain(args: argparse.Namespace) -> int:
    out = Output.of(args)
    found = operations.drain(Testbed.existing(args.name), args.target)
    out.text(f"{args.target} {'is' if found.changed else 'was already'} drained")
    out.result(found)
    return 0


def undrain(args: argparse.Namespace) -> int:
    out = Output.of(args)
    found = operations.undrain(Testbed.existing(args.name), args.target)
    changed, left = status.listed(found.changed), status.listed(found.drained)
    out.text(f"in use again: {changed}; still drained: {left}")
    out.result(found)
    return 0


# ---- capture -------------------------------------------------------------------------------------


_MAX_SNAP_BYTES = 1 << 18

_CAPTURE_TEXT = """\
Write the packets of a host, a switch or a link to a pcap file, until SIGINT. tcpdump is
not required. The kernel moves bursts as one packet: capture splits a burst
into packets as on a wire, with their own lengths and checksums. A packet that
crosses two of the captured interfaces is written twice.
"""
_CAPTURE = f"""
where HOST|SWITCH|LINK  h0, h1, ... for all ports of a host; mgmt; or {Target.FORMS}
file FILE               file to write; -: stdout, such as for tshark -r -
--count N               stop after this many packets [no limit]
--seconds S             stop after this time [no limit]
--snaplen BYTES         keep only this many bytes of each packet [all]
"""


def _add_capture_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = _CAPTURE_TEXT
    add(
        parser,
        _CAPTURE,
        count={"type": 1 << 40},
        seconds={"type": "SECONDS"},
        snaplen={"type": 1 << 31, "default": _MAX_SNAP_BYTES},
    )
    parser.add_argument("--until-eof", action="store_true", help=argparse.SUPPRESS)


def capture_packets(args: argparse.Namespace) -> int:
    out = Output.of(args)
    if args.file == "-" and (args.json or sys.stdout.isatty()):
        wrong = "FILE -: requires a pipe on stdout, and excludes --json"
        raise UsageError(args.prog, wrong)
    bed = Testbed.existing(args.name)
    if is_host(args.where):
        bed.elsewhere(args.where)  # its error names the hosts
    with as_argument_error():
        where = capture.interfaces(bed.plan, args.where)
    places = {bed.elsewhere(part_name(node)) for node, _ in where}
    if len(places) > 1:
        raise UsageError(
            args.prog, f"{args.where} is on several machines: capture one of its links or switches"
        )
    if (machine := places.pop()) is not None:
        found: int = extra("remote").capture(args, out, machine)
        return found
    names = " ".join(map(":".join, where))
    deadline = None if args.seconds is None else time.monotonic() + args.seconds

    def begun() -> None:
        out.note(f"capturing at {names}")
        if not capture.splits_bursts():
            out.note("this kernel is older than Linux 6.2: the file shows a burst as one packet")

    with FirstSignal() as ending, capture.opened(args.file) as file:
        wanted = capture.Capture(file, min(args.snaplen, _MAX_SNAP_BYTES), args.count)
        try:
            captured = wanted.run(
                bed.plan,
                where,
                begun,
                lambda: (
                    ending.signum is not None
                    or (deadline or math.inf) <= time.monotonic()
                    or (args.until_eof and bool(select.select([0], [], [], 0)[0]))
                ),
            )
        except BrokenPipeError:
            out.note("stopped: the reader of the packets closed the pipe")
            return 0
    if args.until_eof:  # stdout has the packets
        out.warn(json.dumps(plain(captured)))
    else:
        captured.tell(out)
    return 0


ACTIONS = {
    "up": Action(up, add_up_arguments, "new", prepared=_allowed),
    "down": Action(down, needs="name"),
    "exec": Action(execute, add_exec_arguments, prints=False),
    "shell": Action(shell, add_shell_arguments, prints=False),
    "rsh": Action(rsh, add_rsh_arguments, prints=False),
    "fail": Action(fail, add_fail_arguments),
    "heal": Action(heal, add_heal_arguments),
    "drain": Action(drain, add_drain_arguments),
    "undrain": Action(undrain, add_undrain_arguments),
    "capture": Action(capture_packets, _add_capture_arguments),
}
