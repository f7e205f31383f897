# SPDX-License-Identifier: Apache-2.0
"""What the judge does not hold against a device: that the judge itself stood still."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import pytest

from mrc.conform.adapter import AdapterAnswer
from mrc.conform.player import JudgeDelay, Play, StepFailure


@pytest.mark.parametrize(
    ("is_prompt", "stalled", "unread", "completions", "error"),
    [
        (True, 0.2, 0.2, (), JudgeDelay),
        (True, 0.01, 0.2, (), StepFailure),
        (False, 0.2, 0.2, (), StepFailure),
        (False, 0.2, 0.2, None, StepFailure),
        (False, 0.02, 0.2, ("SUCCESS", "RETRY_EXC_ERR"), JudgeDelay),
        (False, 0.001, 0.01, ("RETRY_EXC_ERR",), StepFailure),
    ],
)
def test_take__after_the_judge_stood_still(
    is_prompt: bool, stalled: float, unread: float, completions: tuple[str, ...] | None,
    error: type[Exception], monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Whatever step fails then: a QP that has given up does nothing more."""
    peer: Any = SimpleNamespace(seen=[], stalled_seconds=stalled, unread_seconds=unread)
    situation: Any = SimpleNamespace(is_prompt=is_prompt)
    device: Any = SimpleNamespace(ask=lambda _: AdapterAnswer(completions=completions))
    play = Play(peer, device, situation, random.Random(1), 1.0)

    def fail(step: object) -> None:
        raise StepFailure("< WRITE_ONLY psn=0: nothing came")

    monkeypatch.setattr(play, "_take", fail)
    step: Any = None
    with pytest.raises(error):
        play.take(step)
