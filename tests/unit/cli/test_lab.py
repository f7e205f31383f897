# SPDX-License-Identifier: Apache-2.0
"""`mrc lab`: the list, the pages, and the lessons in the simulator as they stand there."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from printed import printed

from mrc.cli.lab import lesson
from mrc.cli.main import build_parser, main

IN_THE_SIMULATOR = (5, 6)
ALL = (1, 2, 3, 4, *IN_THE_SIMULATOR)
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


@pytest.mark.more
@pytest.mark.parametrize("number", IN_THE_SIMULATOR)
def test_lesson__prints_what_its_page_shows(number: int, tmp_path: Path) -> None:
    """The simulator gives the same numbers everywhere."""
    found = lesson(number)
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-u"], input=found.commands, capture_output=True, text=True, cwd=tmp_path,
        env=os.environ | {"PATH": path}, check=False,
    )  # fmt: skip
    blocks = re.findall(r"^```(\w*)\n(.*?)^```", found.text, flags=re.DOTALL | re.MULTILINE)
    lines = [line for kind, block in blocks if kind == "" for line in block.splitlines()]
    assert len(lines) > 5
    assert [line for line in lines if line not in done.stdout.splitlines()] == []
    assert set(done.stderr.splitlines()) <= {
        "mrc sim run: targets are for the median of 20 seeds: see --seeds 20"
    }
