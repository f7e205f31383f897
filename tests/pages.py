# SPDX-License-Identifier: Apache-2.0
"""Pages of the documentation as commands and what they print.

A block marked `sh` has commands, one marked `python` a program. A block without a mark, after
commands, shows what these print; one marked `text` is a drawing. `host-a$ ` before a command names
the host where it is typed. Comments of HTML before a block, which readers do not see, say what a
test has to know:

    <!-- before: mrc testbed up -->             commands that run before the block
    <!-- after: mrc testbed down -->            or after it
    <!-- at a terminal: y -->                   the answer to each question of its commands
    <!-- not run: it takes hours -->            why no command of the block runs
    <!-- not run: `pip install`: no index -->   or none that has these words
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass

_BLOCK = re.compile(
    r"^(?P<notes>(?:<!--(?:(?!-->).)*-->\n)*)```(?P<kind>\w*)\n(?P<text>.*?)^```$",
    flags=re.DOTALL | re.MULTILINE,
)
_NOTE = re.compile(
    r"<!--\s*(before|after|at a terminal|not run): (?:`([^`]*)`: )?(.*?)\s*-->", flags=re.DOTALL
)
_PROMPT = re.compile(r"(host-[a-z])\$ ")


@dataclass(frozen=True, slots=True)
class Command:
    """What is typed at once, of one line or more; `python` is a program."""

    text: str
    host: str = ""
    not_run: str = ""
    python: bool = False
    answer: str = ""


@dataclass(frozen=True, slots=True)
class Block:
    """A block of a page; `text` is what it shows, if it has no commands."""

    line: int
    commands: tuple[Command, ...]
    text: str


def blocks(page: str) -> Iterator[Block]:
    """The commands of a page and what they print, in their order.

    Raises ValueError for a comment that this module does not know, and for a command in a block
    that is not marked as one of commands.
    """
    seen_commands = False
    for found in _BLOCK.finditer(page):
        line = page.count("\n", 0, found.start("text")) + 1
        notes = [
            (kind, words or "", " ".join(said.split()))
            for kind, words, said in _NOTE.findall(found["notes"])
        ]
        if len(notes) != found["notes"].count("<!--"):
            raise ValueError(
                f"line {line}: a comment is none of before, after, at a terminal, not run"
            )
        if found["kind"] in ("sh", "python"):
            seen_commands = True
            yield Block(line, tuple(_commands(found["kind"], found["text"], notes)), "")
        elif found["kind"] in ("", "text"):
            if re.search(
                r"^(?:(?:mrc(?! testbed exec: )|pip|sudo|python) [-\w]+(?![\w:])|host-[a-z]\$ "
                r"|\$ |(?:tools|bench)/)", found["text"], re.MULTILINE
            ):  # fmt: skip
                raise ValueError(f"line {line}: a block with commands is marked sh")
            if seen_commands and found["kind"] == "":
                yield Block(line, (), found["text"])


def _commands(kind: str, text: str, notes: list[tuple[str, str, str]]) -> Iterator[Command]:
    for when, _, said in notes:
        if when == "before":
            yield Command(said)
    answer = next((said for when, _, said in notes if when == "at a terminal"), "")
    for each in [text] if kind == "python" else _typed(text):
        prompt = _PROMPT.match(each)
        words = each[prompt.end() :] if prompt else each
        reasons = [said for when, part, said in notes if when == "not run" and part in words]
        yield Command(
            words, prompt[1] if prompt else "", "; ".join(reasons), kind == "python", answer
        )
    for when, _, said in notes:
        if when == "after":
            yield Command(said)


def _typed(text: str) -> Iterator[str]:
    """Splits lines where the shell regards a command as complete."""
    pending = ""
    for line in text.splitlines(keepends=True):
        pending += line
        asked = subprocess.run(
            ["bash", "-n"], input=_PROMPT.sub("", pending), capture_output=True, text=True
        )
        if not asked.stderr and not pending.endswith("\\\n"):
            if pending.strip():
                yield pending
            pending = ""
    if pending:
        raise ValueError(f"no shell takes this: {pending}")
