# SPDX-License-Identifier: Apache-2.0
"""Commands whose parent has closed descriptors 0 to 2."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from file_commands import MRC, receiving
from ports import free_port
from slowness import PATIENCE


def shell(words: str, closed: str) -> subprocess.CompletedProcess[str]:
    command = ["sh", "-c", f'exec "$@" {closed}', "sh", *MRC, *words.split()]
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)


@pytest.mark.more
@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_send__with_closed_descriptors(tmp_path: Path, closed: str) -> None:
    """Sockets must not get these numbers: uvloop cannot close them, and messages go into them."""
    (tmp_path / "a").touch()
    done = shell(f"send {tmp_path / 'a'} 127.0.0.1:{free_port()}", closed)
    assert done.returncode == 3
    assert "2>" in closed or "no program listens" in done.stderr
    assert len(done.stderr.splitlines()) == ("2>" not in closed)


def test_send__a_closed_input_is_not_an_empty_file(tmp_path: Path) -> None:
    inbox = tmp_path / "inbox"
    with receiving("--output", inbox) as (receiver, where):
        done = shell(f"send - {where}", "<&-")
        assert done.returncode == 6 and "standard input: bad file descriptor" in done.stderr
        receiver.terminate()
    assert list(inbox.iterdir()) == []


def test_recv__a_closed_output_loses_no_data(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"a")
    command = ["sh", "-c", 'exec "$@" >&-', "sh", *MRC, "recv", "--stdout", "--port", "0"]
    with subprocess.Popen(command, stderr=-1, text=True) as receiver:
        assert receiver.stderr is not None
        port = receiver.stderr.readline().split("TCP port ")[1].partition(",")[0]
        done = shell(f"send {tmp_path / 'a'} 127.0.0.1:{port}", "</dev/null")
        assert done.returncode == 1 and "standard output: bad file descriptor" in done.stderr
        assert receiver.wait(PATIENCE) == 1


def test_recv__with_a_closed_input_names_the_option() -> None:
    done = shell("recv", "<&-")
    assert done.returncode == 2 and "--output DIR" in done.stderr
    assert len(done.stderr.splitlines()) == 1


WITHOUT_NULL = "import os, sys; os.devnull = '/nowhere'; from mrc.cli.main import main; "


@pytest.mark.parametrize(
    ("closed", "what"),
    [("<&-", "input"), (">&-", "output"), ("2>&-", ""), ("<&- >&- 2>&-", "")],
)
def test_main__closed_descriptors_without_dev_null(closed: str, what: str) -> None:
    """In a bare container it was a traceback; without standard error the line must not become
    data on the standard output.
    """
    script = f"{WITHOUT_NULL}sys.exit(main(['schema', '--json']))"
    command = ["sh", "-c", f'exec "$@" {closed}', "sh", sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode == 1
    why = "is closed, and /nowhere cannot be opened: no such file or directory\n"
    assert done.stderr == (f"mrc: standard {what} {why}" if what else "")
    assert all("is closed" in json.loads(line)["error"] for line in done.stdout.splitlines())
