# SPDX-License-Identifier: Apache-2.0
"""`mrc send` goes on after an end was killed or stopped by Ctrl-C."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest
from file_commands import MRC, receiving
from slowness import PATIENCE, until

from mrc.transfer.limits import part_name, record_name

BLOCK = os.urandom(32 << 20)
SIZE = 10 * len(BLOCK)
SLOWLY = ("--rate", "400mbit")  # 7 s for SIZE: a test that ends it in the middle has time


@pytest.mark.slow
@pytest.mark.parametrize(
    ("who", "how"),
    [
        ("sender", signal.SIGINT),
        pytest.param("sender", signal.SIGKILL, marks=pytest.mark.slow),
        pytest.param("receiver", signal.SIGINT, marks=pytest.mark.slow),
        pytest.param("receiver", signal.SIGKILL, marks=pytest.mark.slow),
    ],
)
def test_send__goes_on(tmp_path: Path, who: str, how: signal.Signals) -> None:
    source, inbox = tmp_path / "image", tmp_path / "inbox"
    with source.open("wb") as file:
        for _ in range(SIZE // len(BLOCK)):
            file.write(BLOCK)
    with receiving("--output", inbox, *SLOWLY) as (receiver, where):
        command: list[str | Path] = [*MRC, "send", "--retry", "0", source, where]
        with subprocess.Popen(command, stdout=-1, stderr=-1, text=True) as sender:
            part = inbox / part_name("image")
            until(lambda: part.exists() and part.stat().st_blocks * 512 > len(BLOCK))
            (sender if who == "sender" else receiver).send_signal(how)
            _, notes = sender.communicate(timeout=PATIENCE)
        receiver.communicate(timeout=PATIENCE)
    assert sender.returncode != 0
    if how == signal.SIGINT:
        assert (inbox / record_name(part_name("image"))).exists()
        assert "the same command goes on" in notes
    with receiving("--output", inbox) as (receiver, where):
        done = subprocess.run(
            [*MRC, "send", "--json", source, where], capture_output=True, text=True, check=False
        )
        receiver.communicate(timeout=PATIENCE)
    assert (done.returncode, receiver.returncode) == (0, 0), done.stderr
    resumed = json.loads(done.stdout)["resumed_bytes"]
    assert (inbox / "image").stat().st_size == SIZE
    assert subprocess.run(["cmp", source, inbox / "image"], check=False).returncode == 0
    if how == signal.SIGINT:
        assert resumed > len(BLOCK) // 2
        assert "goes on behind" in done.stderr
    assert sorted(os.listdir(inbox)) == ["image"]


@pytest.mark.more
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_send__standard_input_does_not_go_on(tmp_path: Path, how: signal.Signals) -> None:
    """It cannot be read twice: the sender promises nothing, and the receiver does not wait."""
    with receiving("--output", tmp_path / "inbox") as (receiver, where):
        command = [*MRC, "send", "-", where]
        with subprocess.Popen(command, stdin=-1, stdout=-1, stderr=-1) as sender:
            assert sender.stdin is not None
            sender.stdin.write(BLOCK)
            sender.stdin.flush()
            until(lambda: any(path.stat().st_size for path in (tmp_path / "inbox").iterdir()))
            sender.send_signal(how)
            assert sender.stderr is not None
            assert b"goes on where" not in sender.stderr.read()
        _, notes = receiver.communicate(timeout=PATIENCE)
    assert receiver.returncode != 0 and b"may come back" not in notes
    assert os.listdir(tmp_path / "inbox") == []


@pytest.mark.more
def test_send__goes_on_by_itself(tmp_path: Path) -> None:
    """The receiver is killed and starts again, while the sender waits for it."""
    source, inbox = tmp_path / "image", tmp_path / "inbox"
    with source.open("wb") as file:
        for _ in range(SIZE // len(BLOCK)):
            file.write(BLOCK)
    with receiving("--output", inbox, *SLOWLY) as (receiver, where):
        command = [*MRC, "send", "--json", "--retry", f"{PATIENCE}s", str(source), where]
        with subprocess.Popen(command, stdout=-1, stderr=-1, text=True) as sender:
            part = inbox / part_name("image")
            until(lambda: part.exists() and part.stat().st_blocks * 512 > len(BLOCK))
            receiver.kill()
            receiver.wait(PATIENCE)
            port = where.rpartition(":")[2]
            with receiving("--output", inbox, "--port", port) as (receiver, _):
                out, notes = sender.communicate(timeout=PATIENCE)
                assert sender.returncode == 0, notes
                assert receiver.wait(PATIENCE) == 0
    assert "to connect again" in notes and "connected again" in notes
    result = json.loads(out)
    assert result["retries"] == 1 and result["bytes"] == SIZE
    assert subprocess.run(["cmp", source, inbox / "image"], check=False).returncode == 0
    assert sorted(os.listdir(inbox)) == ["image"]
