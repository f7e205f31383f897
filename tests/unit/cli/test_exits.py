# SPDX-License-Identifier: Apache-2.0
"""What users are told of an error."""

from __future__ import annotations

import argparse

import pytest

from mrc.cli.exits import cause
from mrc.cli.main import main
from mrc.errors import MrcError


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (MemoryError(), "out of memory"),
        (OSError(2, "No such file", "a"), "a: no such file"),
        (OSError(12, "QP to RTS: Cannot allocate memory"), "QP to RTS: Cannot allocate memory"),
        (MrcError("h1: is busy"), "h1: is busy"),
        (MrcError(), "MrcError"),
    ],
)
def test_cause__is_text_for_a_user(error: BaseException, text: str) -> None:
    assert cause(error) == text


def test_main__out_of_memory(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(args: argparse.Namespace) -> int:
        raise MemoryError

    monkeypatch.setattr("mrc.cli.schema.run", run)
    assert main(["schema"]) == 1
    assert capsys.readouterr() == ("", "mrc schema: out of memory\n")
