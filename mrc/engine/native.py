# SPDX-License-Identifier: Apache-2.0
"""The only module that imports the compiled engine: handles, lifetimes and error codes.

No other module can free a C pointer or use it after its end. A command keeps its memory alive
through `Command.keep`; the owner of the command holds it until the reply.
"""

from __future__ import annotations

import errno
import os
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

from msgspec import Struct

from mrc._core import ffi as ffi
from mrc._core import lib as lib
from mrc.errors import ArgumentError, InUseError, MrcError, QueueFullError, StateError
from mrc.linux.secret import Secret

T = TypeVar("T")

CData = Any
"""A cffi object: a struct, an array or a pointer."""

POLL_BATCH = 256
"""Maximum number of events that one call takes from the completion ring."""

SUBMIT_BATCH = 256
"""Maximum number of commands in one call."""

FORKED = "a Context does not survive fork: open another one in this process"
"""The error of every call on an inherited Context in a child process."""

_ERRORS: dict[int, tuple[type[MrcError], str]] = {
    errno.EINVAL: (ArgumentError, "an argument is out of range"),
    errno.EACCES: (ArgumentError, "the memory region does not cover the range"),
    errno.ENOENT: (StateError, "it does not exist (any more)"),
    errno.EPERM: (StateError, "the QP is not ready to send"),
    errno.ECHILD: (StateError, FORKED),
    errno.EBUSY: (StateError, "work requests still use it"),
    errno.EEXIST: (InUseError, "the number is in use"),
    errno.EADDRINUSE: (InUseError, "another peer uses this address and port"),
    errno.ENOBUFS: (QueueFullError, "the send queue is full"),
    errno.EAGAIN: (QueueFullError, "too many are in progress: try again later"),
    errno.ENOSPC: (QueueFullError, "the Context has no free place for another one"),
}


def check(code: int, what: str) -> int:
    """Returns `code`, or raises an exception for a negative errno; `what` names the operation."""
    if code >= 0:
        return code
    if -code in _ERRORS:
        kind, cause = _ERRORS[-code]
        raise kind(f"{what}: {cause}")
    raise OSError(-code, f"{what}: {os.strerror(-code)}")


def text(pointer: CData) -> str | None:
    """Returns a C string, or None for a null pointer."""
    if pointer == ffi.NULL:
        return None
    return bytes(ffi.string(pointer)).decode("ascii", "replace")


class Command(Struct):
    """Fields of a `struct mrc_command`, and the memory that must live until the reply. Raises
    ArgumentError for a number that does not fit: later, among commands of others, it would stop
    them all.
    """

    fields: dict[str, Any]
    keep: object = None
    _struct: CData = None

    def __post_init__(self) -> None:
        self._struct = new_struct("mrc_command", **self.fields)

    def answer_to(self, cookie: int) -> None:
        """The reply will have this cookie."""
        self.fields["cookie"] = self._struct.cookie = cookie

    def fill(self, commands: CData, index: int) -> None:
        """Writes the command into an array of `struct mrc_command`."""
        commands[index] = self._struct[0]


class Submission(Protocol):
    """An item that `Engine.submit` accepts: a `Command` or a work request."""

    def fill(self, commands: CData, index: int) -> None:
        """Writes the item into an array of `struct mrc_command`."""


class StructQueue:
    """Structs that C has handed over, until each has become an object: if memory is short between,
    none is lost.
    """

    def __init__(self, kind: str, size: int) -> None:
        """At most `size` of `struct kind`."""
        self._structs = ffi.new(f"struct {kind}[]", size)
        self._size = size
        self._count = self._next = 0

    @property
    def is_empty(self) -> bool:
        """True when all that was handed over has been taken."""
        return self._next == self._count

    def take(
        self, poll: Callable[[CData, int], int], decode: Callable[[CData], T], objects: deque[T]
    ) -> int:
        """Appends the next objects, and returns how many structs `poll(structs, room)` gave.

        After a MemoryError, the next call goes on where this one stopped.
        """
        if self._next == self._count:
            self._count = self._next = 0
            self._count = poll(self._structs, self._size)
        for struct in self._structs[self._next : self._count]:
            objects.append(decode(struct))
            self._next += 1
        return self._count


def new_array(kind: str, items: Sequence[dict[str, Any]] | int) -> CData:
    """Returns a C array of `struct kind`, filled from dicts or of a given length. Raises
    ArgumentError for a number that does not fit.
    """
    return _made(f"struct {kind}[]", items)


def new_struct(kind: str, **fields: Any) -> CData:
    """Returns a `struct kind` with these fields; all other fields are 0. Raises ArgumentError for a
    number that does not fit.
    """
    return _made(f"struct {kind} *", fields)


def _made(kind: str, values: object) -> CData:
    try:
        return ffi.new(kind, values)
    except OverflowError as error:
        raise ArgumentError(f"a number is out of range: {error}") from error


def secret_struct(kind: str, **fields: Any) -> CData:
    """The same in memory for secrets, which ends with the last reference to the struct."""
    made = ffi.from_buffer(f"struct {kind} *", Secret(ffi.sizeof(f"struct {kind}")).bytes)
    for name, value in fields.items():
        setattr(made, name, value)
    return made


def agree(
    attr: CData, qpn: int, random: memoryview, peer_random: memoryview, *, first: bool
) -> None:
    """Fills in the secrets of a `struct mrc_seal_attr`."""
    both = (ffi.from_buffer("uint8_t[]", each) for each in (random, peer_random))
    check(lib.mrc_seal_agree(attr, qpn, *both, first), "seal the QP")


def new_values(count: int) -> CData:
    """Returns an array of 64-bit counters."""
    return ffi.new("uint64_t[]", count)


def aead_name() -> str | None:
    """The library that seals packets; None when this host has none. The first call loads it."""
    return text(lib.mrc_aead_name())


def names_of(kind: str, what: str = "name") -> list[str]:
    """Returns the names in a .def list: "counter", "drop" or "trace", in the order of the list.

    `what`: "meaning" for what each of them counts, which only counters have.
    """
    name_at = getattr(lib, f"mrc_{kind}_{what}")
    names: list[str] = []
    while (name := text(name_at(len(names)))) is not None:
        names.append(name)
    return names
