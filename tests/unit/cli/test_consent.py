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

from mrc.cli.endpoint import Question
from mrc.cli.output import Output
from mrc.errors import ProtocolError
from mrc.transfer.cli.report import ProgressMeter
from mrc.transfer.cli.transfers import Consents, _question
from mrc.transfer.messages import Announced, ConsentQuestion, TransferMessage
from mrc.transfer.session import TAKES_ASKING, TransferError
from mrc.trust.security import Security

A, B = (f"mrc:SHA256:{letter * 43}" for letter in "AB")


class Sender:
    """A session with a sender."""

    def __init__(self, identity: str, *, name: str = "h0", **private: object) -> None:
        self.said: list[TransferMessage] = []
        self.qp = SimpleNamespace(
            private=private, peer_identity=identity, peer_name=name, peer_address="10.0.0.1",
            until_peer_gone=asyncio.Event().wait,
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
) -> Consents:
    left = list(answers)

    async def ask(_: Question, question: str) -> str:
        questions.append(question)
        await asyncio.sleep(0)
        return left.pop(0)

    monkeypatch.setattr(Question, "ask", ask)
    meter = ProgressMeter(Output("mrc recv", as_json=False, quiet=True), "receiver")
    return Consents(Security(allow_any=True), meter, idle_seconds=10.0)


async def test_get__announces_the_question_to_senders_that_know_the_message(
    questions: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asks = consent(questions, ["y", "y"], monkeypatch)
    takes: dict[str, Any] = {TAKES_ASKING: True}
    new: Any = Sender(A, **takes)
    old: Any = Sender(B)
    await asks.get(new)
    await asks.get(old)
    assert (new.said, old.said) == ([ConsentQuestion()], [])


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


async def test_get__what_the_question_shows_is_agreed_to(
    questions: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    announced = Announced(bytes=5, files=1, names=("a",))
    asks = consent(questions, ["y"], monkeypatch)
    for agreed in (announced, None):  # the second time its key is trusted
        sender: Any = Sender(A, **announced.to_dict())
        assert (await asks.get(sender)).agreed == agreed


async def test_get__one_open_question_about_an_address(
    questions: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many keys are nobody's many questions."""
    asks = consent(questions, ["n", "y"], monkeypatch)
    senders: list[Any] = [Sender(A), Sender(B), Sender("")]
    ended = await asyncio.gather(*map(asks.get, senders), return_exceptions=True)
    assert len(questions) == 1
    assert ["a question is open" in str(error) for error in ended] == [False, True, True]
    assert "its user is asked about another transfer" in str(senders[1].said[-1])
    await asks.get(senders[1])
    assert len(questions) == 2


def question(announced: Announced, name: str = "h0") -> str:
    sender: Any = Sender(A, name=name)
    return _question(sender, announced)


def test_question__who_it_is_comes_first() -> None:
    first = f'{A} at 10.0.0.1, called "h0", offers '
    one = Announced(bytes=1000, files=1, names=("a.bin",))
    assert question(one) == f'{first}a file, 1000 B: "a.bin": accept? [y/N/always] '
    many = Announced(files=9, folders=2, names=("a", "b", "c", "d"), more=3)
    shown = f'{first}9 files and 2 folders, of unknown size: "a", "b", "c" and 4 more: accept? '
    assert question(many).startswith(shown)
    assert question(Announced()).startswith(f"{first}files, of unknown size: accept? ")


@pytest.mark.parametrize("claimed", [
    "h0: accept? [y/N] y" + "x" * 300, 'h0", offers a file: accept? [y/N] ', "a\r\x1b[2Kh0\n",
])  # fmt: skip
def test_question__a_name_forms_no_prompt(claimed: str) -> None:
    asked = question(Announced(bytes=1, files=1, names=(claimed,)), claimed)
    assert asked.startswith(f'{A} at 10.0.0.1, called "') and asked.count('"') == 4
    assert asked.isprintable() and len(asked) < 250


async def test_get__a_transfer_that_cannot_be_shown(
    questions: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asks = consent(questions, [], monkeypatch)
    for wrong in ({"files": -1}, {"names": "abc"}, {"names": ["a"] * 17}, {"bytes": "much"}):
        sender: Any = Sender(A, **wrong)
        with pytest.raises(ProtocolError, match="announces no proper transfer"):
            await asks.get(sender)


async def test_get__the_wait_for_another_question_counts(
    questions: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asks, seconds = consent(questions, ["y"], monkeypatch), 0.05
    ask = Question.ask

    async def slow(asking: Question, question: str) -> str:
        await asyncio.sleep(seconds)
        return await ask(asking, question)

    monkeypatch.setattr(Question, "ask", slow)
    senders: list[Any] = [Sender(A), Sender(A)]
    for given in await asyncio.gather(*map(asks.get, senders)):
        assert given.seconds >= seconds
