# SPDX-License-Identifier: Apache-2.0
"""--update asks the receiver about files by what the sender has listed."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from transfer_ends import both, make, names, receiving, sessions

from mrc.transfer.offering import How
from mrc.transfer.plan import plan_of
from mrc.transfer.sender import send_plan


async def test_send_plan__update_reads_nothing_again(
    tmp_path: Path, inbox: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file system may answer slowly about many files, while the receiver waits for an offer."""
    paths = [make(tmp_path, name, name.encode()) for name in ("a", "b")]
    old = make(inbox, "b", b"b")
    os.utime(old, ns=(0, os.stat(paths[1]).st_mtime_ns))
    plan = plan_of(paths)

    stat = os.stat

    def found_once(path: Any, **options: Any) -> os.stat_result:
        assert path not in paths, "it is in the plan"
        return stat(path, **options)

    async def sending() -> list[str]:
        monkeypatch.setattr(os, "stat", found_once)
        found = send_plan(ends.sender, plan, How(update=True))
        return [file.name async for batch in found for file in batch.files]

    async with sessions() as ends:
        sent, _ = await both(sending(), receiving(ends.receiver, inbox))
    assert sent == ["a"] and plan.unchanged == 1 and names(inbox) == ["a", "b"]
