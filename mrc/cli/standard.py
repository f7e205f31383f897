# SPDX-License-Identifier: Apache-2.0
"""Descriptors 0 to 2, which may be closed (`mrc send f h1 <&-`) or lead to a full disk."""

from __future__ import annotations

import io
import os
import sys
from contextlib import suppress
from typing import Any, TextIO

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
