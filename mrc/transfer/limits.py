# SPDX-License-Identifier: Apache-2.0
"""The limits on one sender, and what is left of them in a session."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from mrc.connect.parse import shown
from mrc.transfer.names import MAX_DEPTH, FinalError

if TYPE_CHECKING:
    from mrc.transfer.messages import Announced

CHUNK_BYTES = 4 << 20  # that our senders use
WINDOW_BYTES = 256 << 20
IDLE_SECONDS = 60.0
_OPERATIONS = 16  # for each file and folder of the limit; a sender needs 1 or 2


class SenderLimits(Struct, frozen=True):
    """Limits on one sender; the receiver refuses files beyond them."""

    bytes: int = 1 << 44  # of all its files together
    files: int = 1 << 20  # files and folders
    window_bytes: int = WINDOW_BYTES  # memory for chunks that are not stored yet
    idle_seconds: float = IDLE_SECONDS  # without progress


DEFAULTS = SenderLimits()


class Quota:
    """The remaining bytes and files of a session. Beyond them all methods raise FinalError.

    A user who was asked has agreed to what the sender announced: then that is the limit.
    """

    def __init__(self, limits: SenderLimits, agreed: Announced | None = None) -> None:
        most_files, most_bytes = limits.files, limits.bytes
        self._of_files = f"the limit of {most_files} files and folders of one sender"
        self._of_files += " (mrc recv --max-files)"
        self._of_bytes = f"the limit of {most_bytes} bytes of one sender (mrc recv --max-bytes)"
        if agreed is not None and agreed.entries is not None and agreed.entries <= most_files:
            most_files = agreed.entries
            self._of_files = f"the {most_files} files and folders that the receiver's user accepted"
        if agreed is not None and agreed.bytes is not None and agreed.bytes <= most_bytes:
            most_bytes = agreed.bytes
            self._of_bytes = f"the {most_bytes} bytes that the receiver's user accepted"
        self._agreed = agreed
        self._files = most_files
        self._operations = _OPERATIONS * max(most_files, MAX_DEPTH)
        self._bytes = self.left_bytes = most_bytes

    def check(self, what: str, files: int, size: int) -> None:
        """Checks that `files` files with `size` bytes in all are within the limits."""
        if files > self._files:
            raise FinalError(f"{shown(what)}: exceeds {self._of_files}")
        if size > self.left_bytes:
            left = self.left_bytes
            left_of = f"the {left} bytes left of " if left < self._bytes else ""
            raise FinalError(f"{shown(what)}: {size} bytes exceed {left_of}{self._of_bytes}")

    def check_announced(self, told: Announced) -> None:
        """Checks all that the sender says it has, before anything is stored."""
        known = told.entries is not None
        what = f"{told.entries} files and folders" if known else "the announced files"
        self.check(what, told.entries or 0, told.bytes or 0)

    def check_name(self, name: str) -> None:
        """Checks that a file or folder of this name may come."""
        if self._agreed is not None and not self._agreed.covers(name):
            raise FinalError(f"{shown(name)}: the receiver's user accepted other names")

    def take(self, what: str, *, files: int = 0, size: int = 0) -> None:
        """Takes them from what is left."""
        self.check(what, files, size)
        self._files -= files
        self.left_bytes -= size

    def operate(self) -> None:
        """Counts a folder that is opened, or a file that is looked for: a sender walks its folders
        once, and asks about each file once. Others would keep this host busy and store nothing.
        """
        self._operations -= 1
        if self._operations < 0:
            raise FinalError(f"the sender opens too many folders for {self._of_files}")
