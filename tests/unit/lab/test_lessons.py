# SPDX-License-Identifier: Apache-2.0
"""`mrc lab`: the list and the pages, which tests/test_documents.py runs."""

from __future__ import annotations

import re
import shlex

import pytest
from printed import printed

from mrc.cli.main import build_parser, main
from mrc.lab.cli import lesson

ALL = range(1, 7)
MAX_COLUMNS = 100


def test_lab__lists_the_lessons(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lab"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == [str(number) for number in ALL]
    assert main(["lab", "list", "--json"]) == 0
    titles = printed("lab", capsys.readouterr().out)["lessons"]
    assert lines == [f"{number}  {title}" for number, title in titles.items()]


def test_lab__prints_a_page_or_its_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lab", "2"]) == 0
    page = capsys.readouterr().out
    assert page.startswith("# A silent plane") and "```sh" in page
    assert main(["lab", "2", "--commands"]) == 0
    commands = capsys.readouterr().out
    assert commands.startswith("mrc testbed up") and "```" not in commands
    assert main(["lab", "2", "--json"]) == 0
    found = printed("lab", capsys.readouterr().out)
    assert found["text"] == page and found["commands"] == commands


@pytest.mark.parametrize("word", ["0", "7", "two", ""])
def test_lab__no_such_lesson(word: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lab", word]) == 2
    assert "is no lesson: use list, or 1 to 6" in capsys.readouterr().err


@pytest.mark.parametrize("number", ALL)
def test_pages__are_of_one_form(number: int) -> None:
    """A title, commands that parse, their output, and what to try next; as wide as a terminal."""
    found = lesson(number)
    assert found.title and found.text.startswith(f"# {found.title}\n")
    assert found.text.count("```sh\n") >= 2 and "\nTry next: " in found.text
    assert all(len(line) <= MAX_COLUMNS for line in found.text.splitlines())
    parts = re.split(r"[|&;\n]", found.commands.replace("\\\n", " "))
    words = [shlex.split(part) for part in map(str.strip, parts) if part.startswith("mrc ")]
    for command in (each for each in words if "exec" not in each):
        build_parser().parse_args(command[1:])
    assert words
    starts = [command for command in words if command[1:3] == ["testbed", "up"]]
    ends = [command for command in words if command[1:3] == ["testbed", "down"]]
    assert len(starts) == len(ends)
