# SPDX-License-Identifier: Apache-2.0
"""What a killed run of the tests leaves mounted."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import mounts
import pytest


def test_unmount_left__by_a_run_that_was_killed(tmp_path: Path) -> None:
    left, used = (tmp_path / name / "disk" for name in ("garbage-1", "pytest-2"))
    for folder in (left, used):
        folder.mkdir(parents=True)
    (used.parent / ".lock").write_text(str(os.getpid()))
    nothing_left = pytest.raises(subprocess.CalledProcessError)  # for umount
    with mounts.mounted(used), nothing_left, mounts.mounted(left):
        mounts.unmount_left(tmp_path)
        assert used.is_mount() and not left.is_mount()
