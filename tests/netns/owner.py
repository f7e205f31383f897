# SPDX-License-Identifier: Apache-2.0
"""How the names of namespaces and test beds of this process begin, and what killed runs left."""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from itertools import count
from pathlib import Path

from mrc.errors import MrcError
from mrc.linux import netns
from mrc.testbed import state
from mrc.testbed.bed import Testbed

LOCKS = Path("/run/mrc-tests")
"""Each process that runs tests holds the lock of one byte until it ends. A pid is no proof: others
are seen from another container, and pids are used again.
"""


@cache
def owner() -> str:
    """`runN-`: no other process has this N. What dead ones left is removed first."""
    try:
        locks = os.open(LOCKS, os.O_RDWR | os.O_CREAT, 0o600)  # until this process ends
    except OSError:
        return f"t{os.getpid()}-"  # an ordinary user, whose names end with a user namespace
    own = next(number for number in count() if _locks(locks, number))
    for number in set(_left()):
        if number == own or _locks(locks, number):
            with suppress(MrcError, OSError):  # without the privilege
                _remove(f"run{number}-")
            if number != own:
                fcntl.lockf(locks, fcntl.LOCK_UN, 1, number)
    return f"run{own}-"


def _locks(locks: int, number: int) -> bool:
    """Takes a lock, unless another process has it."""
    try:
        fcntl.lockf(locks, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, number)
    except OSError:
        return False
    return True


def _left() -> Iterator[int]:
    for name in (*netns.names(), *(f"mrc-{bed}" for bed in _beds())):
        if found := re.match(r"mrc-run(\d+)-", name):
            yield int(found[1])


def _beds() -> list[str]:
    """Also those that are half built or removed."""
    folder = state.folder("any").parent
    return os.listdir(folder) if folder.is_dir() else []


def _remove(beginning: str) -> None:
    for bed in _beds():
        if bed.startswith(beginning):
            Testbed(bed).down()
    for name in netns.names():
        if name.startswith(f"mrc-{beginning}"):
            netns.remove(name)
