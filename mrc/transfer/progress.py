# SPDX-License-Identifier: Apache-2.0
"""What a program hears of a transfer while it runs: its progress, and events, whose texts are lines
for people.
"""

from __future__ import annotations

from msgspec import Struct

from mrc.aio.context import Context
from mrc.aio.qp import QP
from mrc.connect.parse import shown
from mrc.connect.retry import Trying
from mrc.events import QpEvent
from mrc.transfer.results import FailedFile, StoredBatch, Transfer
from mrc.units import counted, scaled


class TransferPlanned(Struct, frozen=True):
    """The first event of a sender: what there is to send."""

    excluded: int
    """Files and folders that `exclude` leaves out."""
    skipped: tuple[str, ...]
    """Symbolic links and special files below folders that are not sent, each with its kind."""


class Connected(Struct, frozen=True):
    """A connection begins: the first of the transfer, or another after a loss."""

    context: Context
    qp: QP
    again: bool

    def __str__(self) -> str:
        return "connected again" if self.again else f"connected to {shown(self.qp.peer.host)}"


class Disconnected(Struct, frozen=True):
    """The connection is no longer followed: it has ended, or will."""


class Waiting(Struct, frozen=True):
    """The receiver asks its user whether to accept the files; nothing moves until the answer."""

    host: str

    def __str__(self) -> str:
        return f"waiting for {shown(self.host)} to accept"


class Resumed(Struct, frozen=True):
    """The receiver has the first bytes of a file from an earlier transfer, or all of them."""

    name: str
    there_bytes: int
    bytes: int
    """Size of the file."""

    def __str__(self) -> str:
        if self.there_bytes == self.bytes:
            return f"{shown(self.name)}: was there with the same {scaled(self.bytes, 'B')}"
        there = scaled(self.there_bytes, "B")
        return f"{shown(self.name)}: goes on behind {there} of an earlier transfer"


class Grew(Struct, frozen=True):
    """A file grew while it was sent."""

    path: str

    def __str__(self) -> str:
        return f"{shown(self.path)}: grew while it was sent: copied as it was at the begin"


class Unchanged(Struct, frozen=True):
    """The receiver has so many files with the same size and date, which `update` leaves out."""

    count: int

    def __str__(self) -> str:
        were = "was" if self.count == 1 else "were"
        return f"{counted(self.count, 'file')} {were} there with the same size and date"


class Kept(Struct, frozen=True):
    """The receiver keeps so many bytes of a file whose transfer was interrupted."""

    name: str
    bytes: int

    def __str__(self) -> str:
        kept = scaled(self.bytes, "B")
        return (
            f"{shown(self.name)}: {kept} are kept for 7 days; the same mrc send goes on from there"
        )


class Resumable(Struct, frozen=True):
    """The last event of a sender that failed, or was cancelled, where the receiver keeps what it
    has: the same call goes on from there.
    """

    def __str__(self) -> str:
        return "the same command goes on where this one stopped"


Event = (
    TransferPlanned | Connected | Disconnected | Trying | Waiting | Resumed | Grew | Unchanged
    | Kept | Resumable | StoredBatch | FailedFile | QpEvent | Transfer
)  # fmt: skip
"""Stored files are StoredBatch, files that are not copied FailedFile; a Transfer is the result."""


class Progress(Struct, frozen=True, kw_only=True):
    """A transfer at one moment, several times a second and at each event."""

    transfer: int
    """Number of the transfer at this end, from 1: a receiver may have several at a time."""
    host: str
    """The other end."""
    done_bytes: int = 0
    """Bytes that the receiver has; less again after a loss, if bytes have to travel anew."""
    bytes: int | None = None
    """Bytes in all; None: not known."""
    files: int = 0
    """Files that are stored and verified."""
    file: str = ""
    """Name of the file on its way; empty for a pack of small files, and between files."""
    rate_bits_per_second: float = 0.0
    """How fast bytes arrive now."""
    planes: int = 0
    """Planes of the connection; 0: not known yet."""
    working_planes: int = 0
    """Those that are neither suspended nor silent while others carry data."""
    waiting: bool = False
    """Whether the receiver asks its user."""
    event: Event | None = None
    """What has just happened; None: nothing but the time."""
