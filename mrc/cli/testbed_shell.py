# SPDX-License-Identifier: Apache-2.0
"""`mrc testbed shell`: a shell in a host, whose prompt says in which one."""

from __future__ import annotations

import argparse
import os
import shutil

from mrc.cli.exits import Exit
from mrc.cli.output import print_error
from mrc.testbed.bed import Testbed

# After the user's own file, which may set a prompt.
_BASH = """\
[ -f ~/.bashrc ] && . ~/.bashrc
PS1="($MRC_HOST) $PS1"
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("host", metavar="HOST", help="h0, h1, ...")
    parser.add_argument("--user", help="drop from root to this user")


def run(args: argparse.Namespace) -> int:
    """Become the shell; returns only if there is none."""
    bed = Testbed.existing(args.name)
    shell = os.environ.get("SHELL") or "/bin/sh"
    if shutil.which(shell) is None:
        print_error(args.prog, f"no shell {shell}: set SHELL", Exit.FAILED, as_json=False)
        return Exit.FAILED
    words = [shell]
    if os.path.basename(shell) == "bash":
        words += ["--rcfile", f"/proc/self/fd/{_in_memory(_BASH)}"]
    argv, environment = bed.host_command(args.host, words, user=args.user)
    prompt = f"({args.host}@{args.name}) $ "
    environment |= {"MRC_HOST": f"{args.host}@{args.name}", "PS1": prompt, "PROMPT": prompt}
    return os.execvpe(argv[0], argv, environment)


def _in_memory(text: str) -> int:
    """A file without a name, which the shell inherits."""
    descriptor = os.memfd_create("mrc-shell", 0)
    os.write(descriptor, text.encode())
    os.set_inheritable(descriptor, True)
    return descriptor
