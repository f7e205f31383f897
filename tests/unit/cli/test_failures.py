# SPDX-License-Identifier: Apache-2.0
"""Lines about files that are not copied."""

from __future__ import annotations

from pathlib import Path

import pytest

from mrc.cli.main import main
from mrc.cli.output import Exit, Output, session_failed
from mrc.errors import MrcError
from mrc.transfer.cli.report import MAX_NAMED, ProgressMeter, TransferReport
from mrc.transfer.limits import FileError
from mrc.transfer.results import FailedFile


def test_left_out__one_line_for_one_cause(capsys: pytest.CaptureFixture[str]) -> None:
    """A folder whose name is refused may have thousands of files."""
    out = Output("mrc send", as_json=True, quiet=False)
    report = TransferReport(ProgressMeter(out, "sender"), "h1")
    hidden = [FailedFile(f"a/.git/{n}", "'a/.git': begins with '.'", "receiver") for n in range(9)]
    other = FailedFile("b", "b: exists", "receiver")
    for failed in (*hidden, other, hidden[0]):
        report.left_out(failed)
    assert report.end() == Exit.NOT_ALL_COPIED
    assert capsys.readouterr().err.splitlines() == [
        "mrc send: not copied: h1: 'a/.git': begins with '.'",
        "mrc send: not copied: h1: b: exists",
        "mrc send: 10 files and folders were not copied",
    ]
    assert report.failed == [*hidden, other], "--json lists all"


@pytest.mark.parametrize(
    ("text", "line"),
    [("lost", "h0: lost"), ("h0 ended", "h0 ended"), ("h01 ended", "h0: h01 ended")],
)
def test_session_failed__names_the_peer_once(
    capsys: pytest.CaptureFixture[str], text: str, line: str
) -> None:
    out = Output("mrc recv", as_json=False, quiet=False)
    assert session_failed(out, "h0", MrcError(text)) == Exit.FAILED
    assert capsys.readouterr().err == f"mrc recv: {line}\n"


def test_send__says_how_many_it_excludes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A wrong pattern may match everything."""
    (tmp_path / "a.o").touch()
    words = ["send", "--insecure", "--exclude", "*", str(tmp_path), "127.0.0.1:1"]
    assert main(words) == Exit.UNREACHABLE
    assert "--exclude left out 1 of the files and folders" in capsys.readouterr().err


def test_left_out__counts_all_and_names_some(capsys: pytest.CaptureFixture[str]) -> None:
    out = Output("mrc recv", as_json=True, quiet=False)
    report = TransferReport(ProgressMeter(out, "receiver"), "h0")
    for n in range(3 * MAX_NAMED):
        report.left_out(FailedFile(f"f{n}", f"f{n}: exists", "receiver"))
        report.left_out(FailedFile(f"f{n}", f"f{n}: exists", "receiver"))
    assert report.end() == Exit.NOT_ALL_COPIED
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == MAX_NAMED + 1 and len(report.failed) == MAX_NAMED
    assert lines[-1] == "mrc recv: 3000 files and folders were not copied; the first 1000 are named"
    assert report.failed_count == 3 * MAX_NAMED


@pytest.mark.more
def test_left_out__a_name_counts_once_however_many_there_are() -> None:
    """A pack that is sent again after a loss names its files again."""
    out = Output("mrc recv", as_json=False, quiet=True)
    report = TransferReport(ProgressMeter(out, "receiver"), "h0")
    names = [f"f{n}" for n in range(3 << 16)]
    for name in (*names, *names, "another"):
        report.left_out(FailedFile(name, "exists", "receiver"))
    assert report.failed_count == len(names) + 1


def test_left_out__its_limit_holds_over_all_connections() -> None:
    out = Output("mrc recv", as_json=False, quiet=True)
    report = TransferReport(ProgressMeter(out, "receiver"), "h0", limit=2)
    for name in ("a", "b", "a"):
        report.left_out(FailedFile(name, "exists", "receiver"))
    with pytest.raises(FileError, match="limit of 2 files and folders"):
        report.left_out(FailedFile("c", "exists", "receiver"))


def test_left_out__a_long_path_keeps_its_cause(capsys: pytest.CaptureFixture[str]) -> None:
    out = Output("mrc recv", as_json=False, quiet=False)
    report = TransferReport(ProgressMeter(out, "receiver"), "h0")
    report.left_out(FailedFile("x", f"{'x' * 4000}: cannot be made: no space left", "receiver"))
    line = capsys.readouterr().err
    assert line.endswith(": cannot be made: no space left\n") and len(line) < 600
