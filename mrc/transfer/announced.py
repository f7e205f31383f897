# SPDX-License-Identifier: Apache-2.0
"""What a sender announces of a transfer before any file: the user's consent covers it, no more."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any

from msgspec import Meta, Struct, to_builtins

from mrc.transfer.names import FileError, local_name, wire_name
from mrc.typed import Whole, take

MAX_NAMES = 16
Names = Annotated[tuple[Annotated[str, Meta(max_length=255)], ...], Meta(max_length=MAX_NAMES)]


class Announced(Struct, frozen=True, kw_only=True):
    """The numbers and names of a transfer; None: not known."""

    bytes: Whole | None = None
    files: Whole | None = None
    folders: Whole = 0
    """folders and links"""
    names: Names = ()
    """of the files and folders at the top, as in messages"""
    more: Whole = 0
    """further ones at the top, without their names"""

    @classmethod
    def of_names(
        cls, names: Iterable[str], *, bytes: int | None, files: int, links: int
    ) -> Announced:
        """From the names of all entries at the receiver; those of folders end with a slash."""
        folders: set[str] = set()
        tops: dict[str, None] = {}
        for name in names:
            above = name
            while above := above.rpartition("/")[0]:
                folders.add(above)
            tops[name.partition("/")[0]] = None
        shown = [wire_name(top) for top in tops]
        fitting = tuple(name for name in shown if len(name) <= 255)[:MAX_NAMES]
        return cls(
            bytes=bytes,
            files=files,
            folders=len(folders) + links,
            names=fitting,
            more=len(shown) - len(fitting),
        )

    @classmethod
    def read(cls, private: dict[str, Any]) -> Announced:
        """From the private data of a sender; raises ValueError."""
        return take(private, cls)

    def to_dict(self) -> dict[str, Any]:
        """The inverse of `read`."""
        told: dict[str, Any] = to_builtins(self)
        return told

    @property
    def entries(self) -> int | None:
        """Files, folders and links together."""
        return None if self.files is None else self.files + self.folders

    def covers(self, name: str) -> bool:
        """Whether a file or folder of this name, in the form of this host, was announced."""
        if self.more or not self.names:
            return True
        try:
            return name.partition("/")[0] in map(local_name, self.names)
        except FileError:
            return False
