# SPDX-License-Identifier: Apache-2.0
"""--update asks the receiver about files by what the sender has listed."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from transfer_ends import both, make, names, receiving, sessions

from mrc.transfer.files import OutputDirectory
from mrc.transfer.folders import SECOND_NS
from mrc.transfer.plan import plan_of
from mrc.transfer.sender import SendOptions, send_plan


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
        found = send_plan(ends.sender, plan, SendOptions(update=True))
        return [file.name async for batch in found for file in batch.files]

    async with sessions() as ends:
        sent, _ = await both(sending(), receiving(ends.receiver, inbox))
    assert sent == ["a"] and plan.unchanged == 1 and names(inbox) == ["a", "b"]


@pytest.mark.parametrize(
    "keeps",
    [lambda ns: max(ns, -(1 << 31) * SECOND_NS), lambda ns: ns // (2 * SECOND_NS) * 2 * SECOND_NS],
    ids=["since 1901", "every second second"],
)
def test_has__a_date_that_the_file_system_does_not_keep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keeps: Callable[[int], int]
) -> None:
    """It was sent again each time."""
    utime, date = os.utime, -(1 << 31) * SECOND_NS - 5_000_000_007
    monkeypatch.setattr(
        os, "utime", lambda file, *, ns: utime(file, ns=(keeps(ns[0]), keeps(ns[1])))
    )
    os.utime(make(tmp_path, "a", b"1"), ns=(date, date))
    with OutputDirectory(str(tmp_path)) as directory:
        tree = directory.tree()
        assert tree.has("a", 1, date)
        assert not tree.has("a", 1, 0)
        tree.close()
    assert names(tmp_path) == ["a"]
