# SPDX-License-Identifier: Apache-2.0
"""Reports the files that a transfer leaves out, as they are found."""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left

from mrc.cli.output import Exit, Output
from mrc.connect.parse import printable, shortened, shown
from mrc.transfer.cli.progress import ProgressMeter
from mrc.transfer.messages import MAX_ERROR
from mrc.transfer.names import FileError
from mrc.transfer.results import FailedFile, Role

MAX_NAMED = 1000  # files of a transfer that are named; the others are only counted
_MAX_FRESH = 1 << 16  # hashes of names that wait to be sorted in


class _Once:
    """Knows names that it has met, by their hashes: 8 bytes for each, beside the fresh ones."""

    def __init__(self) -> None:
        self._sorted = array("q")
        self._fresh: set[int] = set()

    def add(self, name: str) -> bool:
        """Whether the name is new."""
        key = hash(name)
        at = bisect_left(self._sorted, key)
        if key in self._fresh or (at < len(self._sorted) and self._sorted[at] == key):
            return False
        self._fresh.add(key)
        if len(self._fresh) == _MAX_FRESH:
            self._sorted = array("q", sorted([*self._sorted, *self._fresh]))
            self._fresh.clear()
        return True


class Failures:
    """The files of one transfer, over all its connections, that were not copied. A peer may name
    very many: only the first are kept, those for --json. A pack that is sent again names them
    again, which counts once. Beyond `limit` names, `add` raises FileError.
    """

    def __init__(
        self, out: Output, meter: ProgressMeter, role: Role, peer: str, *, limit: float = math.inf
    ) -> None:
        self._out = out
        self._meter = meter
        self._role = role
        self._peer = peer
        self._limit = limit
        self._once = _Once()
        self.count = 0
        self._line = ""
        self.files: list[FailedFile] = []

    def add(self, failed: FailedFile) -> None:
        """Prints the cause. Both ends print it, each with the host where it is. All files below a
        folder whose name is refused have the same cause, which is printed once.
        """
        if not self._once.add(failed.name):
            return
        if self.count >= self._limit:
            most = f"{self._limit} files and folders (mrc recv --max-files)"
            raise FileError(f"more cannot be copied than the limit of {most}")
        self.count += 1
        if self.count > MAX_NAMED:
            return
        if self._out.as_json:
            self.files.append(failed)
        there = "" if failed.end == self._role else f"{shown(self._peer)}: "
        line = f"not copied: {there}{shortened(printable(failed.error), MAX_ERROR)}"
        if line != self._line:
            with self._meter.lines():
                self._out.warn(line)
        self._line = line

    def end(self) -> int:
        """Prints how many there were; returns the exit code."""
        if not self.count:
            return Exit.OK
        if self.count > 1:
            named = f"; the first {MAX_NAMED} are named" if self.count > MAX_NAMED else ""
            self._out.warn(f"{self.count} files and folders were not copied{named}")
        return Exit.NOT_ALL_COPIED
