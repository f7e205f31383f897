# SPDX-License-Identifier: Apache-2.0
"""The command `mrc`: one parser, one place where an error becomes a line and an exit code."""

from __future__ import annotations

import argparse
import io
import logging
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from typing import Any, TextIO

from mrc import limits, products, versions
from mrc.cli.arguments import Parser
from mrc.cli.output import (
    Exit,
    Interrupted,
    UsageError,
    cause,
    exit_code,
    harmless_lines,
    print_error,
    version_of,
)  # fmt: skip
from mrc.errors import MrcError

EXAMPLES = """\
examples:
  mrc recv --output inbox              receive files (run this on h1)
  mrc send a.bin b.bin h1              send two files to h1
  mrc send a.bin '[2001:db8::1]:7000'  send to an address and a TCP port
  mrc paths h1                         show the state and RTT of each path
  mrc perf h1                          measure goodput (mrc perf --server on h1)
  mrc top --local                      watch the endpoints on this machine
  mrc run --insecure -- ibv_devinfo    run a program written for RDMA
  mrc testbed up                       build two hosts and four planes here
  mrc demo                             send a file while one plane fails
  mrc lab                              lessons: what MRC does, and why
  mrc conform run                      judge mrc's own engine by its packets
  mrc doctor                           check whether mrc can run here
  mrc sim list                         list the simulated experiments
"""

EXIT_CODES = """\
exit codes:
  0 done   1 failed   3 peer unreachable   4 all paths lost
  2 wrong usage, or a file that is missing or wrong: a topology, a schedule, a capture, ...
  5 the received data differ from the sent data
  6 some files were not copied, each with a line that says why
  126 run, testbed exec: the program cannot be run   127 it is not found
  129 hung up (SIGHUP)   130 interrupted (SIGINT)   143 terminated (SIGTERM)

environment:
  MRC_CONFIG   the host configuration file
  MRC_CODE     the one-time code of --code, for scripts
  MRC_IDENTITY the file of this user's key
  MRC_INSECURE=1  neither encrypt nor ask who the peer is
  MRC_DEBUG=1  show tracebacks and debug messages
  NO_COLOR     print no colours
"""


class _Version(argparse.Action):
    """Looks up the versions only for --version, because the look-up is slow."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        print(version_text(), flush=True)
        parser.exit()


def build_parser(names: Sequence[str] | None = None) -> Parser:
    """A parser for these subcommands, or for all. Other subcommands are not imported."""
    shown = products.commands() if names is None else names
    head, *lines = EXAMPLES.splitlines()
    parser = Parser(
        prog="mrc",
        description="Moves data between Linux hosts over many paths and planes at once\n"
        "(MRC: Multipath Reliable Connection).",
        epilog=EXIT_CODES,
        examples="\n".join([head, *(line for line in lines if line.split()[1] in shown), ""]),
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="show versions and exit")
    subparsers = parser.add_subparsers(
        title="subcommands", metavar="COMMAND", dest="command", parser_class=Parser
    )
    for name in shown:
        command = import_module(products.COMMANDS[name])
        its = subparsers.add_parser(name, help=command.HELP, examples=command.EXAMPLES)
        its.set_defaults(run=command.run)
        command.add_arguments(its)
    return parser


def version_text() -> str:
    """The versions of mrc, its protocols and its libraries."""
    return (
        f"mrc {version_of('mrc-transport')}\n"
        f"protocol: MRC over UDP port {limits.UDP_PORT}, OOB exchange version {versions.EXCHANGE},"
        f" file transfer version {versions.TRANSFER} with {versions.DIGEST}\n"
        f"libraries: uvloop {version_of('uvloop')}, xxhash {version_of('xxhash')},"
        f" Python {sys.version.split()[0]}, Linux {os.uname().release}"
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command line and returns its exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    # Options after "--" belong to another program: `mrc testbed exec h0 -- mrc paths --json h1`.
    ours = words[: words.index("--") if "--" in words else len(words)]
    as_json = not {"--json", "--json-stream", "-J"}.isdisjoint(ours)
    prog = "mrc"
    try:
        open_missing()
        name_errors()
        named = [word for word in words[:1] if products.has(products.COMMANDS.get(word, ""))]
        parser = build_parser(named if named or words[:1] == ["--version"] else None)
        args = parser.parse_args(words)
        if args.command is None:
            parser.print_help(sys.stderr)
            return Exit.USAGE
        prog, args.command_line = args.prog, words
        _set_up_logging(
            prog,
            quiet=getattr(args, "quiet", False),
            verbose=getattr(args, "verbose", False),
        )
        code = int(args.run(args))
        sys.stdout.flush()
        return code
    except UsageError as error:
        return _fail(error.prog, error, as_json=as_json)
    except KeyboardInterrupt:
        return _fail(prog, Interrupted(2), as_json=as_json)
    except BrokenPipeError:
        give_up()  # the reader closed the pipe
        return Exit.FAILED
    except (MrcError, Interrupted, OSError, MemoryError) as error:
        return _fail(prog, error, as_json=as_json)


def _set_up_logging(prog: str, *, quiet: bool, verbose: bool) -> None:
    """Prints the library's warnings on stderr, with -v also its other messages."""
    level = logging.INFO if verbose else logging.WARNING
    if quiet:
        level = logging.ERROR
    if os.environ.get("MRC_DEBUG") == "1":
        level = logging.DEBUG
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_HarmlessFormatter(f"{prog}: %(message)s"))
    logging.basicConfig(level=level, handlers=[handler])


class _HarmlessFormatter(logging.Formatter):
    """Escapes control characters: a log message may contain text from a peer."""

    def format(self, record: logging.LogRecord) -> str:
        return harmless_lines(super().format(record))


def _fail(prog: str, error: BaseException, *, as_json: bool) -> int:
    if os.environ.get("MRC_DEBUG") == "1":
        sys.excepthook(type(error), error, error.__traceback__)
    code = exit_code(error)
    print_error(prog, cause(error), code, as_json=as_json)
    give_up()
    return code


# ---- Descriptors 0 to 2, which may be closed (mrc send f h1 <&-) or lead to a full disk ----------


STDOUT = 1


def open_missing() -> None:
    """Opens closed ones on /dev/null, before a socket or a file gets their numbers.

    The descriptors of input and output are opened the wrong way round, so data that a command
    should move fails with an error. Text for people goes nowhere. Raises OSError without
    /dev/null, as in a bare container.
    """
    for fd, flags, name in (
        (0, os.O_WRONLY, "input"),
        (STDOUT, os.O_RDONLY, "output"),
        (2, os.O_WRONLY, "error"),
    ):
        with suppress(OSError):
            os.fstat(fd)
            continue
        try:
            os.open(os.devnull, flags)  # the lowest free number
        except OSError as error:
            error.filename = f"standard {name} is closed, and {os.devnull} cannot be opened"
            raise
    if sys.stdin is None:
        sys.stdin = open(0, closefd=False)  # noqa: SIM115 - until the process ends
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115
    if sys.stderr is None:
        sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115


class _Stream(io.FileIO):
    """Writes to descriptor 1 or 2."""

    def __init__(self, fd: int) -> None:
        super().__init__(fd, "w", closefd=False)
        self.given_up = False
        """whether everything that cannot be written is lost"""

    def write(self, data: Any, /) -> int:
        """As FileIO.write, but errors of output name it, and messages may get lost: they must not
        end the work that they are about.
        """
        try:
            return super().write(data)
        except OSError as error:
            message = self.fileno() != STDOUT and not isinstance(error, BrokenPipeError)
            if message or self.given_up:
                return len(data)
            error.filename = "standard output"
            raise


_streams: list[_Stream] = []


def name_errors() -> None:
    """Makes errors of the standard output name it, and errors of the standard error none.

    Characters that the terminal's encoding lacks are escaped: names of files may contain them.
    """
    # Tests that capture the streams keep theirs.
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout is sys.__stdout__:
        sys.stdout = _renewed(sys.stdout, STDOUT)
    if isinstance(sys.stderr, io.TextIOWrapper) and sys.stderr is sys.__stderr__:
        sys.stderr = _renewed(sys.stderr, 2)


def _renewed(old: io.TextIOWrapper[Any], fd: int) -> TextIO:
    raw = _Stream(fd)
    _streams.append(raw)
    return io.TextIOWrapper(
        raw if old.write_through else io.BufferedWriter(raw),
        encoding=old.encoding,
        errors="backslashreplace",
        line_buffering=old.line_buffering,
        write_through=old.write_through,
    )


def give_up() -> None:
    """Loses what could not be printed. Otherwise the interpreter fails on it when it ends."""
    for stream in _streams:
        stream.given_up = True


if __name__ == "__main__":
    sys.exit(main())
