# SPDX-License-Identifier: Apache-2.0
"""Types of arguments for argparse: numbers with units, counts and times."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import TypeVar

from mrc.units import parse_short_rate, parse_short_size, parse_short_time, parse_time

_T = TypeVar("_T")


def argument(parse: Callable[[str], _T]) -> Callable[[str], _T]:
    """An argparse type that reports the ValueError of `parse`."""

    def parsed(text: str) -> _T:
        try:
            return parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from error

    return parsed


time_argument = argument(parse_time)  # ns
size_argument = argument(parse_short_size)
bit_rate = argument(parse_short_rate)


def seconds_argument(text: str) -> float:
    """An argparse type: a time above 0, in seconds or with a unit; at most a day."""
    found = argument(parse_short_time)(text)
    if not 0 < found <= 86400:
        raise argparse.ArgumentTypeError(f"{text!r} is not a time above 0, at most a day")
    return found


def pause_argument(text: str) -> float:
    """As `seconds_argument`; 0 is allowed."""
    return 0.0 if text.strip() == "0" else seconds_argument(text)


def count_argument(most: int, what: str = "a number") -> Callable[[str], int]:
    """An argparse type: a whole number from 1 to `most`."""

    def parsed(text: str) -> int:
        if not (text.isascii() and text.isdigit() and 0 < int(text[:20]) <= most):
            raise argparse.ArgumentTypeError(f"{text!r} is not {what} from 1 to {most}")
        return int(text)

    return parsed
