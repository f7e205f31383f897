# SPDX-License-Identifier: Apache-2.0
"""What mrc send and mrc recv print as JSON, and what both ends report of files and packs that are
stored.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct, field

from mrc.cli import figures
from mrc.events import EvInfo, PlaneInfo

Role = Literal["sender", "receiver"]
_KEYS = {"linear": "retry_linear", "exponential": "retry_exp"}


class TransferPlane(PlaneInfo, frozen=True, kw_only=True):
    """One plane of the QPs of a transfer."""

    carried_percent: int | None
    """Payload that the plane carried, in percent of the mean of the other planes; null: these
    carried nothing.
    """


class TransferredFile(Struct, frozen=True):
    """A file that is stored and verified at the receiver."""

    name: str
    """Its name, as the sender gave it; a path with `/` for a file in a folder."""
    bytes: int
    """Its size."""
    digest: str
    """Digest of its bytes, in hexadecimal."""
    path: str
    """Its path at the end that reports it; `-` for standard input."""


class FailedFile(Struct, frozen=True):
    """A file or folder that was not copied, while the transfer went on."""

    name: str
    """Its name, as the sender gave it."""
    error: str
    """The cause, and what to do."""
    end: Role
    """The end that could not read or store it."""


class Outage(Struct, frozen=True):
    """A time in which this end sent no data on a plane, because it was silent or its link down."""

    plane: int
    """The plane, from 1."""
    lost_at_seconds: float
    """When it was lost, from the start of the transfer."""
    back_at_seconds: float | None
    """When it carried data again; null: not until the end."""


class Waits(Struct, frozen=True):
    """For how long one end could not go on, because of each part of the transfer."""

    reading_seconds: float
    """At the sender: its QPs were free, and no chunk of a file was read and hashed."""
    network_seconds: float
    """The sender had as many chunks in flight as it may; with --rate, until they may leave. The
    receiver had stored all chunks that had come."""
    storing_seconds: float
    """The receiver had to hash and store chunks. The sender waits only when the window is full."""


class Transfer(figures.Settings, frozen=True, kw_only=True, rename=_KEYS):
    """One transfer, as one end saw it: its files, planes and paths, and its parameters."""

    role: Role
    """The end that prints this."""
    files: tuple[TransferredFile, ...]
    """The files, in the order in which they were sent."""
    failed: tuple[FailedFile, ...]
    """The files and folders that were not copied, the first 1000; if there are any, the exit code
    is 6."""
    failed_count: int
    """How many there are."""
    folders: int
    """Number of folders."""
    links: int
    """Symbolic links that were copied as links."""
    skipped: int
    """Symbolic links and special files below folders, which the sender did not send."""
    excluded: int
    """Files that --exclude left out; a folder counts as one."""
    unchanged: int
    """Files that --update did not send, because the receiver has them."""
    bytes: int
    """Size of all files."""
    resumed_bytes: int
    """Bytes of the files that the receiver had kept of an earlier transfer."""
    seconds: float
    """Time from the first file to the last answer of the receiver, without `waited_seconds`."""
    waited_seconds: float
    """Time in which the receiver asked its user whether to accept the files."""
    goodput_bits_per_second: float
    """Bits of the files, without `resumed_bytes` and holes, divided by `seconds`."""
    retries: int
    """Lost connections after which the sender went on. What follows is of the last connection."""
    waits: Waits
    """For how long this end waited for its parts; they explain most of `seconds`."""
    qps: int
    """QPs at the end; a long, fast path takes several."""
    sent_packets: int
    """Data packets sent, retransmissions included."""
    retransmitted_packets: int
    """Packets sent again because they were declared lost."""
    spurious_packets: int
    """Retransmitted packets whose original had arrived."""
    planes: tuple[TransferPlane, ...]
    """The planes, summed over all QPs."""
    evs: tuple[EvInfo, ...]
    """The EVs of all QPs."""
    outages: tuple[Outage, ...]
    """The times without a plane, at this end of the first QP."""
    counters: dict[str, int]
    """Counters of the endpoint that are not 0, by their names in counters.def."""
    drops: dict[str, int]
    """Packets that the endpoint dropped, by reason."""
    transfer_version: int
    """Version of the file transfer's messages."""
    max_wimm: int
    """WRITE_IMMs in flight at most."""
    linear: int
    """Retransmissions of a packet before its timeout begins to double."""
    exponential: int
    """Retransmissions of a packet with a doubled timeout before the QP fails."""
    chunk_bytes: int
    """Size of a chunk of a file."""
    chunks_in_flight: int
    """Chunks that a sender has posted and not completed at most."""
    digest_algorithm: str
    """Algorithm of the files' digests."""
    bins: figures.Bins | None
    """Payload that arrived over time; null without --bins."""


# ---- What is stored ------------------------------------------------------------------------------


MAX_LISTED = 16  # files of a pack, whose names are kept in any case


class Total(Struct):
    """All that a transfer has copied, over all its connections. What was sent again after a loss,
    because the sender had not heard that it was stored, counts once where names are listed.
    """

    files: dict[str, TransferredFile] = field(default_factory=dict)  # by name
    others: set[str] = field(default_factory=set)  # folders and links
    count: int = 0  # of files
    folders: int = 0
    bytes: int = 0
    resumed_bytes: int = 0
    hole_bytes: int = 0
    links: int = 0
    seconds: float = 0.0

    def add(self, batch: StoredBatch, *, listed: bool) -> None:
        before: list[TransferredFile] = []
        again: set[str] = set()
        if listed:
            before = [self.files[file.name] for file in batch.files if file.name in self.files]
            again = self.others.intersection(batch.others)
            self.files.update((file.name, file) for file in batch.files)
            self.others.update(batch.others)
        folders = sum(name.endswith("/") for name in again)
        self.count += batch.count - len(before)
        self.folders += batch.folders - folders
        self.bytes += batch.bytes - sum(file.bytes for file in before)
        self.links += batch.links - (len(again) - folders)
        if not before:  # otherwise the bytes travelled when the file came first
            self.resumed_bytes += batch.resumed_bytes
            self.hole_bytes += batch.hole_bytes


class StoredBatch(Struct, frozen=True):
    """One file, or all files and folders of a pack, stored and verified; of a pack whose connection
    was lost, those that were stored before.

    `files` is empty where nobody keeps more than MAX_LISTED names: a peer may send very many.
    """

    files: tuple[TransferredFile, ...]
    count: int  # of files
    folders: int
    bytes: int
    packed: bool
    resumed_bytes: int = 0  # that the receiver had already
    hole_bytes: int = 0  # of holes, behind those
    links: int = 0  # symbolic links
    others: tuple[str, ...] = ()  # folders, with a slash, and links, where all names are kept
    seconds: float = 0.0  # it took, without waits for a user

    @classmethod
    def of(cls, file: TransferredFile, resumed_bytes: int = 0, hole_bytes: int = 0) -> StoredBatch:
        return cls((file,), 1, 0, file.bytes, False, resumed_bytes, hole_bytes)


def sent_bytes(moved: StoredBatch | Total) -> int:
    """The bytes that travelled: holes, and those that the receiver had kept, did not."""
    return moved.bytes - moved.resumed_bytes - moved.hole_bytes
