# SPDX-License-Identifier: Apache-2.0
"""Output of a subcommand: results on stdout, everything else on stderr, numbers with units; exit
codes, and the exit code of each error.
"""

from __future__ import annotations

import argparse
import csv
import errno
import io
import json
import os
import resource
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Any

from mrc.connect.parse import printable, shown
from mrc.enums import WcStatus
from mrc.errors import (
    BadFileError,
    CompletionError,
    ConnectError,
    MrcError,
    PathError,
    PeerGoneError,
    ResolveError,
)

if TYPE_CHECKING:
    from msgspec import Struct

    from mrc.results import Failure

_OPTIONS = {
    "--json": "print only JSON on stdout",
    "--quiet": "print no notes and no progress on stderr",
}


def harmless_lines(text: str) -> str:
    """Applies `printable` to each line of `text`."""
    return "\n".join(map(printable, text.split("\n")))


def format_table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Columns of text; columns of numbers are right-aligned."""
    columns = []
    for i, title in enumerate(head):
        cells = [row[i] for row in rows]
        is_number = bool(cells) and all(isinstance(cell, (int, float)) for cell in cells)
        texts = [title, *map(str, cells)]
        width = max(map(len, texts))
        columns.append([text.rjust(width) if is_number else text.ljust(width) for text in texts])
    return "\n".join("  ".join(line).rstrip() for line in zip(*columns, strict=True))


def version_of(package: str) -> str:
    """The version of an installed package, or "(not installed)"."""
    from importlib.metadata import PackageNotFoundError, version  # slow import

    try:
        return version(package)
    except PackageNotFoundError:
        return "(not installed)"


@dataclass(frozen=True, slots=True)
class Output:
    """Prints the results, notes and warnings of one subcommand."""

    prog: str
    as_json: bool
    quiet: bool
    as_csv: bool = False
    verbose: bool = False
    stdout_is_data: bool = False  # results for people go to stderr, as notes

    @staticmethod
    def add_options(parser: argparse.ArgumentParser) -> None:
        """The options of every subcommand that prints a result."""
        for name, text in _OPTIONS.items():
            parser.add_argument(name, action="store_true", help=text)

    @classmethod
    def of(cls, args: argparse.Namespace, *, stdout_is_data: bool = False) -> Output:
        as_csv = getattr(args, "csv", False)
        if as_csv and args.json:
            raise UsageError(
                args.prog, f"--csv and --json: use only one of them; see {args.prog} --help"
            )
        return cls(
            args.prog,
            as_json=args.json,
            quiet=args.quiet,
            as_csv=as_csv,
            verbose=getattr(args, "verbose", False),
            stdout_is_data=stdout_is_data,
        )

    def text(self, text: str) -> None:
        """Prints a result for people; nothing under --json and --csv."""
        if self.stdout_is_data:
            for line in text.split("\n"):
                self.note(line)
        elif not self.as_json and not self.as_csv:
            print(harmless_lines(text), flush=True)

    def rows(self, rows: Sequence[object]) -> None:
        """Prints results for programs as lines of CSV; nothing without --csv."""
        if self.as_csv:
            print(csv_text(rows), flush=True)

    def result(self, result: Struct) -> None:
        """Prints a result for programs as one line of JSON; nothing without --json."""
        if self.as_json:
            print_json(result)

    def note(self, text: str) -> None:
        """Prints extra information on stderr; nothing under --quiet."""
        if not self.quiet:
            self.warn(text)

    def detail(self, text: str) -> None:
        """Prints a note that only -v shows."""
        if self.verbose:
            self.note(text)

    def warn(self, text: str) -> None:
        """Prints a failure that did not end the command on stderr."""
        print(f"{self.prog}: {printable(text)}", file=sys.stderr, flush=True)

    def failed(self, error: BaseException, *, as_json: bool) -> Failure:
        """Prints why the command failed, `as_json` also on stdout."""
        from mrc.results import Failure

        why, code = cause(error), int(exit_code(error))
        print_error(self.prog, why, code, as_json=as_json)
        return Failure(error=why, exit_code=code)

    def session_failed(self, peer: str, error: Exception) -> int:
        """Prints the error as one line. Returns the exit code for a command that serves only this
        peer.

        Another error than MrcError, OSError and MemoryError is a bug in mrc. It ends only its own
        session, like any other error.
        """
        ours = not isinstance(error, (MrcError, OSError, MemoryError))
        text = f"{type(error).__name__}: {error}; MRC_DEBUG=1 shows where" if ours else cause(error)
        if ours and os.environ.get("MRC_DEBUG") == "1":
            sys.excepthook(type(error), error, error.__traceback__)
        code = exit_code(error)
        about = "" if text.startswith(f"{shown(peer)} ") else f"{shown(peer)}: "
        print_error(self.prog, f"{about}{text}", code, as_json=self.as_json)
        return code


def print_json(result: Struct) -> None:
    from mrc.results import plain  # mrc --version needs no msgspec

    print(json.dumps(plain(result), allow_nan=False), flush=True)


def print_error(prog: str, message: str, exit_code: int, *, as_json: bool) -> None:
    """Prints why a command failed: one line on stderr, and under --json also JSON on stdout."""
    line = printable(" ".join(message.split()))
    if sys.stderr is not None:  # None: it is closed, and there is no /dev/null
        print(f"{prog}: {line}", file=sys.stderr, flush=True)
    if as_json:
        with suppress(OSError, MemoryError):  # then the line and the exit code have to do
            from mrc.results import Failure

            print_json(Failure(error=line, exit_code=int(exit_code)))


# ---- CSV -----------------------------------------------------------------------------------------


def csv_text(rows: Sequence[object]) -> str:
    """The rows as CSV, without the last newline.

    Rows are results or mappings. An object inside a row becomes columns such as `latency.p50_ns`;
    null is an empty cell, and lists are left out. All keys of all rows are columns.
    """
    from mrc.results import plain

    table = [dict(_cells(plain(row), "")) for row in rows]
    keys = dict.fromkeys(key for cells in table for key in cells)
    objects = {key.rpartition(".")[0] for key in keys}  # null in some rows
    full = {key for cells in table for key, value in cells.items() if value is not None}
    head = [key for key in keys if key in full or key not in objects]
    text = io.StringIO()
    writer = csv.DictWriter(text, head, restval="", extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(table)
    return text.getvalue().removesuffix("\n")


def _cells(row: Mapping[str, Any], before: str) -> Iterator[tuple[str, Any]]:
    for key, value in row.items():
        if isinstance(value, Mapping):
            yield from _cells(value, f"{before}{key}.")
        elif isinstance(value, bool):
            yield before + key, str(value).lower()
        elif isinstance(value, str):
            yield before + key, printable(value)
        elif not isinstance(value, list):
            yield before + key, value


# ---- Exit codes ----------------------------------------------------------------------------------


class Exit(IntEnum):
    """Exit codes of the subcommands; `mrc --help` lists them."""

    OK = 0
    FAILED = 1
    USAGE = 2
    UNREACHABLE = 3
    PATHS_LOST = 4
    NOT_VERIFIED = 5
    NOT_ALL_COPIED = 6
    INTERRUPTED = 130


class UsageError(Exception):
    """The command line is wrong; `prog` is the (sub)command that reports it."""

    def __init__(self, prog: str, message: str) -> None:
        super().__init__(message)
        self.prog = prog


class Interrupted(Exception):
    """A signal ended the command."""

    def __init__(self, signum: int) -> None:
        super().__init__("interrupted" if signum == signal.SIGINT else "terminated")
        self.exit_code = 128 + signum

    @staticmethod
    def signals() -> dict[int, Any]:
        """Those that end a command, and their handlers. nohup ignores SIGHUP: that stays."""
        found = {s: signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
        return {s: of for s, of in found.items() if s != signal.SIGHUP or of != signal.SIG_IGN}


def exit_code(error: BaseException) -> int:
    """The exit code for an error."""
    # Not imported: this is slow, and can fail for the reason that is to be reported.
    transfer = sys.modules.get("mrc.transfer.session")
    if transfer is not None and isinstance(error, transfer.VerificationError):
        return Exit.NOT_VERIFIED
    match error:
        case Interrupted():
            return error.exit_code
        case UsageError() | BadFileError():
            return Exit.USAGE
        case PathError():
            return Exit.PATHS_LOST
        case PeerGoneError():
            return Exit.FAILED
        case ConnectError() | ResolveError():
            return Exit.UNREACHABLE
        case CompletionError() if error.status == WcStatus.RETRY_EXC_ERR:
            return Exit.PATHS_LOST
        case _:
            return Exit.FAILED


def cause(error: BaseException) -> str:
    """What a line for the user says about an error."""
    if isinstance(error, OSError) and error.strerror:
        text = error.strerror
        if not text[1:2].isupper():  # QP to RTS: ...
            text = text[0].lower() + text[1:]
        if error.errno == errno.EMFILE:
            text += f" (limit {resource.getrlimit(resource.RLIMIT_NOFILE)[0]}: ulimit -n 4096)"
        return f"{error.filename}: {text}" if error.filename else text
    if isinstance(error, MemoryError):
        return "out of memory"
    return str(error) or type(error).__name__
