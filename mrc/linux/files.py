# SPDX-License-Identifier: Apache-2.0
"""Files that are written whole or not at all: a full disk leaves no half of one."""

from __future__ import annotations

import errno
import os
from pathlib import Path


def check_writable(*paths: str | Path | None) -> None:
    """Raises the OSError that `write_whole` would: before a work that takes long, not after it."""
    for path in (Path(each) for each in paths if each is not None):
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        if path.is_file() or not path.exists():
            temporary, opened = _open_beside(path, path.resolve(), 0o600)
            os.close(opened)
            temporary.unlink()


def write_whole(path: Path, data: bytes, *, mode: int = 0o666, new: bool = False) -> None:
    """Writes a file, or leaves what was there. Raises OSError; `new`: FileExistsError if there is
    one already.
    """
    if not new and path.exists() and not path.is_file():
        path.write_bytes(data)  # a pipe, or /dev/stdout
        return
    target = path if new else path.resolve()  # a link stays
    temporary, opened = _open_beside(path, target, mode)
    try:
        with os.fdopen(opened, "wb") as file:
            file.write(data)
        if new:
            os.link(temporary, target)
        else:
            os.replace(temporary, target)
    except OSError as error:
        error.filename = str(path)
        raise
    finally:
        temporary.unlink(missing_ok=True)


def _open_beside(path: Path, target: Path, mode: int) -> tuple[Path, int]:
    """A new file beside the target, and its descriptor. Errors name `path`."""
    temporary = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        return temporary, os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    except OSError as error:
        error.filename = str(path)
        raise
