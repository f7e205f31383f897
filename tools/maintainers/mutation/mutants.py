# SPDX-License-Identifier: Apache-2.0
"""Small changes of source that a test should notice: names them, applies them.

`c_source` and `python_source` find them. tools/maintainers/mutate runs the tests.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

SMALL = 16  # numbers below are increased by one, other numbers are doubled


@dataclass(frozen=True, slots=True)
class Mutant:
    """Some lines of one function, changed. Mostly it is one line."""

    file: str  # relative to the root of the tree
    function: str
    line: int  # from 1
    before: str
    after: str
    nth: int  # among equal lines of the function, from 0

    @property
    def id(self) -> str:
        """The name of the change. It stays the same if the function moves within its file."""
        parts = (self.file, self.function, self.before.strip(), self.after.strip(), str(self.nth))
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:12]

    def rank(self, seed: int) -> str:
        """The key for sorting in the order of a seed. It is independent of other mutants."""
        return hashlib.sha256(f"{seed} {self.id}".encode()).hexdigest()

    def apply(self, text: str) -> str:
        """The text of the file with the change."""
        lines = text.split("\n")
        first, end = self.line - 1, self.line + self.before.count("\n")
        assert "\n".join(lines[first:end]) == self.before, f"{self.file} is not what it was"
        lines[first:end] = self.after.split("\n")
        return "\n".join(lines)

    def diff(self) -> str:
        """The change as a diff."""
        head = f"--- {self.file}:{self.line} {self.function}()  [{self.id}]"
        before, after = self.before.replace("\n", "\n-"), self.after.replace("\n", "\n+")
        return f"{head}\n-{before}\n+{after}"


def other_number(value: float) -> float:
    return value + 1 if value < SMALL else value * 2


def put(text: str, start: int, end: int, new: str) -> str:
    return text[:start] + new + text[end:]
