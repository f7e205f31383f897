# SPDX-License-Identifier: Apache-2.0
"""Descriptors 0 to 2 where whoever started mrc has closed them (`mrc send f h1 <&-`)."""

from __future__ import annotations

import os
import sys
from contextlib import suppress

STDOUT = 1


def open_missing() -> None:
    """Opens closed ones on /dev/null, before a socket or a file gets their numbers.

    The descriptors of input and output are opened the wrong way round, so data that a command
    should move fails with an error. Text for people goes nowhere.
    """
    for fd, flags in ((0, os.O_WRONLY), (STDOUT, os.O_RDONLY), (2, os.O_WRONLY)):
        with suppress(OSError):
            os.fstat(fd)
            continue
        os.open(os.devnull, flags)  # the lowest free number
    if sys.stdin is None:
        sys.stdin = open(0, closefd=False)  # noqa: SIM115 - until the process ends
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115
    if sys.stderr is None:
        sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115
