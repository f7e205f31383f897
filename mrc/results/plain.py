# SPDX-License-Identifier: Apache-2.0
"""Results as data that `json` can write. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from enum import IntEnum
from typing import Any, Literal, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)  # without slots, for some results have a second base
class Result:
    """Every object that a command prints begins with this."""

    schema: Literal[1] = 1
    """The version of the format. Keys may be added; a change of meaning counts it up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure(Result):
    """Printed when a command fails."""

    error: str
    """The line that the command also prints on stderr."""
    exit_code: int
    """The exit code of the command, or for a server of the session that failed."""


def plain(value: Any) -> Any:
    """Dataclasses as objects, tuples as arrays, numbers with a name (IntEnum) as the name."""
    if is_dataclass(value) and not isinstance(value, type):
        return {each.name: plain(getattr(value, each.name)) for each in fields(value)}
    if isinstance(value, IntEnum):
        return value.name
    if isinstance(value, Mapping):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(each) for each in value]
    return value


def like(kind: type[T], source: object, **others: Any) -> T:
    """A `kind` that takes the fields it shares with `source` from there, and `others` as given."""
    names = [each.name for each in fields(kind)]  # type: ignore[arg-type]
    shared = {name: getattr(source, name) for name in names if hasattr(source, name)}
    return kind(**shared | others)


def nonzero(values: Mapping[str, int]) -> dict[str, int]:
    """The counters that counted anything."""
    return {name: value for name, value in values.items() if value}
