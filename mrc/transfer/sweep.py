# SPDX-License-Identifier: Apache-2.0
"""Removes what earlier receivers have left in the output folder, except what can still go on."""

from __future__ import annotations

import fcntl
import os
import stat
import time

from mrc.transfer.folders import Folder
from mrc.transfer.kept import KEPT_SECONDS
from mrc.transfer.names import is_mark, is_record, is_temporary, record_name, shown_name


def sweep(root: Folder, *, resume: bool) -> list[str]:
    """Removes temporary files that no live process has locked, but with `resume` no part that can
    be continued. Returns the names of the files that they were for. Marks of folders stay: they
    hold no bytes, and without them a folder would keep the mode of one that is not complete.
    """
    found = [name for name in sorted(os.listdir(root.fd)) if is_temporary(name)]
    swept = []
    for name in found:
        if is_record(name):
            continue
        if is_mark(name):
            if not _is_recent(root, name):
                _remove_unlocked(root, name)
            continue
        record = record_name(name)
        if resume and record in found and _is_recent(root, record):
            continue
        if _remove_unlocked(root, name):
            swept.append(shown_name(name))
            root.remove(record)
    for record in found:
        if is_record(record) and record.removesuffix("-kept") not in found:
            _remove_unlocked(root, record)
    return swept


def _is_recent(root: Folder, record: str) -> bool:
    """Whether this mark, or the part of this record, is to be kept."""
    try:
        status = os.stat(record, dir_fd=root.fd, follow_symlinks=False)
    except OSError:
        return False
    return time.time() - status.st_mtime < KEPT_SECONDS


def _remove_unlocked(root: Folder, name: str) -> bool:
    """Removes a regular file that no live process has locked."""
    try:
        fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=root.fd)
    except OSError:
        return False  # already removed, a symbolic link, or no permission
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            return False
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.unlink(name, dir_fd=root.fd)
    except OSError:
        return False  # a live receiver has locked it, or no permission
    finally:
        os.close(fd)
    return True
