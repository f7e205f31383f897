# SPDX-License-Identifier: Apache-2.0
"""`mrc testbed shell`: opens a shell in a host or a switch. The prompt shows where."""

from __future__ import annotations

import argparse
import os
import shutil

from mrc.cli.arguments import add
from mrc.cli.exits import Exit
from mrc.cli.output import print_error
from mrc.lab.cli import on as testbed_on
from mrc.testbed import spread

# PS1 comes after the user's own file, because that file may set PS1.
_BASH = """\
[ -f ~/.bashrc ] && . ~/.bashrc
PS1="($MRC_HOST) $PS1"
"""
OPTIONS = """
host HOST|SWITCH  h0, h1, ...; in a kernel fabric also t0:P.N, t1:P.S, t2:P.M or mgmt
--user USER       run as this user instead of root
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add(parser, OPTIONS)


def run(args: argparse.Namespace) -> int:
    """Replaces this process by the shell; returns only if the shell is not found."""
    bed = spread.existing(args.name)
    if (machine := bed.elsewhere(args.host)) is not None:
        user = ["--user", args.user] if args.user else []
        return testbed_on.forward(machine, ["shell", "--name", args.name, args.host, *user])
    shell = os.environ.get("SHELL") or "/bin/sh"
    if shutil.which(shell) is None:
        wrong = f"{shell}: shell not found: set SHELL"
        print_error(args.prog, wrong, Exit.FAILED, as_json=False)
        return Exit.FAILED
    words = [shell]
    if os.path.basename(shell) == "bash":
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
