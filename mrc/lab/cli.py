# SPDX-License-Identifier: Apache-2.0
"""`mrc lab`: guided lessons, each a test bed or a simulation, commands, and what they show."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from mrc import lab
from mrc.cli.arguments import add
from mrc.cli.output import Output
from mrc.results import Result

HELP = "learn MRC by breaking networks: six lessons of ten minutes"
EXAMPLES = """\
examples:
  mrc lab                              list the lessons
  mrc lab 2                            read lesson 2 and type its commands
  mrc lab 2 --commands                 only its commands
  mrc lab 2 --commands | bash -x       run all of them
"""
_FOLDER = Path(lab.__file__).with_name("lessons")


def _numbers() -> range:
    return range(1, len(list(_FOLDER.glob("*.md"))) + 1)


def _number(text: str) -> int | None:
    """The number of a lesson; None for `list`."""
    if text == "list":
        return None
    if text not in map(str, _numbers()):
        raise ValueError(f"{text!r} is no lesson: use list, or 1 to {len(_numbers())}")
    return int(text)


OPTIONS = """
lesson N    a lesson, or list [list]
--commands  print only the commands of the lesson, as a script
"""


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


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add(parser, OPTIONS, lesson={"nargs": "?", "type": _number})
    Output.add_options(parser)


def run(args: argparse.Namespace) -> int:
    out = Output.of(args)
    if args.lesson is None:
        titles = {number: lesson(number).title for number in _numbers()}
        out.text("\n".join(f"{number}  {title}" for number, title in titles.items()))
        out.note("to begin: mrc lab 1")
        out.result(Lessons(lessons={str(number): title for number, title in titles.items()}))
        return 0
    found = lesson(args.lesson)
    out.text((found.commands if args.commands else found.text).rstrip("\n"))
    out.result(found)
    return 0


def lesson(number: int) -> Lesson:
    """A lesson out of its page: blocks marked `sh` are its commands, others what they print."""
    (path,) = _FOLDER.glob(f"{number}-*.md")
    text = path.read_text()
    commands = re.findall(r"^```sh\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE)
    title = text.partition("\n")[0].removeprefix("# ")
    return Lesson(number=number, title=title, text=text, commands="".join(commands))
