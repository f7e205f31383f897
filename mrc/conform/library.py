# SPDX-License-Identifier: Apache-2.0
"""The cases that come with mrc, and those of a user's files."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatch
from pathlib import Path

from mrc.conform.case import Case, CaseError, parse

FOLDER = Path(__file__).parent / "cases"


def load(files: Sequence[Path] = ()) -> list[Case]:
    """The cases of these files; of none: all that come with mrc. Raises CaseError."""
    cases: list[Case] = []
    for file in files or sorted(FOLDER.glob("*.case")):
        try:
            cases += parse(file.read_text(), file.stem)
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            raise CaseError(f"{file}: {why.lower()}") from error
        except CaseError as error:
            raise CaseError(f"{file}: {error}") from None
    names = [case.name for case in cases]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise CaseError(f"two cases have the name {twice[0]}")
    return cases


def selected(cases: Sequence[Case], patterns: Sequence[str]) -> list[Case]:
    """The cases whose name or topic matches one of the patterns. Raises CaseError for a pattern
    that matches none.
    """
    if not patterns:
        return list(cases)
    for pattern in patterns:
        if not any(_matches(case, pattern) for case in cases):
            raise CaseError(f"no case matches {pattern!r}; mrc conform list shows them")
    return [case for case in cases if any(_matches(case, pattern) for pattern in patterns)]


def _matches(case: Case, pattern: str) -> bool:
    return fnmatch(case.name, pattern) or case.topic == pattern
