# SPDX-License-Identifier: Apache-2.0
"""When `mrc send` connects again by itself."""

from __future__ import annotations

import ssl
import subprocess
from pathlib import Path
from typing import Any

import pytest
from file_commands import MRC
from ports import free_port
from slowness import PATIENCE

from mrc.cli import endpoint
from mrc.cli.endpoint import Retry, is_lost
from mrc.cli.main import main
from mrc.cli.output import Exit
from mrc.connect.connect import may_pass
from mrc.errors import (
    BusyError,
    ConnectError,
    ConnectRefusedError,
    ConnectTimeoutError,
    MrcError,
    PathError,
    PeerGoneError,
    ProtocolError,
)
from mrc.transfer.cli import transfers
from mrc.transfer.session import TransferError, VerificationError


def caused(cause: Exception) -> ConnectError:
    error = ConnectError("x")
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "lost", "passes"),
    [
        (PathError("x"), True, True),
        (PeerGoneError("x"), True, True),
        (ConnectTimeoutError("x"), False, True),
        (BusyError("x"), False, True),
        (caused(ConnectionRefusedError()), False, True),
        (caused(OSError()), False, True),
        (caused(caused(OSError())), False, True),
        (caused(ssl.SSLError()), False, False),
        (caused(ConnectRefusedError("x")), False, False),
        (ConnectError("wrong code"), False, False),
        (ConnectRefusedError("x"), False, False),
        (TransferError("x"), False, False),
        (VerificationError("x"), False, False),
        (ProtocolError("x"), False, False),
    ],
)
def test_errors(error: MrcError, lost: bool, passes: bool) -> None:
    assert (is_lost(error), may_pass(error)) == (lost, passes)


@pytest.fixture
def notes(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setattr(endpoint, "FIRST_PAUSE_SECONDS", 0.0)
    return []


async def test_wait__only_after_a_loss(notes: list[str]) -> None:
    for error, connected in ((PathError("x"), False), (TransferError("x"), True)):
        with pytest.raises(type(error)):
            await Retry(60, notes.append).wait(error, connected=connected, progress=True)
    with pytest.raises(PathError):
        await Retry(0, notes.append).wait(PathError("x"), connected=True, progress=True)
    assert not notes


async def test_wait__a_refusal_ends_it(notes: list[str]) -> None:
    again = Retry(60, notes.append)
    await again.wait(PathError("lost"), connected=True, progress=True)
    await again.wait(ConnectTimeoutError("late"), connected=False, progress=False)
    with pytest.raises(ConnectRefusedError):
        await again.wait(ConnectRefusedError("no"), connected=False, progress=False)
    assert len(notes) == 1 and "lost; trying for 60 s to connect again" in notes[0]


async def test_wait__its_time_ends_and_the_loss_is_the_cause(notes: list[str]) -> None:
    again = Retry(1e-6, notes.append)
    await again.wait(PathError("lost"), connected=True, progress=True)
    with pytest.raises(PathError, match="lost"):
        while True:
            await again.wait(ConnectTimeoutError("late"), connected=False, progress=False)
    assert notes[-1] == "cannot connect again: late"


@pytest.mark.parametrize(
    ("words", "named"),
    [(["FILE"], True), (["-"], False), (["--no-resume", "FILE"], False)],
)
def test_send__names_only_a_transfer_that_may_go_on(
    words: list[str], named: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A receiver waits for the sender of a transfer with a name."""
    found: list[str] = []

    def connect(*_: Any, transfer: str, **__: Any) -> Any:
        found.append(transfer)
        raise ConnectRefusedError("no")

    (tmp_path / "FILE").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(transfers, "connect_session", connect)
    assert main(["send", "--insecure", *words, "127.0.0.1"]) == Exit.UNREACHABLE
    assert [bool(transfer) for transfer in found] == [named]


async def test_wait__connections_without_progress_share_one_time(notes: list[str]) -> None:
    again = Retry(60, notes.append)
    await again.wait(PathError("x"), connected=True, progress=True)
    until = again._until
    for progress in (False, True):
        again.connected()
        await again.wait(PathError("x"), connected=True, progress=progress)
        assert (again._until > until) is progress
    assert again.count == 2


async def test_wait__for_a_listener(notes: list[str]) -> None:
    """Before the first connection, for the time of --wait; a refusal ends it."""
    nobody = caused(ConnectionRefusedError())
    first = Retry(0, notes.append, first=60)
    for _ in range(3):
        await first.wait(nobody, connected=False, progress=False)
    assert notes == ["x; trying for 60 s"]
    with pytest.raises(ConnectRefusedError):
        await first.wait(ConnectRefusedError("no"), connected=False, progress=False)
    for seconds in (0.0, 1e-9):
        brief = Retry(0, notes.append, first=seconds)
        with pytest.raises(ConnectError, match="x"):
            while True:
                await brief.wait(nobody, connected=False, progress=False)


@pytest.mark.parametrize(
    ("serves", "words"),
    [
        (("perf", "--server", "--one-off"), ("perf", "HOST", "-n", "1M")),
        (("recv", "--once", "--output", "INBOX"), ("send", "FILE", "HOST")),
        (("recv", "--output", "INBOX"), ("paths", "HOST")),
    ],
)
def test_wait__begins_before_the_listener(
    serves: tuple[str, ...], words: tuple[str, ...], tmp_path: Path
) -> None:
    (tmp_path / "FILE").write_bytes(b"1")
    port = free_port()
    there = {"HOST": f"127.0.0.1:{port}", "FILE": str(tmp_path / "FILE"), "INBOX": str(tmp_path)}
    command = [*MRC, *(there.get(word, word) for word in words), "--wait", str(PATIENCE)]
    with subprocess.Popen(command, stdout=-1, stderr=-1, text=True) as client:
        assert client.stderr is not None
        said = client.stderr.readline()
        assert f"no program listens on TCP port {port}" in said and "trying for" in said
        listens = [*MRC, *(there.get(word, word) for word in serves), "--port", str(port)]
        with subprocess.Popen(listens, stdout=-1, stderr=-1) as listener:
            assert client.wait(PATIENCE) == 0, client.stderr.read()
            listener.terminate()
