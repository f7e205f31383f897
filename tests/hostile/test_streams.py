# SPDX-License-Identifier: Apache-2.0
"""Commands whose standard output or error leads to a full disk."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from file_commands import MRC, receiving
from slowness import PATIENCE

_SENT = b"some bytes"


def shell(words: str, where: str) -> subprocess.CompletedProcess[str]:
    command = ["sh", "-c", f'exec "$@" {where}', "sh", *MRC, *words.split()]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=PATIENCE, check=False,
        stdin=subprocess.DEVNULL,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("words", "prog"),
    [
        ("--help", "mrc"),
        ("--version", "mrc"),
        ("schema perf", "mrc schema"),
        ("sim list --json", "mrc sim list"),
        ("testbed plan", "mrc testbed plan"),
    ],
)
def test_output__on_a_full_disk_fails(words: str, prog: str) -> None:
    done = shell(words, ">/dev/full")
    assert done.stderr == f"{prog}: standard output: no space left on device\n"
    assert done.returncode == 1


def test_messages__on_a_full_disk_do_not_change_the_exit_code() -> None:
    assert shell(f"send {__file__} 127.0.0.1:1", "2>/dev/full").returncode == 3
    assert shell("send", "2>/dev/full").returncode == 2


def test_recv__stores_files_whose_messages_are_lost(tmp_path: Path) -> None:
    source, inbox = tmp_path / "source", tmp_path / "inbox"
    source.write_bytes(_SENT)
    full = ["sh", "-c", 'exec "$@" >/dev/full', "sh"]
    with receiving("--output", inbox, before=full) as (receiver, where):
        done = shell(f"send --json {source} {where}", "2>/dev/full")
        _, said = receiver.communicate(timeout=PATIENCE)
    assert done.returncode == 0 and (inbox / "source").read_bytes() == _SENT
    last = said.decode().splitlines()[-1]
    assert last.endswith("standard output: no space left on device") and receiver.returncode == 1
