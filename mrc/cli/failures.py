# SPDX-License-Identifier: Apache-2.0
"""Reports the files that a transfer leaves out, as they are found."""

from __future__ import annotations

from mrc.cli.exits import Exit
from mrc.cli.output import Output
from mrc.cli.progress import ProgressMeter
from mrc.exchange.foreign import shown
from mrc.results.transfer import FailedFile, Role


class Failures:
    """The files of one transfer that were not copied. Only --json needs the list."""

    def __init__(self, out: Output, meter: ProgressMeter, role: Role, peer: str) -> None:
        self._out = out
        self._meter = meter
        self._role = role
        self._peer = peer
        self._names: set[str] = set()  # a pack that is sent again names a file again
        self._line = ""
        self.files: list[FailedFile] = []

    def add(self, failed: FailedFile) -> None:
        """Prints the cause. Both ends print it, each with the host where it is. All files below a
        folder whose name is refused have the same cause, which is printed once.
        """
        if failed.name in self._names:
            return
        self._names.add(failed.name)
        if self._out.as_json:
            self.files.append(failed)
        there = "" if failed.end == self._role else f"{shown(self._peer)}: "
        line = f"not copied: {there}{shown(failed.error, 500)}"
        if line != self._line:
            with self._meter.lines():
                self._out.warn(line)
        self._line = line

    def end(self) -> int:
        """Prints how many there were; returns the exit code."""
        if not self._names:
            return Exit.OK
        if len(self._names) > 1:
            self._out.warn(f"{len(self._names)} files and folders were not copied")
        return Exit.NOT_ALL_COPIED
