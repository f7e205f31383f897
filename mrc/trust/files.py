# SPDX-License-Identifier: Apache-2.0
"""Reads files that decide about trust, and refuses those that another user could have written."""

from __future__ import annotations

import os
from pathlib import Path

from mrc.errors import ConfigError
from mrc.trust.memory import Secret

_OTHERS, _OTHERS_WRITE = 0o077, 0o022
_GROUP_READS = 0o040
_ROOT = 0
_MOST_SECRET = 1 << 20  # bytes of a file


def read(path: Path) -> bytes:
    """The content of a file of this user or root.

    Raises OSError, or ConfigError for a file with other rights, with the remedy.
    """
    with open(path, "rb") as file:
        _check(path, os.fstat(file.fileno()), secret=False)
        return file.read()


def read_secret(path: Path) -> Secret:
    """The same for a file that nobody else may read either."""
    with open(path, "rb", buffering=0) as file:
        _check(path, os.fstat(file.fileno()), secret=True)
        room, count = Secret(_MOST_SECRET), 0
        while more := file.readinto(room.bytes[count:]):
            count += more
        return Secret.copy(room.bytes[:count])


def _check(path: Path, info: os.stat_result, *, secret: bool) -> None:
    if info.st_uid not in (_ROOT, os.geteuid()):
        raise ConfigError(
            f"{path}: user {info.st_uid} owns it and can change it: it must be yours or root's"
        )
    others = info.st_mode & 0o777
    if secret and _root_shares(info):
        others &= ~_GROUP_READS
    if others & (_OTHERS_WRITE | (_OTHERS if secret else 0)):
        what = "write" if others & _OTHERS_WRITE else "read"
        remedy = "chmod 600" if secret else "chmod go-w"
        raise ConfigError(f"{path}: others may {what} it (mode {others:04o}): {remedy} {path}")


def _root_shares(info: os.stat_result) -> bool:
    """Whether root lets this user read the file by a group, as Kubernetes does (`fsGroup`)."""
    if os.geteuid() == _ROOT or info.st_uid != _ROOT:
        return False
    return info.st_gid in {os.getegid(), *os.getgroups()}
