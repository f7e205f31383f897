# SPDX-License-Identifier: Apache-2.0
"""When `mrc testbed run` ends."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from mrc.cli.main import main


def test_until__what_is_due_before_it_happens_however_late(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On a busy machine the run came to a fault only after its end, and left it out."""
    ended: list[bool] = []

    def run(_: Any, __: Any, wait: Callable[[float | None], bool], ___: Any) -> None:
        begun = time.monotonic()
        assert wait(begun + 60)  # due after the end
        ended.extend((wait(begun + 0.01), wait(None)))

    monkeypatch.setattr("mrc.cli.testbed_run.Testbed.existing", lambda name: FakeBed())
    monkeypatch.setattr("mrc.testbed.schedule.load", lambda path, plan: ())
    monkeypatch.setattr("mrc.testbed.schedule.run", run)
    assert main(["testbed", "run", "faults.toml", "--until", "50ms"]) == 0
    assert ended == [False, True]


class FakeBed:
    plan = None
