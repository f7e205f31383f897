# SPDX-License-Identifier: Apache-2.0
"""`mrc testbed exec`, `shell` and `rsh`: commands in a host or a switch."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from pathlib import Path

from mrc.cli.arguments import add
from mrc.cli.execute import become, refused
from mrc.cli.exits import Exit, UsageError
from mrc.cli.output import print_error
from mrc.linux import programs as installed
from mrc.testbed import bed as beds
from mrc.testbed import extras, mptcp, programs
from mrc.testbed.cli import schedule
from mrc.testbed.cli.action import Action
from mrc.testbed.names import DEFAULT_NAME

# PS1 comes after the user's own file, because that file may set PS1.
_BASH = """\
[ -f ~/.bashrc ] && . ~/.bashrc
PS1="($MRC_HOST) $PS1"
"""
OPTIONS = """
host HOST|SWITCH  h0, h1, ...; in a kernel fabric also t0:P.N, t1:P.S, t2:P.M or mgmt
--user USER       run as this user instead of root
"""
EXEC = """
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
    add(parser, EXEC)
    parser.add_argument(
        "words", nargs=argparse.REMAINDER, metavar="-- COMMAND", help="the command to run"
    )


def execute(args: argparse.Namespace) -> int:
    """Replaces this process by the command. Returns if the command cannot be run, and with
    --schedule when the command ends.
    """
    _take_options(args)
    bed = beds.existing(args.name)
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
    add(parser, OPTIONS)


def shell(args: argparse.Namespace) -> int:
    """Replaces this process by the shell; returns only if the shell is not found."""
    bed = beds.existing(args.name)
    if (machine := bed.elsewhere(args.host)) is not None:
        user = ["--user", args.user] if args.user else []
        words = ["shell", "--name", args.name, args.host, *user]
        code: int = extras.need(extras.THERE).forward(machine, words)
        return code
    program = os.environ.get("SHELL") or "/bin/sh"
    if shutil.which(program) is None:
        wrong = f"{program}: shell not found: set SHELL"
        print_error(args.prog, wrong, Exit.FAILED, as_json=False)
        return Exit.FAILED
    words = [program]
    if os.path.basename(program) == "bash":
        words += ["--rcfile", f"/proc/self/fd/{_in_memory(_BASH)}"]
    argv, environment = bed.host_command(args.host, words, user=args.user)
    prompt = f"({args.host}@{args.name}) $ "
    environment |= {"MRC_HOST": f"{args.host}@{args.name}", "PS1": prompt, "PROMPT": prompt}
    return os.execvpe(argv[0], argv, environment)


def _in_memory(text: str) -> int:
    """The descriptor of an unnamed file, which the shell inherits."""
    descriptor = os.memfd_create("mrc-shell", 0)
    os.write(descriptor, text.encode())
    os.set_inheritable(descriptor, True)
    return descriptor


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
    around = os.environ.get(programs.ENVIRONMENT)  # of a launcher that runs in a host
    name = Path(around).name if around and args.name == DEFAULT_NAME else args.name
    bed = beds.existing(name)
    (unshare,) = installed.require("unshare")
    command = [unshare, "--uts", sys.executable, "-IS", "-c", _AS_HOST, args.host, " ".join(words)]
    argv, environment = bed.host_command(args.host, command)
    return os.execvpe(argv[0], argv, environment)


ACTIONS = {
    "exec": Action(execute, add_exec_arguments, prints=False),
    "shell": Action(shell, add_shell_arguments, prints=False),
    "rsh": Action(rsh, add_rsh_arguments, prints=False),
}
