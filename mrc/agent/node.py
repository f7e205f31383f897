# SPDX-License-Identifier: Apache-2.0
"""The file in /dev by which some programs, such as UCX, judge whether a device of verbs is there.

Only its kind matters: a character device. libmrc needs none, so this one is as /dev/null.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from mrc.agent.device import DEVICE
from mrc.errors import ConfigError

NODE = Path("/dev/infiniband", DEVICE)
_NULL = os.makedev(1, 3)
_MODE = 0o666


@contextmanager
def node(path: Path = NODE) -> Iterator[None]:
    """Makes the file, and removes it in the end; raises ConfigError."""
    try:
        path.parent.mkdir(exist_ok=True)
        _make(path)
    except PermissionError as error:
        raise ConfigError(f"{path}: only root can make it: start mrc agent as root") from error
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}") from error
    try:
        yield
    finally:
        with suppress(OSError):
            path.unlink()
            path.parent.rmdir()


def _make(path: Path) -> None:
    """A killed agent may have left it."""
    with suppress(FileNotFoundError):
        found = path.stat()
        if stat.S_ISCHR(found.st_mode) and found.st_rdev == _NULL:
            return
    os.mknod(path, stat.S_IFCHR | _MODE, _NULL)
    path.chmod(_MODE)
