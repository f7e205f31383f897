# SPDX-License-Identifier: Apache-2.0
"""Types of arguments for argparse: numbers with units, counts and times."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import TypeVar

from mrc.testbed.fault import parse_loss
from mrc.testbed.shape import parse_rate
from mrc.units import parse_short_rate, parse_short_size, parse_size, parse_time

_T = TypeVar("_T")


def _argument(parse: Callable[[str], _T], wanted: str = "") -> Callable[[str], _T]:
    """A type that complains as `parse` does, or of text that is not what is `wanted`."""

    def parsed(text: str) -> _T:
        try:
            return parse(text)
        except ValueError as error:
            complaint = f"{text!r} is not {wanted}" if wanted else str(error)
            raise argparse.ArgumentTypeError(complaint) from error

    return parsed


time_argument = _argument(parse_time)  # ns
size_argument = _argument(parse_size)
rate_argument = _argument(parse_rate)  # bit/s; None: no limit
share_argument = _argument(parse_loss)
byte_count = _argument(parse_short_size)
bit_rate = _argument(parse_short_rate, "a rate such as 500M or 2.5G")
bin_width = _argument(parse_time, "a time such as 1ms, 500us or 0.1s")  # ns


def positive_seconds(text: str) -> float:
    """An argparse type: a time above 0."""
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= 86400:
        raise argparse.ArgumentTypeError(f"{text!r} is not a time in seconds, at most a day")
    return seconds


def file_count(text: str) -> int:
    """An argparse type: a number of files."""
    if not (text.isascii() and text.isdigit() and 0 < int(text[:20]) < 1 << 40):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of files such as 1000")
    return int(text)
