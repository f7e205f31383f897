# SPDX-License-Identifier: Apache-2.0
"""The limits on what a peer sends: names of files and folders, and how much; the errors of what
cannot be copied. Pure.

A name is a relative path with `/` between its parts. Each part must be a plain name of a file, so
no name leads out of the output folder.
"""

from __future__ import annotations

import errno
import hashlib
import math
import os
import re
import secrets
import unicodedata
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from msgspec import Struct

from mrc.connect.parse import printable, shown
from mrc.errors import ArgumentError, MrcError

if TYPE_CHECKING:
    from mrc.transfer.messages import Announced

MAX_NAME_BYTES = 255  # of a part: NAME_MAX of Linux file systems
MAX_PATH_BYTES = 4095  # PATH_MAX without its NUL
MAX_DEPTH = 64  # parts of a name; the receiver holds a descriptor for each folder of one name
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)
_INVISIBLE = ("Cc", "Cf", "Zl", "Zp")  # control, format, line and paragraph separators
_KEPT = "-kept"
_MADE = "-made"
_TEMPORARY = re.compile(rf"\..*\.mrc-[0-9a-f]{{8}}({_KEPT}|{_MADE})?", re.DOTALL)
_SUFFIX_BYTES = len("..mrc-01234567" + _KEPT)


class CopyError(MrcError):
    """Something cannot be read or stored; the message names it and the cause."""


class FileError(CopyError):
    """One file or folder cannot be copied; others can."""


class FinalError(CopyError):
    """No further file can be stored: the disk is full, or the sender is at its limit."""


class StoppedError(FinalError):
    """A helper thread was told to end what it does."""

    def __init__(self) -> None:
        super().__init__("stopped")


def cannot(error: OSError, text: str) -> CopyError:
    """The error for a file that `error` concerns; its cause follows `text`."""
    kind = FinalError if error.errno in _FULL else FileError
    return kind(f"{text}: {cause_of(error)}")


def of_system(error: FileError) -> bool:
    """Whether the system has refused something, which it may do another time. What mrc itself
    refuses, such as a name, it always refuses.
    """
    return isinstance(error.__cause__, OSError)


def check_name(name: str) -> str:
    """Returns `name` if it is a valid file name without a path; raises FileError otherwise."""
    if name in ("", ".", ".."):
        raise FileError(f"{printable(name)!r} is not a file name")
    if "/" in name or "\0" in name:
        raise FileError(f"{printable(name)!r} is not a base name: it contains '/' or NUL")
    try:
        encoded = os.fsencode(name)
    except UnicodeEncodeError:
        raise FileError(f"{printable(name)!r} is not a file name: it cannot be encoded") from None
    if len(encoded) > MAX_NAME_BYTES:
        raise FileError(f"{printable(name)!r} is longer than {MAX_NAME_BYTES} bytes")
    if is_temporary(name):
        raise FileError(
            f"{printable(name)!r} is reserved for temporary files of mrc: rename the file"
        )
    return name


@contextmanager
def about(path: str) -> Iterator[None]:
    """Errors of the body name this file or folder."""
    try:
        yield
    except FileError as error:
        raise FileError(f"{printable(path)}: {error}") from error.__cause__


def check_harmless(parts: Sequence[str]) -> None:
    """Raises FileError for a part that other programs could misinterpret. The error is the same
    for all that is below a folder with such a name.
    """
    for end, part in enumerate(parts, 1):
        if part[0] in ".-":
            how = f"begins with {part[0]!r}"
        elif any(unicodedata.category(c) in _INVISIBLE for c in part):
            how = "contains control characters"
        else:
            continue
        name = shown("/".join(parts[:end]))
        raise FileError(f"{name!r}: {how}; mrc recv accepts such names only with --any-name")


def wire_name(path: str) -> str:
    """The name of a file in a message. Names are bytes: a message has them as UTF-8, with
    surrogates for bytes that are none, whatever the locales of both hosts are.
    """
    return os.fsencode(path).decode("utf-8", "surrogateescape")


def local_name(name: str) -> str:
    """The name of a file of this host for the name in a message; raises FileError."""
    try:
        return os.fsdecode(name.encode("utf-8", "surrogateescape"))
    except UnicodeEncodeError:
        raise FileError(f"{shown(name)!r} is not a file name: it cannot be encoded") from None


def check_length(path: str) -> None:
    """Raises FileError for a path that no message and no system call takes."""
    try:
        size = len(path.encode("utf-8", "surrogateescape"))
    except UnicodeEncodeError:
        raise FileError(f"{shown(path)!r} is not a file name: it cannot be encoded") from None
    if size > MAX_PATH_BYTES:
        raise FileError(f"{shown(path)!r} is longer than {MAX_PATH_BYTES} bytes")


def check_path(path: str) -> list[str]:
    """The parts of a relative path; raises FileError if one of them is not a valid file name."""
    check_length(path)
    if path.startswith("/"):
        raise FileError(f"{shown(path)!r} is an absolute path")
    parts = path.split("/")
    if len(parts) > MAX_DEPTH:
        raise FileError(f"{shown(path)!r} is deeper than {MAX_DEPTH} folders")
    for part in parts:
        try:
            check_name(part)
        except FileError as error:
            raise error if part == path else FileError(f"{shown(path)!r}: {error}") from None
    return parts


def check_link(target: str, depth: int) -> None:
    """Raises FileError for a link, `depth` folders below the top, that may lead above the top.

    The folders around a link are real ones, so `..` at its begin is the folder above. Behind the
    name of another link, `..` could be anywhere.
    """
    parts = [part for part in target.split("/") if part not in ("", ".")]
    ups = 0
    while ups < len(parts) and parts[ups] == "..":
        ups += 1
    if target.startswith("/") or "\0" in target or not target:
        raise FileError("the link is not relative")
    if ups > depth or ".." in parts[ups:]:
        raise FileError("the link may lead out of the folder that is sent")


def is_temporary(name: str) -> bool:
    """True for the name of a file that a receiver has not completed."""
    return name[0] == "." and _TEMPORARY.fullmatch(name) is not None


def temporary_name(name: str) -> str:
    """A new name for the file `name` until it is complete."""
    return f".{_stem(name)}.mrc-{secrets.token_hex(4)}"


def part_name(path: str) -> str:
    """The name of what is kept of the file with this path. Always the same, so that a later
    transfer finds it.
    """
    key = hashlib.sha256(os.fsencode(path)).hexdigest()[:8]
    return f".{_stem(os.path.basename(path))}.mrc-{key}"


def record_name(part: str) -> str:
    """The name of the record beside a part."""
    return part + _KEPT


def mark_name(path: str) -> str:
    """The name of the mark of a folder that is not complete."""
    return part_name(path) + _MADE


def is_mark(name: str) -> bool:
    return name.endswith(_MADE)


def is_record(name: str) -> bool:
    return name.endswith(_KEPT)


def shown_name(temporary: str) -> str:
    """The file that a temporary name stands for, perhaps cut."""
    return temporary[1:].rpartition(".mrc-")[0]


def _stem(name: str) -> str:
    # So short that the temporary name of the longest legal name is legal too, and without a part of
    # a character, which some file systems refuse.
    while len(os.fsencode(name)) > MAX_NAME_BYTES - _SUFFIX_BYTES:
        name = name[:-1]
    return name


def cause_of(error: OSError) -> str:
    return (error.strerror or str(error)).lower()


# ---- Bytes and files -----------------------------------------------------------------------------


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


def checked_number(name: str, value: float, low: float, high: float) -> None:
    """Raises ArgumentError if an argument is not a number within these bounds."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not low <= value <= high:
        most = f"from {low} to {high}" if high < math.inf else f"from {low} on"
        raise ArgumentError(f"{name}: {value!r} is not a number {most}")


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
