# SPDX-License-Identifier: Apache-2.0
"""Proofs without input and output."""

from __future__ import annotations

import random

import pytest

from mrc.errors import ConnectError, ProtocolError
from mrc.trust import proofs
from mrc.trust.proofs import Binding, Guess
from mrc.trust.secret import Secret

WRONG = ConnectError("wrong")

POINTS = 100  # about half of them are not on the curve


@pytest.mark.parametrize("connects", [True, False])
def test_guess__any_message_gives_a_key_or_an_error_of_mrc(connects: bool) -> None:
    rng, wrong = random.Random(1), 0
    fixed = [b"", b"A", b"B", bytes(33), b"A" + bytes(32), b"B" + bytes(32), b"B" + b"\xff" * 32]
    for number in range(len(fixed) + POINTS):
        guess = Guess("maple-rocket-cider", connects=connects)
        side = b"B" if connects else b"A"
        message = fixed[number] if number < len(fixed) else side + rng.randbytes(32)
        try:
            assert len(guess.key(message)) == 32
        except ProtocolError:
            wrong += 1
    assert POINTS // 2 < wrong < POINTS + len(fixed)


def test_guess__our_own_message_is_no_answer() -> None:
    guess = Guess("maple-rocket-cider", connects=True)
    with pytest.raises(ProtocolError):
        guess.key(guess.message)


@pytest.mark.parametrize("field", ["server", "server_nonce", "client_nonce"])
def test_mac__is_for_one_connection(field: str) -> None:
    binding = {"server": b"s" * 32, "server_nonce": b"n" * 32, "client_nonce": b"c" * 32}
    right, wrong = Secret.copy(b"k" * 32), Secret.copy(b"o" * 32)
    shown = proofs.mac(right, "connects", Binding(**binding))
    proofs.check_mac(shown, right, "connects", Binding(**binding), WRONG)
    other = Binding(**{**binding, field: b"o" * 32})
    for key, who, where in (
        (right, "connects", other),
        (right, "listens", Binding(**binding)),  # his own proof comes back
        (wrong, "connects", Binding(**binding)),
    ):
        with pytest.raises(ConnectError, match="wrong"):
            proofs.check_mac(shown, key, who, where, WRONG)
