# SPDX-License-Identifier: Apache-2.0
"""`mrc recv`: receives files from any number of senders at the same time."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from mrc.cli import endpoint
from mrc.cli.arguments import add
from mrc.cli.output import Output, UsageError
from mrc.transfer.limits import CHUNK_BYTES, SenderLimits
from mrc.units import parse_short_size

HELP = "receive files and folders from hosts that run mrc send"
EXAMPLES = """\
examples:
  mrc recv --output inbox              store files in the folder inbox; asks once about each sender
                                       (y: until it ends, always: in ~/.config/mrc/allowed)
  mrc recv --output inbox --code       print a one-time code, with which one sender may send;
                                       exit after it
  mrc recv --output inbox --overwrite  replace existing files
  mrc recv --output inbox --once       exit after one sender
  mrc recv --stdout | tar x            pass on the bytes of one sender
  mrc recv --once --bins               goodput in bins of 10 ms
  mrc recv --output inbox -B eth1 --udp-port 4800
                                       on one interface, and a UDP port for the firewall
  mrc recv --output inbox --json       print one line of JSON for each sender
"""
DEFAULTS = SenderLimits()
DEFAULT_BIN = "10ms"
WHERE = """
--output DIR  folder for the files, made if it is missing; required without a terminal and in your
              home directory [the current directory]
--stdout      write the bytes of one sender's files to standard output, one file after the other,
              and exit; each chunk is verified before it is written
--once        exit after serving one sender: the first whose data arrives
"""
HOW = """
--overwrite  replace existing files
--no-meta    do not take mode and modification time from the sender (setuid, setgid and sticky bits
             never)
--no-resume  keep no file of a transfer that is interrupted, and remove what was kept
--fsync      sync each file and its folder to the disk before the sender is told that it is stored
             [a host that loses power may lose the files of the last half minute]
"""
LIMITS = f"""
--any-name         also accept file names that begin with '.' or '-' or contain control characters
--max-bytes BYTES  most bytes of all files of one sender together [{DEFAULTS.bytes >> 40}T]
--max-files COUNT  most files and folders of one sender [%(default)s]
--rate RATE        all senders together send at most at this rate, such as 20mbit: each file of one
                   gets its share when it begins [no limit]
--idle SECONDS     disconnect a sender that makes no progress for this time; its standard input may
                   pause [%(default)g]
--memory BYTES     buffer for one sender's data until it is on disk: long-distance, fast paths need
                   all of it, others a few chunks of 4M; all senders together get 8 times
                   this [{DEFAULTS.window_bytes >> 20}M]
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add(parser, WHERE)
    endpoint.add_listening(parser, "TCP port to listen on; 0: the system chooses one")
    endpoint.add_endpoint_options(parser)
    endpoint.add_engines(parser)
    endpoint.add_trust_options(parser, listens=True, connects=False)
    add(parser, HOW)
    add(
        parser.add_argument_group("limits (anybody who can reach the port can send)"),
        LIMITS,
        max_bytes={"default": DEFAULTS.bytes},
        max_files={"type": 1 << 40, "what": "a number of files", "default": DEFAULTS.files},
        rate={"default": 0.0},
        idle={"default": DEFAULTS.idle_seconds},
        memory={"type": _window_bytes, "default": DEFAULTS.window_bytes},
    )
    endpoint.add_bins_option(
        parser,
        DEFAULT_BIN,
        "with --once: record the bytes received in bins of this width; show the longest gap",
    )
    endpoint.add_view_options(parser, listens=True)
    Output.add_options(parser)


def _window_bytes(text: str) -> int:
    length = parse_short_size(text)
    if not CHUNK_BYTES <= length <= 1 << 40:
        raise ValueError(f"{text!r} is not within 4M..1T")
    return length


def run(args: argparse.Namespace) -> int:
    from mrc.cli.runner import run_async
    from mrc.connect.security import Commands
    from mrc.transfer.cli.transfers import recv

    args.once = args.once or args.stdout
    if args.bins and not args.once:
        raise UsageError(args.prog, f"--bins: requires --once; see {args.prog} --help")
    if args.stdout:
        for option in ("output", "json", "overwrite", "any_name", "fsync"):
            if getattr(args, option):
                wrong = f"--stdout: not with --{option.replace('_', '-')}"
                raise UsageError(args.prog, f"{wrong}; see {args.prog} --help")
    out = Output.of(args, stdout_is_data=args.stdout)
    if args.output:
        path = Path(args.output)
        if not path.exists() and not path.is_symlink():
            path.mkdir(parents=True)
            out.note(f"made the folder {args.output}")
    elif not args.stdout:
        args.output = _current_folder(args.prog)
    commands = Commands("mrc recv", f"mrc send FILE {endpoint.this_host(args.port)}")
    return run_async(recv(args, out, endpoint.listening(args, out, commands, asks=True)))


def _current_folder(prog: str) -> str:
    """The folder for files without --output: the current directory, but only on a terminal, where
    the user sees the files arrive, and never the home directory.

    Anybody who can reach the port chooses the file names, and a home directory contains files that
    programs execute.
    """
    if not sys.stdin.isatty():
        raise UsageError(prog, f"name the folder for the files: --output DIR; see {prog} --help")
    home = Path("~").expanduser()  # stays "~" where there is none
    if home.exists() and home.samefile("."):
        wrong = "the current directory is your home: name another folder: --output DIR"
        raise UsageError(prog, f"{wrong}; see {prog} --help")
    return "."
