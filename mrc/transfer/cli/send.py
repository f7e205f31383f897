# SPDX-License-Identifier: Apache-2.0
"""`mrc send FILE... HOST[:PORT]`: sends files and folders to a host that runs `mrc recv`."""

from __future__ import annotations

import argparse

from mrc import versions
from mrc.cli import endpoint
from mrc.cli.arguments import add
from mrc.cli.output import Output, UsageError
from mrc.errors import ArgumentError

HELP = "send files and folders to a host that runs mrc recv"
EXAMPLES = """\
examples:
  mrc send a.bin h1                    send to mrc recv on h1
  mrc send a.bin b.bin h1:7000         mrc recv listens on TCP port 7000
  mrc send a.bin '[2001:db8::1]:7000'
  mrc send -B eth1 -B eth2 a.bin h1    use only these two interfaces
  mrc send photos notes.txt h1         a folder with all below it, and a file
  mrc send photos/. h1                 only what the folder holds
  mrc send --exclude '*.o' src h1      without what matches
  tar c . | mrc send - h1 --name x.tar the bytes of a pipe, as x.tar
  mrc send a.bin h1 --code             ask for the code that mrc recv --code prints on h1
  mrc send --json a.bin h1 | jq .planes
"""
OPTIONS = f"""
files FILE...      file or folder to send, of any size; - for standard input; a trailing / makes no
                   difference, and a folder's /. means only what it holds
host HOST[:PORT]   host that runs mrc recv [TCP port {versions.TCP_PORT}]
--timeout SECONDS  time limit for connecting [%(default)s]
--retry SECONDS    when the connection is lost, try for this time to connect again, and go on; 0:
                   end at once, as with -, --code and --no-resume [%(default)g]
--no-resume        send everything again, whatever the receiver has kept of an interrupted transfer
"""
CHOICE = """
--name NAME           name at the receiver of the only FILE [its own name; of -: stdin]
--follow              below folders, send the files and folders that symbolic links lead to [skip
                      links]
--links               below folders, keep symbolic links that lead to a place in the same folder
--exclude PATTERN...  leave out what matches below the folders: '*.o', 'build/', '/top', '!keep.o',
                      in the syntax of .gitignore; repeatable
--rate RATE           send at most at this rate, such as 20mbit [no limit]
--update              skip files that the receiver has with the same size and modification time
--no-meta             leave mode and modification time to the receiver; owners are never kept, and
                      hard links become files of their own
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add(parser, OPTIONS, timeout={"default": 5.0}, retry={"type": "PAUSE", "default": 60.0})
    endpoint.add_wait(parser)
    endpoint.add_endpoint_options(parser)
    endpoint.add_engines(parser)
    endpoint.add_trust_options(parser, listens=False)
    add(parser, CHOICE, name={"type": _name}, rate={"default": 0.0})
    endpoint.add_view_options(parser, listens=False)
    Output.add_options(parser)


def run(args: argparse.Namespace) -> int:
    from mrc.cli.runner import run_async
    from mrc.transfer.cli.transfers import config_of, send
    from mrc.transfer.client import SendArguments

    args.host, args.port = args.host
    args.paths = tuple(args.files)
    args.name = args.name or ""
    try:
        arguments = SendArguments(
            **{name: getattr(args, name) for name in SendArguments.__struct_fields__}
        )
    except ArgumentError as error:
        text = str(error).removeprefix("paths: ").replace("no_meta", "--no-meta")
        option = "" if text.startswith("-") else "--"
        text = text.replace("with follow", "with --follow")
        raise UsageError(args.prog, f"{option}{text}; see {args.prog} --help") from None
    trusted = endpoint.connecting(args, args.host, args.port, peer_runs="mrc recv", what=" FILE")
    return run_async(send(Output.of(args), arguments, config_of(args, trusted)))


def _name(text: str) -> str:
    from mrc.transfer.limits import FileError, check_path

    try:
        check_path(text)
    except FileError as error:
        raise ValueError(error) from None
    return text
