# SPDX-License-Identifier: Apache-2.0
"""The system call syncfs, which Python's os module lacks."""

from __future__ import annotations

import ctypes
import os

_LIBC = ctypes.CDLL(None, use_errno=True)


def sync_file_system(fd: int) -> None:
    """Returns when the disk has all of the file system of this file or folder; raises OSError."""
    if _LIBC.syncfs(fd) != 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
