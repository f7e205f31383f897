# SPDX-License-Identifier: Apache-2.0
"""Finds and opens TOML files: those that come with mrc go by their name, others by their path."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from mrc.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Document:
    """What a file holds, before anybody looks for keys in it."""

    name: str
    """of a built-in one, else that of the file"""
    place: str
    """what errors begin with"""
    values: dict[str, Any]


def builtin(folder: str) -> dict[str, Any]:
    """Name -> file, of those in a folder of mrc."""
    found = (files("mrc") / folder).iterdir()
    return {path.name[:-5]: path for path in found if path.name.endswith(".toml")}


def read(name: str, known: Mapping[str, Any], what: str) -> Document:
    """Opens one of the known files or, when `name` looks like a path, another.

    Raises ConfigError, which calls the file a `what`.
    """
    is_path = name not in known
    if is_path and not ("/" in name or name.endswith(".toml")):
        there = ", ".join(sorted(known))
        raise ConfigError(f"no {what} {name!r}; there are {there}, or name a file")
    values = load(Path(name) if is_path else known[name], name)
    return Document(Path(name).stem if is_path else name, name, values)


def load(file: Any, name: str) -> dict[str, Any]:
    """What a TOML file holds; raises ConfigError."""
    try:
        return tomllib.loads(file.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{name}: {error}") from error
