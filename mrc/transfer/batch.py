# SPDX-License-Identifier: Apache-2.0
"""What both ends report while a transfer runs."""

from __future__ import annotations

from msgspec import Struct, field

from mrc.results.transfer import TransferredFile

MAX_LISTED = 16  # files of a pack, whose names are kept in any case


class Total(Struct):
    """All that a transfer has copied, over all its connections."""

    files: list[TransferredFile] = field(default_factory=list)  # only where somebody needs them
    count: int = 0  # of files
    folders: int = 0
    bytes: int = 0
    resumed_bytes: int = 0
    hole_bytes: int = 0
    links: int = 0
    seconds: float = 0.0

    def add(self, batch: Batch, *, listed: bool) -> None:
        if listed:
            self.files.extend(batch.files)
        self.count += batch.count
        self.folders += batch.folders
        self.bytes += batch.bytes
        self.links += batch.links
        self.resumed_bytes += batch.resumed_bytes
        self.hole_bytes += batch.hole_bytes


class Batch(Struct, frozen=True):
    """One file, or all files and folders of a pack, stored and verified.

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

    @classmethod
    def of(cls, file: TransferredFile, resumed_bytes: int = 0, hole_bytes: int = 0) -> Batch:
        return cls((file,), 1, 0, file.bytes, False, resumed_bytes, hole_bytes)
