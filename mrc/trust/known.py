# SPDX-License-Identifier: Apache-2.0
"""Files of fingerprints: hosts that this user knows, and peers that may connect."""

from __future__ import annotations

import base64
import binascii
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from mrc.errors import ConfigError, ConnectError
from mrc.trust import files
from mrc.trust.identity import PREFIX, folder


class ChangedError(ConnectError):
    """A known host shows another key than before."""


def check_fingerprint(text: str) -> str:
    """Returns `text` if it is a fingerprint; raises ValueError."""
    try:
        digest = base64.b64decode(text.removeprefix(PREFIX) + "=", validate=True)
    except (binascii.Error, ValueError):
        digest = b""
    if not text.startswith(PREFIX) or len(digest) != 32:
        raise ValueError(f"{text!r:.60} is no fingerprint, such as those of: mrc key")
    return text


class KnownHosts:
    """The file of known hosts: a name and a fingerprint in each line."""

    def __init__(self, path: Path | None = None) -> None:
        self.path = path or folder() / "known_hosts"

    def fingerprint(self, host: str) -> str | None:
        """The fingerprint of this host; None if it is not known."""
        for number, words in _lines(self.path):
            if words[0] == host:
                if len(words) < 2:
                    raise ConfigError(f"{self.path}:{number}: has no fingerprint")
                return words[1]
        return None

    def check(self, host: str, shown: str) -> bool:
        """False if the host is not known. Raises ChangedError if it shows another key."""
        known = self.fingerprint(host)
        if known is None:
            return False
        if known != shown:
            raise ChangedError(
                f"{host} shows another key than before: {shown} instead of {known}. Somebody may be"
                f" in between, or the host has a new key: if you know that it has, remove its line"
                f" from {self.path}"
            )
        return True

    def add(self, host: str, shown: str) -> None:
        """Remembers a host."""
        _append(self.path, f"{host} {shown}")


def default_allowed() -> Path:
    """The user's file of peers that may connect."""
    return folder() / "allowed"


def allow(path: Path, fingerprint: str, comment: str) -> None:
    """Adds a peer that may connect. Raises OSError."""
    _append(path, f"{fingerprint}  # {comment}")


def allowed(entries: Iterable[str]) -> frozenset[str]:
    """The fingerprints and SPIFFE names that may connect: given as such, or as files of them.

    A line of a file holds one, and may go on with a comment. Files are read anew in each call.
    """
    found: set[str] = set()
    for entry in entries:
        if entry.startswith((PREFIX, "spiffe://")):
            found.add(entry)
            continue
        for number, words in _lines(Path(entry), required=True):
            if not words[0].startswith((PREFIX, "spiffe://")):
                raise ConfigError(f"{entry}:{number}: {words[0]!r:.40} is no fingerprint")
            found.add(words[0])
    return frozenset(found)


def _append(path: Path, line: str) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with open(path, "ab+", opener=lambda p, flags: os.open(p, flags, 0o600)) as file:
        if file.tell():  # an editor may have left the last line without its end
            file.seek(-1, os.SEEK_END)
            line = line if file.read() == b"\n" else f"\n{line}"
        file.write(f"{line}\n".encode())


def _lines(path: Path, *, required: bool = False) -> Iterator[tuple[int, list[str]]]:
    try:
        text = files.read(path).decode()
    except FileNotFoundError:
        if not required:
            return
        raise ConfigError(f"{path}: no such file, and no fingerprint either") from None
    except (OSError, UnicodeDecodeError) as error:
        why = str(error.strerror).lower() if isinstance(error, OSError) else str(error)
        raise ConfigError(f"{path}: cannot be read: {why}") from error
    for number, line in enumerate(text.splitlines(), 1):
        if words := line.partition("#")[0].split():
            yield number, words
