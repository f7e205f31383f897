# SPDX-License-Identifier: Apache-2.0
"""The arguments of subcommands: their lines, and their types: numbers with units, counts, times."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from typing import Any, TypeVar

from mrc.cli.address import host_and_port
from mrc.units import parse_short_rate, parse_short_size, parse_short_time, parse_time

WAIT = "--wait SECONDS  while no program listens there, try again for this time [%(default)g]"
"""the option of commands that connect, see `retry.Retry`"""
_T = TypeVar("_T")


def add(parser: Any, lines: str, **more: dict[str, Any]) -> None:
    """Adds the arguments that these lines describe, as in a help:

    files FILE...      an argument, with its help behind two blanks; as many as there are
    --exclude GLOB...  an option that may be repeated
    --time SECONDS     an option; SECONDS implies its type
    -v, --verbose      a flag, for it has no metavar
                       a line that begins with blanks continues the help

    `more`: what else argparse has to know about an argument, by its name.
    """
    for line in re.sub(r"\n +", " ", lines.strip()).split("\n"):
        head, text = re.split(r"  +", line, maxsplit=1)
        words = head.replace(",", "").split()
        options = [word for word in words if word.startswith("-")]
        name = next((word[2:].replace("-", "_") for word in options if word[1] == "-"), words[0])
        metavar = words[-1].removesuffix("...") if len(words) > max(1, len(options)) else None
        found: dict[str, Any] = {"help": text}
        if metavar:
            found |= {"metavar": metavar, "type": _KINDS.get(metavar)}
        if words[-1].endswith("..."):
            found |= {"action": "append", "default": []} if options else {"nargs": "+"}
        elif options and not metavar and name not in more:
            found["action"] = "store_true"
        found |= more.pop(name, {})
        if "choices" in found:
            found["choices"] = list(map(str, found["choices"]))  # an error would print an enum
        parser.add_argument(*(options or words[:1]), **found)
    assert not more, f"no lines of {', '.join(more)}"


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

_LEAST_LIMIT_BPS = 1000


def _limit(text: str) -> int:
    """A rate that limits; 0: no limit."""
    rate_bps = parse_short_rate(text)
    if rate_bps < _LEAST_LIMIT_BPS and text != "0":
        raise ValueError(
            f"rate {text!r} is below 1 kbit/s: give a unit, such as 500mbit, 10gbit or 2.5G"
        )
    return rate_bps


bit_rate = argument(_limit)


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


def _bytes_argument(text: str) -> int:
    count = size_argument(text)
    if count < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of bytes above 0")
    return count


_KINDS: dict[str, Callable[[str], Any]] = {
    "SECONDS": seconds_argument, "TIME": time_argument, "SIZE": size_argument,
    "BYTES": _bytes_argument, "HOST[:PORT]": host_and_port, "N": int,
}  # fmt: skip
"""The types of arguments, by their metavars."""
