# SPDX-License-Identifier: Apache-2.0
"""Reads a TOML table key by key, so that every error names the file, the key and what is wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from mrc.errors import ConfigError

_T = TypeVar("_T")


class Table:
    """One table of a file. Whoever has read it calls `close`, which refuses keys not asked for."""

    def __init__(self, values: Mapping[str, Any], place: str) -> None:
        """`place` is what errors begin with, such as "x.toml: topology"."""
        self._values = values
        self._place = place
        self._asked: set[str] = set()

    def error(self, key: str, cause: str) -> ConfigError:
        separator = "." if ": " in self._place else ": "
        return ConfigError(f"{self._place}{separator}{key}: {cause}")

    def has(self, key: str) -> bool:
        self._asked.add(key)
        return key in self._values

    def _get(self, key: str, default: Any) -> Any:
        if self.has(key):
            return self._values[key]
        if default is None:
            raise self.error(key, "is missing")
        return default

    def integer(self, key: str, low: int, high: int, default: int | None = None) -> int:
        value = self._get(key, default)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.error(key, f"{value!r} is no integer")
        if not low <= value <= high:
            raise self.error(key, f"{value} is not within {low}..{high}")
        return value

    def number(self, key: str, low: float, high: float) -> float:
        value = self._get(key, None)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.error(key, f"{value!r} is no number")
        if not low <= value <= high:
            raise self.error(key, f"{value} is not within {low:g}..{high:g}")
        return float(value)

    def boolean(self, key: str, default: bool) -> bool:
        value = self._get(key, default)
        if not isinstance(value, bool):
            raise self.error(key, f"{value!r} is neither true nor false")
        return value

    def text(self, key: str, default: str | None = None) -> str:
        value = self._get(key, default)
        if not isinstance(value, str):
            raise self.error(key, f"{value!r} is no text")
        return value

    def text_or_number(self, key: str) -> str | int | float:
        value = self._get(key, None)
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            raise self.error(key, f"{value!r} is neither text nor a number")
        return value

    def choice(self, key: str, choices: Iterable[str], default: str | None = None) -> str:
        value = self.text(key, default)
        if value not in choices:
            raise self.error(key, f"{value!r} is none of {', '.join(choices)}")
        return value

    def parsed(self, key: str, parse: Callable[[str], _T], default: str | None = None) -> _T:
        """A text that means more, such as one with a unit; `parse` raises ValueError."""
        try:
            return parse(self.text(key, default))
        except ValueError as error:
            raise self.error(key, str(error)) from error

    def integers(self, key: str, low: int, high: int) -> tuple[int, ...]:
        """A list of numbers; empty when it is missing."""
        value = self._get(key, [])
        if not isinstance(value, list) or not all(_is_integer(item) for item in value):
            raise self.error(key, f"{value!r} is no list of integers")
        for item in value:
            if not low <= item <= high:
                raise self.error(key, f"{item} is not within {low}..{high}")
        return tuple(value)

    def texts(self, key: str, choices: Sequence[str] = ()) -> tuple[str, ...]:
        """A list of texts, perhaps out of some choices; empty when it is missing."""
        value = self._get(key, [])
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise self.error(key, f'{value!r} is no list of texts such as ["a", "b"]')
        for item in value:
            if choices and item not in choices:
                raise self.error(key, f"{item!r} is none of {', '.join(choices)}")
        return tuple(value)

    def mapping(self, key: str) -> Mapping[str, Any]:
        """An inner table whose keys are the caller's."""
        value = self._get(key, {})
        if not isinstance(value, Mapping):
            raise self.error(key, "is no table")
        return value

    def pairs(self, key: str) -> tuple[tuple[int, int], ...]:
        """A list of pairs of numbers."""
        value = self._get(key, None)
        if not isinstance(value, list) or not all(_is_pair(item) for item in value):
            raise self.error(key, "is no list of pairs such as [[0, 1], [2, 3]]")
        return tuple((pair[0], pair[1]) for pair in value)

    def table(self, key: str) -> Table:
        """An inner table; empty when it is missing."""
        value = self._get(key, {})
        if not isinstance(value, Mapping):
            raise self.error(key, "is no table")
        return Table(value, self._inner(key))

    def tables(self, key: str) -> list[Table]:
        """An array of tables; empty when it is missing."""
        value = self._get(key, [])
        if not isinstance(value, list) or not all(isinstance(item, Mapping) for item in value):
            raise self.error(key, f"is no array of tables: write [[{key}]]")
        return [Table(item, f"{self._inner(key)}[{i}]") for i, item in enumerate(value)]

    def _inner(self, key: str) -> str:
        return f"{self._place}.{key}" if ": " in self._place else f"{self._place}: {key}"

    def close(self) -> None:
        unknown = sorted(set(self._values) - self._asked)
        if unknown:
            raise self.error(unknown[0], f"is unknown; known are {', '.join(sorted(self._asked))}")


def _is_integer(item: Any) -> bool:
    return isinstance(item, int) and not isinstance(item, bool)


def _is_pair(item: Any) -> bool:
    return isinstance(item, list) and len(item) == 2 and all(_is_integer(part) for part in item)
