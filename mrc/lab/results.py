# SPDX-License-Identifier: Apache-2.0
"""What `mrc lab` prints as JSON."""

from __future__ import annotations

from mrc.results.plain import Result


class Lessons(Result, frozen=True, kw_only=True):
    """`mrc lab list`."""

    lessons: dict[str, str]
    """Number and title of each."""


class Lesson(Result, frozen=True, kw_only=True):
    """`mrc lab N`."""

    number: int
    """Its number."""
    title: str
    """Its title."""
    text: str
    """Its page, as Markdown."""
    commands: str
    """Its commands, as a script of the shell."""
