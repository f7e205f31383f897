# SPDX-License-Identifier: Apache-2.0
"""Descriptors of processes, and whether these end."""

from __future__ import annotations

import os
import select
import subprocess
from collections.abc import Iterable, Sequence

from slowness import PATIENCE


def pidfds(pids: Iterable[str | bytes | int]) -> list[int]:
    """A descriptor for each process, which no other process gets that takes its number."""
    return [os.pidfd_open(int(pid)) for pid in pids]


def assert_end(descriptors: Iterable[int]) -> None:
    """All of these processes end."""
    for each in descriptors:
        assert select.select([each], [], [], PATIENCE)[0]
        os.close(each)


def assert_end_with(parent: Sequence[str], count: int = 2) -> None:
    """SIGKILL of `parent` ends the `count` processes whose numbers its first line has."""
    with subprocess.Popen(parent, stdout=subprocess.PIPE) as starter:
        assert starter.stdout is not None
        ends = pidfds(starter.stdout.readline().split())
        assert len(ends) == count
        starter.kill()
        assert_end(ends)
