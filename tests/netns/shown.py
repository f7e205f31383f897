# SPDX-License-Identifier: Apache-2.0
"""Lets every user read Python and this checkout, also where only root may, such as in /root."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from shlex import quote

import pytest

ROOT = Path(__file__).parents[2]
PLACE = Path("/media")  # a folder for mounts, on every Debian


def shown_to_all() -> list[str]:
    """The words before a command that root starts and that then becomes another user. They change
    its mount namespace only. Skips the test where the files themselves are root's alone.
    """
    folders = {Path(sys.executable).resolve().parents[1], Path(sys.prefix), ROOT}
    for folder in (ROOT / "mrc", Path(sys.prefix) / "lib"):
        if not folder.stat().st_mode & 1:
            pytest.skip(f"other users cannot read {folder}: it was made under a umask like 077")
    return ["unshare", "-m", "sh", "-ec", _script(folders, PLACE), "sh"]


def _script(folders: Iterable[Path], empty: Path) -> str:
    """Commands that make folders visible which lie in a folder that not every user may enter, such
    as /root: in a mount namespace, an empty folder replaces that one, and each folder is mounted in
    it.
    """
    hidden: dict[Path, Path] = {}  # folder -> its first parent that not every user may enter
    for folder in sorted(folders):
        closed = [each for each in reversed(folder.parents) if not each.stat().st_mode & 1]
        if closed and not any(shown in folder.parents for shown in hidden):
            hidden[folder] = closed[0]
    show = [f"umask 022; mount -t tmpfs tmpfs {quote(str(empty))}"]
    hide = [f"mount -t tmpfs -o mode=755 tmpfs {quote(str(each))}" for each in {*hidden.values()}]
    move = []
    for number, folder in enumerate(hidden):
        here, there = quote(str(empty / str(number))), quote(str(folder))
        show.append(f"mkdir {here}; mount --bind {there} {here}")
        move.append(f"mkdir -p {there}; mount --move {here} {there}")
    return "\n".join([*show, *hide, *move, 'exec "$@"'])
