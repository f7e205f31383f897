# SPDX-License-Identifier: Apache-2.0
"""The common part of this folder's programs: their Python, notes, and options. An option is
declared once, with its default and its limits.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# An installed mrc is compiled. Without this, each start of it would compile it here.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.path.append(str(Path(__file__).resolve().parent.parent / "tools"))
from checkout import ROOT as ROOT
from checkout import git as git
from checkout import parser as parser
from checkout import set_up as set_up


def note(text: str) -> None:
    """Prints a line of progress on a terminal."""
    if sys.stderr.isatty():
        say(text)


def say(text: str) -> None:
    """Prints a line that also belongs into a log."""
    print(f"bench: {text}", file=sys.stderr)


# ---- options -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Option:
    """An option `--NAME`. A default of False declares a flag, an empty tuple an option that may be
    repeated, another tuple an option with several values.
    """

    name: str
    default: Any
    help: str
    metavar: str = "N"
    kind: Callable[[str], Any] | None = None  # that of the default
    quick: Any = None  # the value under --quick, unless the user gives one
    choices: Collection[Any] | None = None

    @property
    def dest(self) -> str:
        return self.name.replace("-", "_")

    def add_to(self, parser: argparse.ArgumentParser) -> None:
        default, text = self.default, self.help
        if default is False:
            parser.add_argument(f"--{self.name}", action="store_true", help=text)
            return
        more: dict[str, Any] = {"type": self.kind or type(default)}
        if default == ():
            more, text = {"type": self.kind or str, "action": "append"}, f"{text}; may be repeated"
        elif isinstance(default, tuple):
            more, default = {"type": self.kind, "nargs": "+"}, " ".join(map(str, default))
        text += ": " + "; ".join(map(str, self.choices)) if self.choices else ""
        text += f" [{default}]" if default not in (None, ()) else ""
        parser.add_argument(
            f"--{self.name}", metavar=self.metavar, choices=self.choices,
            help=text.replace("%", "%%"), **more,
        )  # fmt: skip


def parse(parser: argparse.ArgumentParser, options: Iterable[Option]) -> argparse.Namespace:
    for option in options:
        option.add_to(parser)
    args = parser.parse_args()
    for option in options:
        if getattr(args, option.dest) is None:
            quick = args.quick and option.quick is not None
            setattr(args, option.dest, option.quick if quick else option.default)
    return args


def values(args: argparse.Namespace, *names: str) -> dict[str, Any]:
    """The values of some options, for JSON."""
    return {name: getattr(args, name) for name in names}


def within(
    kind: Callable[[str], float], least: float, most: float = float("inf"), why: str = ""
) -> Callable[[str], float]:
    """Converts numbers within limits."""

    def number(text: str) -> float:
        value = kind(text)
        if not least <= value <= most:
            limits = f"at least {least:g}" if most == float("inf") else f"{least:g} to {most:g}"
            raise argparse.ArgumentTypeError(f"must be {limits}{why}")
        return value

    return number


COUNT = within(int, 1)
T1 = Option("t1", 2, "T1 switches of each plane", kind=COUNT)


def repeats(default: int, text: str = "measured rounds") -> Option:
    return Option("repeats", default, text, kind=COUNT, quick=1)


def seconds(default: float, quick: float, text: str = "time of each measurement") -> Option:
    return Option("seconds", default, text, "S", kind=within(float, 0.001, 60), quick=quick)


def planes(least: int = 1, why: str = "") -> Option:
    return Option("planes", 4, "number of planes", kind=within(int, least, why=why))


def rate(default: str) -> Option:
    return Option("rate", default, "rate of each plane, as 500mbit, or none", "RATE")


def only(choices: Collection[str], what: str, quick: Collection[str] | None = None) -> Option:
    return Option("only", (), f"measure only this {what}", "NAME", choices=choices, quick=quick)
