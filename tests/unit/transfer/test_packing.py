# SPDX-License-Identifier: Apache-2.0
"""How much of a pack is left to send."""

from __future__ import annotations

import os
from pathlib import Path

from mrc.transfer.packing import Packing
from mrc.transfer.plan import plan_of

SIZES = {"a": 10_000, "b": 0, "c": 3_000, "d": 20_000}


def test_left_bytes__falls_with_what_is_sent_or_fails(tmp_path: Path) -> None:
    for name, size in SIZES.items():
        (tmp_path / name).write_bytes(os.urandom(size))
    plan = plan_of([str(tmp_path / name) for name in SIZES])
    (tmp_path / "c").unlink()
    os.truncate(tmp_path / "d", 9_000)
    packing = Packing(plan.entries, keep_meta=False)
    assert packing.left_bytes() == sum(SIZES.values())
    chunk, left = bytearray(16_000), []
    while packing.fill(memoryview(chunk)):
        left.append(packing.left_bytes())
    assert left == sorted(set(left), reverse=True) and left[-1] == 0
    assert [(file.name, file.bytes) for file in packing.files] == [
        ("a", 10_000), ("b", 0), ("d", 9_000),
    ]  # fmt: skip
    assert [failed.name for failed in packing.failed] == ["c"]
