# SPDX-License-Identifier: Apache-2.0
"""What a receiver does with a sender that its user has to accept, beside the questions themselves
(`test_trust_terminal.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mrc.cli.asking import Asking
from mrc.cli.consent import Consent
from mrc.cli.output import Output
from mrc.cli.progress import ProgressMeter
from mrc.transfer.messages import Asking as AskingMessage
from mrc.transfer.messages import TransferMessage
from mrc.transfer.session import TAKES_ASKING, TransferError
from mrc.trust.security import Security

A, B = (f"mrc:SHA256:{letter * 43}" for letter in "AB")


class Sender:
    """A session with a sender."""

    def __init__(self, identity: str, **private: object) -> None:
        self.said: list[TransferMessage] = []
        self.qp = SimpleNamespace(
            private=private, peer_identity=identity, peer_name="h0", peer_address="10.0.0.1",
            peer_gone=asyncio.Event(),
        )  # fmt: skip

    async def say(self, message: TransferMessage) -> None:
        self.said.append(message)

    say_last = say


@pytest.fixture
def questions(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    return []


def consent(
    questions: list[str], answers: Sequence[str], monkeypatch: pytest.MonkeyPatch
) -> Consent:
    left = list(answers)

    async def ask(_: Asking, question: str) -> str:
        questions.append(question)
        await asyncio.sleep(0)
        return left.pop(0)

    monkeypatch.setattr(Asking, "ask", ask)
    meter = ProgressMeter(Output("mrc recv", as_json=False, quiet=True), "receiver")
    return Consent(Security(allow_any=True), meter, idle_seconds=10.0)


async def test_get__announces_the_question_to_senders_that_know_the_message(
    questions: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asks = consent(questions, ["y", "y"], monkeypatch)
    new: Any = Sender(A, **{TAKES_ASKING: True})
    old: Any = Sender(B)
    await asks.get(new)
    await asks.get(old)
    assert (new.said, old.said) == ([AskingMessage()], [])


async def test_get__two_transfers_of_one_key_at_once_are_one_question(
    questions: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asks = consent(questions, ["y"], monkeypatch)
    senders: list[Any] = [Sender(A), Sender(A)]
    await asyncio.gather(*map(asks.get, senders))
    assert len(questions) == 1


async def test_get__a_no_is_for_one_transfer(
    questions: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asks = consent(questions, ["n", "yes"], monkeypatch)
    first: Any = Sender(A)
    with pytest.raises(TransferError, match="were not accepted"):
        await asks.get(first)
    second: Any = Sender(A)
    await asks.get(second)
    assert len(questions) == 2


@pytest.mark.parametrize("identity", ["", "code", "secret"])
async def test_get__without_a_key_nothing_is_remembered(
    questions: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, identity: str
) -> None:
    """Neither a name nor an address carries consent."""
    asks = consent(questions, ["y", "always"], monkeypatch)
    first: Any = Sender(identity)
    await asks.get(first)
    second: Any = Sender(identity)
    with pytest.raises(TransferError):
        await asks.get(second)
    assert len(questions) == 2 and "always" not in "".join(questions)
    assert not (tmp_path / "mrc" / "allowed").exists()


async def test_get__always_where_the_file_cannot_be_written(
    questions: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "mrc").write_text("no folder")
    asks = consent(questions, ["always"], monkeypatch)
    for _ in range(2):
        sender: Any = Sender(A)
        await asks.get(sender)
    assert len(questions) == 1
