# SPDX-License-Identifier: Apache-2.0
"""File systems in memory that tests mount below their folders for temporary files."""

from __future__ import annotations

import getpass
import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def mounted(folder: Path, *options: str) -> Iterator[Path]:
    """Skips the test where this process may not mount."""
    command = ["mount", "-t", "tmpfs", *options, "tmpfs", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip(f"lacks a tmpfs: {done.stderr.splitlines()[0]}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", folder], check=True)


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        unmount_left(Path(tempfile.gettempdir(), f"pytest-of-{getpass.getuser()}"))


def unmount_left(root: Path) -> None:
    """Unmounts what killed runs have left below the folders that pytest makes in `root`. It cannot
    remove these folders, and that would fail each later run.
    """
    for line in Path("/proc/self/mounts").read_text().splitlines():
        place = Path(line.split()[1])
        if root in place.parents and not _is_used(root / place.relative_to(root).parts[0]):
            subprocess.run(["umount", "--lazy", place], check=False)


def _is_used(folder: Path) -> bool:
    """Whether the run that made a folder still runs; pytest renames what it removes."""
    try:
        os.kill(int((folder / ".lock").read_text()), 0)
    except (OSError, ValueError):
        return False
    return True
