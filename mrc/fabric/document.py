# SPDX-License-Identifier: Apache-2.0
"""Finds and opens TOML files: mrc's own files by name, other files by path."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

from msgspec import Struct

from mrc.errors import BadFileError


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
    try:
        return tomllib.loads(file.read_text("utf-8"))
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise BadFileError(f"{name}: {why}") from error
