# SPDX-License-Identifier: Apache-2.0
"""The lines that declare the arguments of subcommands."""

from __future__ import annotations

import argparse

import pytest

from mrc.cli.arguments import add

LINES = """
files FILE...            what to send; with
                         two lines of help
host HOST[:PORT]         where to
--exclude PATTERN...     leave out [none]
-i, --interval SECONDS   a pause [%(default)s]
-P, --parallel, --qps N  how many
-v, --verbose            say more
--no-meta                keep less
--seal                   how
"""


def made() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="try")
    add(parser, LINES, interval={"default": 1.0}, seal={"choices": ["none", "aead"]})
    return parser


def test_add__values_of_all_kinds() -> None:
    found = made().parse_args(["a", "b", "h1:7000"])
    assert (found.files, found.host) == (["a", "b"], ("h1", 7000))
    assert (found.exclude, found.interval, found.parallel) == ([], 1.0, None)
    assert (found.verbose, found.no_meta, found.seal) == (False, False, None)
    words = "-v --no-meta --exclude x --exclude y -i 200ms --qps 4 --seal none f h1"
    found = made().parse_args(words.split())
    assert (found.exclude, found.interval, found.parallel) == (["x", "y"], 0.2, 4)
    assert (found.verbose, found.no_meta, found.seal) == (True, True, "none")


def test_add__help() -> None:
    text = " ".join(made().format_help().split())
    assert "what to send; with two lines of help" in text
    assert "a pause [1.0]" in text
    assert "--exclude PATTERN leave out" in text


def test_add__settings_of_an_argument_that_has_no_line() -> None:
    with pytest.raises(AssertionError, match="no lines of tme"):
        add(argparse.ArgumentParser(), "--time SECONDS  a time", tme={"default": 1.0})


def test_add__a_number_of_bytes_is_above_0(capsys: pytest.CaptureFixture[str]) -> None:
    parser = argparse.ArgumentParser()
    add(parser, "-n, --bytes BYTES  so many")
    assert parser.parse_args(["-n", "2K"]).bytes == 2048
    with pytest.raises(SystemExit):
        parser.parse_args(["-n", "0"])
    assert "'0' is not a number of bytes above 0" in capsys.readouterr().err
