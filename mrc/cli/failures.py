# SPDX-License-Identifier: Apache-2.0
"""Reports the files that a transfer leaves out, as they are found."""

from __future__ import annotations

from mrc.cli.exits import Exit
from mrc.cli.output import Output
from mrc.cli.progress import ProgressMeter
from mrc.exchange.foreign import printable, shortened, shown
from mrc.results.transfer import FailedFile, Role
from mrc.transfer.messages import MAX_ERROR

MAX_NAMED = 1000  # files of a transfer that are named; the others are only counted
_MAX_KNOWN = 1 << 16  # that are counted once, also when a pack that is sent again names them again


class Failures:
    """The files of one transfer, over all its connections, that were not copied. A peer may name
    very many: only the first are kept, those for --json.
    """

    def __init__(self, out: Output, meter: ProgressMeter, role: Role, peer: str) -> None:
        self._out = out
        self._meter = meter
        self._role = role
        self._peer = peer
        self._known: set[int] = set()  # hashes of names
        self.count = 0
        self._line = ""
        self.files: list[FailedFile] = []

    def add(self, failed: FailedFile) -> None:
        """Prints the cause. Both ends print it, each with the host where it is. All files below a
        folder whose name is refused have the same cause, which is printed once.
        """
        known = hash(failed.name)
        if known in self._known:
            return
        if len(self._known) < _MAX_KNOWN:
            self._known.add(known)
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
