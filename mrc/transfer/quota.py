# SPDX-License-Identifier: Apache-2.0
"""The limits on one sender, and what is left of them."""

from __future__ import annotations

from msgspec import Struct

from mrc.exchange.foreign import shown
from mrc.transfer.names import FinalError
from mrc.transfer.patience import IDLE_SECONDS
from mrc.transfer.window import WINDOW_BYTES


class Limits(Struct, frozen=True):
    """Limits on one sender; the receiver refuses files beyond them."""

    bytes: int = 1 << 44  # of all its files together
    files: int = 1 << 16  # files and folders
    window_bytes: int = WINDOW_BYTES  # memory for chunks that are not stored yet
    idle_seconds: float = IDLE_SECONDS  # without progress


DEFAULTS = Limits()


class Quota:
    """The remaining bytes and files of a session. Beyond them all methods raise FinalError."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._files = limits.files
        self.left_bytes = limits.bytes

    def check(self, what: str, files: int, size: int) -> None:
        """Checks that `files` files with `size` bytes in all are within the limits."""
        if files > self._files:
            most = f"{self._limits.files} files and folders of one sender (mrc recv --max-files)"
            raise FinalError(f"{shown(what)}: exceeds the limit of {most}")
        if size > self.left_bytes:
            most = f"{self._limits.bytes} bytes of one sender (mrc recv --max-bytes)"
            raise FinalError(f"{shown(what)}: {size} bytes exceed the limit of {most}")

    def take(self, what: str, *, files: int = 0, size: int = 0) -> None:
        """Takes them from what is left."""
        self.check(what, files, size)
        self._files -= files
        self.left_bytes -= size
