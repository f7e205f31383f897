# SPDX-License-Identifier: Apache-2.0
"""Finds and opens TOML files, mrc's own by name, others by path, and reads their tables key by key,
so that every error names the file, the key and the problem.

A table is not decoded into a declared type, because in a scenario the bounds, the defaults, the
units and the keys depend on the values of other keys.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, TypeVar

from msgspec import Meta, Struct

from mrc import units
from mrc.errors import BadFileError
from mrc.typed import take

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
    except ValueError as error:  # a path with a null byte
        raise BadFileError(f"{name}: {error}") from error


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


# ---- Tables --------------------------------------------------------------------------------------


_T = TypeVar("_T")
_Text = TypeVar("_Text", bound=str)


class Table:
    """One table of a file. The caller reads its keys and then calls `close`.

    `close` raises BadFileError for keys that were not read.
    """

    def __init__(self, values: Mapping[str, Any], place: str) -> None:
        """`place` is the prefix of errors, such as "x.toml: topology"."""
        self._values = values
        self._place = place
        self._asked: set[str] = set()

    def error(self, key: str, cause: str) -> BadFileError:
        return BadFileError(f"{self._inner(key)}: {cause}")

    def has(self, key: str) -> bool:
        self._asked.add(key)
        return key in self._values

    def _get(self, key: str, default: Any) -> Any:
        if self.has(key):
            return self._values[key]
        if default is None:
            raise self.error(key, "is missing")
        return default

    def _taken(self, key: str, kind: Any, default: Any = None) -> Any:
        try:
            return take(self._get(key, default), kind, place=self._inner(key))
        except ValueError as error:
            raise BadFileError(str(error)) from None

    def integer(self, key: str, low: int, high: int, default: int | None = None) -> int:
        return int(self._taken(key, Annotated[int, Meta(ge=low, le=high)], default))

    def number(self, key: str, low: float, high: float) -> float:
        return float(self._taken(key, Annotated[float, Meta(ge=low, le=high)]))

    def boolean(self, key: str, default: bool) -> bool:
        return bool(self._taken(key, bool, default))

    def boolean_or(self, key: str, word: _Text, default: bool) -> bool | _Text:
        """A boolean, or this word."""
        value: bool | str = self._taken(key, bool | str, default)
        if isinstance(value, str) and value != word:
            raise self.error(key, f"must be true, false or '{word}', not '{value}'")
        return value if isinstance(value, bool) else word

    def text(self, key: str, default: str | None = None) -> str:
        return str(self._taken(key, str, default))

    def text_or_number(self, key: str) -> str | float:
        value: str | float = self._taken(key, str | float)
        return value

    def choice(self, key: str, choices: Sequence[_Text], default: str | None = None) -> _Text:
        value = self.text(key, default)
        if value not in choices:
            raise self.error(key, f"{value!r} is none of {', '.join(choices)}")
        return choices[choices.index(value)]

    def parsed(self, key: str, parse: Callable[[str], _T], default: str | None = None) -> _T:
        """A text that `parse` converts, such as a number with a unit. `parse` raises ValueError."""
        try:
            return parse(self.text(key, default))
        except ValueError as error:
            raise self.error(key, str(error)) from error

    def time(self, key: str, rtt_ns: int | None, default: str | None = None) -> int:
        """In ns; some are given in round trips."""
        return self.parsed(key, lambda text: units.parse_time(text, rtt_ns), default)

    def integers(self, key: str, low: int, high: int) -> tuple[int, ...]:
        """A list of numbers; empty if the key is missing."""
        return tuple(self._taken(key, tuple[Annotated[int, Meta(ge=low, le=high)], ...], []))

    def texts(self, key: str, choices: Sequence[str] = ()) -> tuple[str, ...]:
        """A list of texts, each one of `choices` if given; empty if the key is missing."""
        found: tuple[str, ...] = self._taken(key, tuple[str, ...], [])
        for item in found:
            if choices and item not in choices:
                raise self.error(key, f"{item!r} is none of {', '.join(choices)}")
        return found

    def mapping(self, key: str) -> dict[str, Any]:
        """An inner table with any keys; empty if the key is missing."""
        return dict(self._taken(key, dict[str, Any], {}))

    def pairs(self, key: str) -> tuple[tuple[int, int], ...]:
        """A list of pairs of numbers."""
        try:
            return take(self._get(key, None), tuple[tuple[int, int], ...])
        except ValueError:
            raise self.error(key, "must be a list of pairs such as [[0, 1], [2, 3]]") from None

    def table(self, key: str) -> Table:
        """An inner table; empty if the key is missing."""
        return Table(self.mapping(key), self._inner(key))

    def tables(self, key: str) -> list[Table]:
        """An array of tables; empty if the key is missing."""
        try:
            found = take(self._get(key, []), tuple[dict[str, Any], ...])
        except ValueError:
            raise self.error(key, f"must be an array of tables: write [[{key}]]") from None
        return [Table(item, f"{self._inner(key)}[{i}]") for i, item in enumerate(found)]

    def _inner(self, key: str) -> str:
        return f"{self._place}.{key}" if ": " in self._place else f"{self._place}: {key}"

    def close(self) -> None:
        unknown = sorted(set(self._values) - self._asked)
        if unknown:
            raise self.error(unknown[0], f"is unknown; known are {', '.join(sorted(self._asked))}")
