# SPDX-License-Identifier: Apache-2.0
"""The options of `mrc demo`."""

from __future__ import annotations

import argparse

import pytest

from mrc.cli.main import main
from mrc.demo.cli import planes, rate, size


@pytest.mark.parametrize(
    ("text", "count"), [("1MiB", 1 << 20), ("2 gib", 2 << 30), ("1048577", (1 << 20) + 1)]
)
def test_size__accepted(text: str, count: int) -> None:
    assert size(text) == count


@pytest.mark.parametrize(
    ("convert", "text"),
    [
        (size, "1023KiB"),
        (size, "1MB"),
        (size, ""),
        (size, "-1MiB"),
        (planes, "1"),
        (planes, "four"),
        (rate, "fast"),
        (rate, "none"),
    ],
)
def test_demo_types__refused(convert: object, text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError):
        convert(text)  # type: ignore[operator]


def test_demo__wrong_use(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--planes", "1"]) == 2
    assert "one of the planes fails" in capsys.readouterr().err


def test_help__begins_with_examples(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["demo", "--help"])
    assert capsys.readouterr().out.startswith("examples:\n  mrc demo")
