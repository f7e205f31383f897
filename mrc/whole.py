# SPDX-License-Identifier: Apache-2.0
"""Files that are written whole or not at all: a full disk leaves no half of one."""

from __future__ import annotations

import os
from pathlib import Path


def write_whole(path: Path, data: bytes, *, mode: int = 0o666, new: bool = False) -> None:
    """Writes a file, or leaves what was there. Raises OSError; `new`: FileExistsError if there is
    one already.
    """
    if not new and path.exists() and not path.is_file():
        path.write_bytes(data)  # a pipe, or /dev/stdout
        return
    target = path if new else path.resolve()  # a link stays
    temporary = target.with_name(f".{target.name}.{os.getpid()}")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
    try:
        opened = os.open(temporary, flags, mode)
    except OSError as error:
        error.filename = str(path)
        raise
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
