# SPDX-License-Identifier: Apache-2.0
"""`mrc testbed rsh`: runs a command in a host as ssh would, for launchers such as mpirun."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from mrc.cli.exits import UsageError
from mrc.linux import installed
from mrc.testbed import programs, spread
from mrc.testbed.names import DEFAULT_NAME

# Launchers tell hosts apart by their names, which network namespaces do not have. By the system
# call: in a user namespace, /proc/sys/kernel/hostname is not writable.
_AS_HOST = """\
import os, socket, sys
socket.sethostname(sys.argv[1])
os.execvp("sh", ["sh", "-c", sys.argv[2]])
"""


# Options of ssh(1) that launchers pass, by those that have a value. None means anything here.
_FLAGS, _VALUES = "46AaCfgKkNnqTtVvXxYy", "bceEFiIJlLmoOpQRSwW"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    for letter in _FLAGS:
        parser.add_argument(f"-{letter}", action="store_true", help=argparse.SUPPRESS)
    for letter in _VALUES:
        parser.add_argument(f"-{letter}", action="append", help=argparse.SUPPRESS)
    parser.add_argument("host", metavar="HOST", help="h0, h1, ...")
    parser.add_argument(
        "words", nargs=argparse.REMAINDER, metavar="COMMAND",
        help="words for a shell in that host, as for ssh",
    )  # fmt: skip


def run(args: argparse.Namespace) -> int:
    """Replaces this process by the command."""
    words = args.words[1:] if args.words[:1] == ["--"] else args.words
    if not words:
        raise UsageError(args.prog, f"no command: {args.prog} {args.host} COMMAND")
    around = os.environ.get(programs.ENVIRONMENT)  # of a launcher that runs in a host
    name = Path(around).name if around and args.name == DEFAULT_NAME else args.name
    bed = spread.existing(name)
    (unshare,) = installed.require("unshare")
    command = [unshare, "--uts", sys.executable, "-IS", "-c", _AS_HOST, args.host, " ".join(words)]
    argv, environment = bed.host_command(args.host, command)
    return os.execvpe(argv[0], argv, environment)
