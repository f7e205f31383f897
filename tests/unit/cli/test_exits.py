# SPDX-License-Identifier: Apache-2.0
"""What users are told of an error."""

from __future__ import annotations

import argparse
import resource
from pathlib import Path

import pytest

from mrc import products
from mrc.cli.main import main
from mrc.cli.output import cause
from mrc.errors import MrcError


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (MemoryError(), "out of memory"),
        (OSError(2, "No such file", "a"), "a: no such file"),
        (OSError(12, "QP to RTS: Cannot allocate memory"), "QP to RTS: Cannot allocate memory"),
        (
            OSError(24, "Too many open files", "a"),
            "a: too many open files (limit LIMIT: ulimit -n 4096)",
        ),
        (MrcError("h1: is busy"), "h1: is busy"),
        (MrcError(), "MrcError"),
    ],
)
def test_cause__is_text_for_a_user(error: BaseException, text: str) -> None:
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert cause(error) == text.replace("LIMIT", str(limit))


BAD_FILES = [
    words
    for words in (
        ("sim", "FILE"),
        ("dissect", "FILE"),
        ("conform", "judge", "FILE"),
        ("conform", "list", "--cases", "FILE"),
    )
    if words[0] in products.commands()
]


@pytest.mark.parametrize("words", BAD_FILES)
@pytest.mark.parametrize("name", ["wrong.toml", "missing.toml"])
def test_main__a_bad_file_is_wrong_use_in_every_command(
    words: tuple[str, ...], name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "wrong.toml").write_text("hosts = \n")
    argv = [str(tmp_path / name) if word == "FILE" else word for word in words]
    assert main(argv) == 2
    error = capsys.readouterr().err
    assert (argv[-1] in error, error.count("\n")) == (True, 1)
    assert "Errno" not in error


def test_main__out_of_memory(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(args: argparse.Namespace) -> int:
        raise MemoryError

    monkeypatch.setattr("mrc.cli.schema.run", run)
    assert main(["schema"]) == 1
    assert capsys.readouterr() == ("", "mrc schema: out of memory\n")
