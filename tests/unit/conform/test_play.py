# SPDX-License-Identifier: Apache-2.0
"""What the judge does not hold against a device: that the judge itself stood still."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import pytest

from mrc.conform.player import JudgeDelay, Play, StepFailure

GAVE_UP = "= completions SUCCESS: the device has RETRY_EXC_ERR"
OTHER = "< WRITE_ONLY psn=0: nothing came"


@pytest.mark.parametrize(
    ("is_prompt", "stalled", "unread", "reason", "error"),
    [
        (True, 0.2, 0.2, OTHER, JudgeDelay),
        (True, 0.01, 0.2, OTHER, StepFailure),
        (False, 0.2, 0.2, OTHER, StepFailure),
        (False, 0.02, 0.2, GAVE_UP, JudgeDelay),
        (False, 0.001, 0.01, GAVE_UP, StepFailure),
    ],
)
def test_take__after_the_judge_stood_still(
    is_prompt: bool, stalled: float, unread: float, reason: str, error: type[Exception],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    peer: Any = SimpleNamespace(seen=[], stalled_seconds=stalled, unread_seconds=unread)
    situation: Any = SimpleNamespace(is_prompt=is_prompt)
    device: Any = None
    play = Play(peer, device, situation, random.Random(1), 1.0)

    def fail(step: object) -> None:
        raise StepFailure(reason)

    monkeypatch.setattr(play, "_take", fail)
    step: Any = None
    with pytest.raises(error):
        play.take(step)
