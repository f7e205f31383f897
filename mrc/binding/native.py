# SPDX-License-Identifier: Apache-2.0
"""The only module that imports the compiled engine: handles, lifetimes and error codes.

No other module can free a C pointer or use it after its end. A command keeps its memory alive
through `Command.keep`; the owner of the command holds it until the reply.
"""

from __future__ import annotations

import errno
import os
import re
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol, TypeVar

from msgspec import Struct

from mrc._core import ffi as ffi
from mrc._core import lib as lib
from mrc.binding import dlpack
from mrc.errors import ArgumentError, InUseError, MrcError, QueueFullError, StateError
from mrc.trust.memory import Secret

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
    """An item that `NativeContext.submit` accepts: a `Command` or a work request."""

    def fill(self, commands: CData, index: int) -> None:
        """Writes the item into an array of `struct mrc_command`."""


class HeldBuffer(Struct):
    """A Python buffer pinned for C. It cannot be resized or closed before `release`."""

    address: int
    length: int
    _keep: object

    @classmethod
    def hold(cls, buffer: Any, *, writable: bool) -> HeldBuffer:
        """Pins `buffer`; raises ArgumentError unless it is contiguous plain data, and writable if
        required.
        """
        try:
            format = _format_of(buffer)
            if format is None and hasattr(buffer, "__dlpack__"):
                return cls(*dlpack.memory_of(buffer, writable=writable))
            if format is not None and _POINTERS.search(_NAMES.sub("", format)):
                raise ValueError("it holds objects or pointers, not plain data")
            view = ffi.from_buffer("uint8_t[]", buffer, require_writable=writable)
        except (TypeError, ValueError, BufferError, RuntimeError) as error:
            kind = "writable contiguous" if writable else "contiguous"
            raise ArgumentError(f"buffer: needs a {kind} buffer: {error}") from error
        return cls(int(ffi.cast("uintptr_t", view)), len(view), view)

    def release(self) -> None:
        """Unpins the buffer."""
        if isinstance(self._keep, ffi.CData):
            ffi.release(self._keep)
        self._keep = None


# In the format of a buffer, as the struct module, NumPy (PEP 3118) and ctypes write it.
_NAMES = re.compile(r":[^:]*:")  # of fields
_POINTERS = re.compile(r"[OPXz&]|Z(?![fdg])")  # Zf, Zd and Zg are complex numbers


def _format_of(candidate: Any) -> str | None:
    """The format of a buffer; None for what has no buffer protocol."""
    try:
        with memoryview(candidate) as view:
            return view.format
    except TypeError:
        return None


class Handled(Protocol):
    """A context of this process."""

    def handle(self) -> CData:
        """The `mrc_ctx`; raises StateError."""


class Batch:
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
        if self.is_empty:
            self._count = self._next = 0
            self._count = poll(self._structs, self._size)
        for struct in self._structs[self._next : self._count]:
            objects.append(decode(struct))
            self._next += 1
        return self._count


class NativeContext:
    """Owns one `mrc_ctx`: its sockets, its rings, and its datapath thread unless it is polled."""

    def __init__(self, config: dict[str, Any]) -> None:
        """Opens a context; `config` has the fields of a `struct mrc_ctx_config`. Raises OSError."""
        native = ffi.new("struct mrc_ctx_config *", config)
        code = ffi.new("int *")
        message = ffi.new("char[256]")
        self.forked = False
        self._ctx: CData | None = lib.mrc_ctx_create(native, code, message, len(message))
        if self._ctx == ffi.NULL:
            cause = bytes(ffi.string(message)).decode("utf-8", "replace")
            raise OSError(-code[0], cause or os.strerror(-code[0]))
        # Garbage collection and interpreter exit also stop the thread before its memory is freed.
        self._end = weakref.finalize(self, lib.mrc_ctx_destroy, self._ctx)
        _opened.add(self)
        self._events = Batch("mrc_event", POLL_BATCH)
        self._commands = ffi.new("struct mrc_command[]", SUBMIT_BATCH)
        self.fd = int(lib.mrc_ctx_fd(self._ctx))
        """Descriptor that is readable when `events` (or, if polled, `run`) must be called."""
        self.udp_port = int(lib.mrc_ctx_udp_port(self._ctx))
        """The UDP port that peers send to."""

    def handle(self) -> CData:
        """The `mrc_ctx`, for functions of csrc/msg/messages.h; raises StateError."""
        return self._open()

    def _open(self) -> CData:
        if self._ctx is None:
            raise StateError(FORKED if self.forked else "the Context is closed")
        return self._ctx

    def source_port(self, port: int, tx_index: int) -> int:
        """The UDP source port of one transmit socket."""
        return int(lib.mrc_ctx_source_port(self._open(), port, tx_index))

    def submit(self, batch: Iterable[Submission]) -> int:
        """Queues at most SUBMIT_BATCH items in order; returns how many fitted into the ring."""
        n = 0
        for n, each in enumerate(batch, 1):
            each.fill(self._commands, n - 1)
        return check(lib.mrc_ctx_submit(self._open(), self._commands, n), "submit")

    def run(self) -> int:
        """Runs one turn of a polled context without sleeping; returns the number of events."""
        return check(lib.mrc_ctx_run(self._open(), 0), "run")

    def arm(self) -> bool:
        """True when the caller of a polled context may wait for `fd`; False when `run` is due."""
        return bool(lib.mrc_ctx_arm(self._open()))

    def _poll(self, events: CData, room: int) -> int:
        return check(lib.mrc_ctx_poll(self._open(), events, room), "poll")

    def close(self) -> None:
        """Stops the datapath thread and waits for its end. Then registered memory is unused."""
        self._ctx = None
        self._end()

    def abandon(self) -> None:
        """In a child of fork: closes the child's descriptors. The parent's datapath goes on."""
        self.forked = True
        self.close()


_opened: weakref.WeakSet[NativeContext] = weakref.WeakSet()


def _abandon_all() -> None:
    for context in list(_opened):
        if context._ctx is not None:
            context.abandon()


os.register_at_fork(after_in_child=_abandon_all)


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


def view_of(buffer: bytearray) -> CData:
    """Returns a pointer to the bytes of `buffer`, which keeps them alive and in their place."""
    return ffi.from_buffer(buffer)


def new_values(count: int) -> CData:
    """Returns an array of 64-bit counters."""
    return ffi.new("uint64_t[]", count)


def aead_name() -> str | None:
    """The library that seals packets; None when this host has none. The first call loads it."""
    return text(lib.mrc_aead_name())


def names_of(kind: str, what: str = "name") -> list[str]:
    """Returns the names in a .def list: "counter", "drop" or "trace", in the order of the list.

    `what`: "meaning" for what each of them counts, which only counters say.
    """
    name_at = getattr(lib, f"mrc_{kind}_{what}")
    names: list[str] = []
    while (name := text(name_at(len(names)))) is not None:
        names.append(name)
    return names
