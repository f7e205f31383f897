# SPDX-License-Identifier: Apache-2.0
"""Exit codes, and the exit code of each error."""

from __future__ import annotations

import errno
import resource
import signal
import sys
from enum import IntEnum

from mrc.enums import WcStatus
from mrc.errors import (
    BadFileError,
    CompletionError,
    ConnectError,
    PathError,
    PeerGoneError,
    ResolveError,
)


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
