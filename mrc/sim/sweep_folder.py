# SPDX-License-Identifier: Apache-2.0
"""The folder of a sweep: files of lines, one for each job that has ended. Each process writes a
file of its own, so that many may share the folder.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from mrc.errors import MrcError
from mrc.sim.results import SweptJob

ENDING = ".jsonl"

Append = Callable[[SweptJob], None]
"""Appends a line; raises OSError."""


def read(folder: Path) -> list[SweptJob]:
    """Every job in the folder. A last line without an end is left out: its job did not end, or
    another process writes it now. Raises MrcError for a line of something else.
    """
    found: dict[str, SweptJob] = {}
    for path in sorted(folder.glob(f"*{ENDING}")):
        for number, line in enumerate(path.read_bytes().split(b"\n")[:-1], 1):
            try:
                job = msgspec.json.decode(line, type=SweptJob)
            except (msgspec.DecodeError, ValueError) as error:
                raise MrcError(
                    f"{path}:{number}: not a line of mrc sim sweep: delete it"
                ) from error
            found[job.job] = job
    return list(found.values())


@contextmanager
def appending(folder: Path, name: str) -> Iterator[Append]:
    """Appends lines to a file of the folder, which this process alone writes meanwhile. Cuts off a
    last line without an end.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}{ENDING}"
    with path.open("a+b", buffering=0) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise MrcError(
                f"{path}: another mrc sim sweep writes it: wait for its end, or use --part"
            ) from error
        file.truncate(path.read_bytes().rfind(b"\n") + 1)

        def add(job: SweptJob) -> None:
            line = msgspec.json.encode(job) + b"\n"
            try:
                while line:
                    line = line[os.write(file.fileno(), line) :]
            except OSError as error:
                error.filename = str(path)
                raise

        yield add
