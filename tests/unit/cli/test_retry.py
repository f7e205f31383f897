# SPDX-License-Identifier: Apache-2.0
"""When `mrc send` connects again by itself."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Any

import pytest

from mrc.cli import retry, send
from mrc.cli.exits import Exit
from mrc.cli.main import main
from mrc.cli.retry import Retry, is_lost
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
from mrc.exchange.dial import may_pass
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
    monkeypatch.setattr(retry, "FIRST_PAUSE_SECONDS", 0.0)
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
    monkeypatch.setattr(send, "connect_session", connect)
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
