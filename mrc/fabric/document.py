# SPDX-License-Identifier: Apache-2.0
"""Finds and opens TOML files: mrc's own files by name, other files by path."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

from msgspec import Struct

from mrc.errors import BadFileError

MOST_BYTES = 32 << 20  # of a file; they take some ten seconds
_LONG = re.compile(r"[0-9]{4301}")  # digits that int() refuses


class Document(Struct, frozen=True):
    """The contents of a file, with unchecked keys."""

    name: str
    """name of the built-in file, or file name without suffix"""
    place: str
    """prefix of error messages"""
    values: dict[str, Any]


def builtin(folder: str) -> dict[str, Any]:
    """Name -> file, of the TOML files in a folder of mrc."""
    found = (files("mrc") / folder).iterdir()
    return {path.name[:-5]: path for path in found if path.name.endswith(".toml")}


def read(name: str, known: Mapping[str, Any], what: str) -> Document:
    """Opens one of the known files, or another file if `name` looks like a path.

    Raises BadFileError; its message calls the file a `what`.
    """
    is_path = name not in known
    if is_path and not ("/" in name or name.endswith(".toml")):
        there = ", ".join(sorted(known))
        raise BadFileError(f"no {what} {name!r}; use {there}, or the path of a file")
    values = load(Path(name) if is_path else known[name], name)
    return Document(Path(name).stem if is_path else name, name, values)


def load(file: Any, name: str) -> dict[str, Any]:
    """The contents of a TOML file; raises BadFileError."""
    found: dict[str, Any] = parsed(text_of(file, name, MOST_BYTES), name)
    return found


def text_of(file: Any, name: str, most: int) -> str:
    """The text of a file of at most `most` bytes, also of one without an end; raises
    BadFileError.
    """
    try:
        with file.open("rb") as opened:
            found: bytes = opened.read(most + 1)
        if len(found) > most:
            raise BadFileError(f"{name}: has more than {most >> 20} MiB, which is the limit")
        return found.decode()
    except OSError as error:
        raise BadFileError(f"{name}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise BadFileError(f"{name}: is no text in UTF-8: {error.reason}") from error


def parsed(
    text: str, name: str, read: Callable[[str], Any] = tomllib.loads, kind: str = "TOML"
) -> Any:
    """The values in a text, as `read` finds them. Raises BadFileError for any other text: parsers
    fail at depth, at long numbers and at dates that no calendar has, too.
    """
    try:
        return read(text)
    except RecursionError:
        raise BadFileError(f"{name}: not {kind}: is nested too deeply") from None
    except (ValueError, OverflowError) as error:
        long = "a number has too many digits" if _LONG.search(text) else error
        raise BadFileError(f"{name}: not {kind}: {long}") from error
