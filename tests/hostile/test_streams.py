# SPDX-License-Identifier: Apache-2.0
"""Commands whose standard output or error leads to a full disk."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
from file_commands import MRC, receiving
from hostile.rows import NAMESPACES
from slowness import PATIENCE
from wire.golden import GOLDEN, frame, write

_SENT = b"some bytes"
_CLOSED = ("<&-", ">&-", "2>&-", "<&- >&- 2>&-")
_IN_BED = ("testbed up --planes 2 --t1 1", "demo --planes 2 --t1 1 --size 48MiB --quiet")
_MOUNT = ["sh", "-c", 'mount -t tmpfs none /run && ip link set lo up && exec "$@"', "sh"]
_COMMANDS = (
    "completion bash", "schema perf", "dissect --verbose capture.pcap", "dissect --install", "key",
    "agent --idle 0.05 --insecure --port 0", *_IN_BED,
)  # fmt: skip


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder and a home of its own, with a capture."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("MRC_AGENT", str(tmp_path / "agent"))
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "capture.pcap", [frame(golden.packet, golden.flow) for golden in GOLDEN])


def shell(words: str, where: str, before: Sequence[str] = ()) -> subprocess.CompletedProcess[str]:
    command = [*before, "sh", "-c", f'exec "$@" {where}', "sh", *MRC, *shlex.split(words)]
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
        ("completion bash", "mrc completion"),
        ("dissect --verbose capture.pcap", "mrc dissect"),
        ("key", "mrc key"),
    ],
)
def test_output__on_a_full_disk_fails(words: str, prog: str) -> None:
    done = shell(words, ">/dev/full")
    assert done.stderr == f"{prog}: standard output: no space left on device\n"
    assert done.returncode == 1


@pytest.mark.default
def test_messages__on_a_full_disk_do_not_change_the_exit_code() -> None:
    assert shell(f"send {shlex.quote(__file__)} 127.0.0.1:1", "2>/dev/full").returncode == 3
    assert shell("send", "2>/dev/full").returncode == 2


def test_recv__stores_files_whose_messages_are_lost(tmp_path: Path) -> None:
    source, inbox = tmp_path / "source", tmp_path / "inbox"
    source.write_bytes(_SENT)
    full = ["sh", "-c", 'exec "$@" >/dev/full', "sh"]
    with receiving("--output", inbox, before=full) as (receiver, where):
        done = shell(f"send --json {shlex.quote(str(source))} {where}", "2>/dev/full")
        _, said = receiver.communicate(timeout=PATIENCE)
    assert done.returncode == 0 and (inbox / "source").read_bytes() == _SENT
    last = said.decode().splitlines()[-1]
    assert last.endswith("standard output: no space left on device") and receiver.returncode == 1


def _ends_well(words: str, closed: str) -> None:
    before = [*NAMESPACES, *_MOUNT] if words in _IN_BED else []
    done = shell(words, closed, before)
    assert done.returncode == 0, done
    assert all(line.startswith("mrc ") for line in done.stderr.splitlines()), done


@pytest.mark.parametrize(
    ("words", "closed"),
    [(_COMMANDS[0], _CLOSED[3]), (_COMMANDS[2], _CLOSED[1]), (_COMMANDS[5], _CLOSED[0]),
     (_IN_BED[0], _CLOSED[3])],
)  # fmt: skip
def test_command__with_closed_descriptors(words: str, closed: str) -> None:
    """What is for people goes nowhere."""
    _ends_well(words, closed)


@pytest.mark.slow
@pytest.mark.parametrize("words", _COMMANDS)
@pytest.mark.parametrize("closed", _CLOSED)
def test_command__each_with_closed_descriptors(words: str, closed: str) -> None:
    _ends_well(words, closed)
