# SPDX-License-Identifier: Apache-2.0
"""The libraries for C programs that are built with mrc. A build without one of them succeeds."""

from __future__ import annotations

import ctypes
from pathlib import Path

FOLDER = Path(__file__).resolve().parent.parent / "lib"
LIBMRC, LIBMRC_CM, PROVIDER = "libmrc.so.1", "libmrc-cm.so.1", "libmrc-fi.so"
LOADED_NAME = "libibverbs.so"
"""libmrc under the name by which programs open RDMA's library at run time"""

_HEADERS = {LIBMRC: "libibverbs-dev", LIBMRC_CM: "librdmacm-dev", PROVIDER: "libfabric-dev"}


def why_missing(name: str) -> tuple[str, str] | None:
    """If a library is not there: what happened, and the remedy."""
    if (FOLDER / name).exists():
        return None
    failure = FOLDER / f"{name}.error"  # by setup.py
    if not failure.exists():
        return "not built", f"install {_HEADERS[name]}, then mrc again"
    remedy = f"install another version of {_HEADERS[name]}, then mrc again"
    return f"not built: {failure.read_text().strip()}", remedy


def load(*names: str) -> str | None:
    """Loads libraries as a program does. Returns the first error message, or None."""
    try:
        for name in names:
            ctypes.CDLL(str(FOLDER / name))
    except OSError as error:
        return str(error)
    return None
