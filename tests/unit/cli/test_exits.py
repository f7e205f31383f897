# SPDX-License-Identifier: Apache-2.0
"""What users are told of an error."""

from __future__ import annotations

import argparse
import os
import resource
import signal
import threading
from pathlib import Path

import pytest
from slowness import PATIENCE

from mrc.cli import sim
from mrc.cli.exits import cause
from mrc.cli.main import main
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


@pytest.mark.parametrize(
    "words",
    [
        ("sim", "FILE"),
        ("dissect", "FILE"),
        ("conform", "judge", "FILE"),
        ("conform", "list", "--cases", "FILE"),
    ],
)
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


def test_sim__ends_in_the_middle_of_c_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    over = threading.Event()

    def run_trial(*_: object, **__: object) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # C code does not look for it
        os.kill(os.getpid(), signal.SIGINT)
        over.wait(PATIENCE)

    monkeypatch.setattr(sim, "run_trial", run_trial)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # uvloop has left its own
    assert main(["sim", "lossy-ev", "--set", "variants=[]", "--quiet"]) == 130
    over.set()
    assert capsys.readouterr().err == "mrc sim run: interrupted\n"
