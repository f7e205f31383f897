# SPDX-License-Identifier: Apache-2.0
"""What both ends report while a transfer runs."""

from __future__ import annotations

from msgspec import Struct, field

from mrc.results.transfer import TransferredFile

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

    def add(self, batch: Batch, *, listed: bool) -> None:
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


class Batch(Struct, frozen=True):
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

    @classmethod
    def of(cls, file: TransferredFile, resumed_bytes: int = 0, hole_bytes: int = 0) -> Batch:
        return cls((file,), 1, 0, file.bytes, False, resumed_bytes, hole_bytes)
