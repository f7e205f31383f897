# SPDX-License-Identifier: Apache-2.0
"""What the kernel tells of other processes."""

from __future__ import annotations

from pathlib import Path

from msgspec import Struct

_STOPPED, _TRACED = "T", "t"


class Process(Struct, frozen=True):
    """A process, as /proc/PID/stat shows it."""

    name: str = ""
    state: str = ""
    """as in ps(1)"""

    @property
    def is_stopped(self) -> bool:
        """Whether a signal has stopped it."""
        return self.state == _STOPPED

    @property
    def is_traced(self) -> bool:
        """Whether a debugger has stopped it."""
        return self.state == _TRACED


def process(pid: int) -> Process:
    """A process; without name and state if it has ended or is in another PID namespace."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return Process()
    before, _, after = stat.rpartition(")")  # the name is in parentheses, and may have some itself
    return Process(before.partition("(")[2], after.split()[0])
