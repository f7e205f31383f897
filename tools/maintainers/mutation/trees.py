# SPDX-License-Identifier: Apache-2.0
"""Copies of the tree, in which changes are tried."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

COPIED = ("csrc", "mrc", "tests", "tools", "bench", "pyproject.toml", "setup.py", "README.md")


class MutateError(Exception):
    """No change can be tried; the message has the cause."""


def snapshot(root: Path, work: Path, folders: tuple[str, ...]) -> Path:
    """Makes a copy of the tree. If these folders have changed since the last run, deletes its
    results.
    """
    names = tracked(root)
    digest = digest_of(root, (name for name in names if name.startswith(folders)))
    base, stamp = work / "base", work / "digest"
    if stamp.exists() and stamp.read_text() == digest:
        return base
    stamp.unlink(missing_ok=True)
    for old in [base, *work.glob("job-*"), work / "results.jsonl"]:
        shutil.rmtree(old) if old.is_dir() else old.unlink(missing_ok=True)
    for name in names:
        (base / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(root / name, base / name)
    stamp.write_text(digest)
    return base


def tracked(root: Path) -> list[str]:
    """The files of the checkout that tests require, including the compiled modules."""
    command = ["git", "-C", str(root), "ls-files", "-z", "-co", "--exclude-standard", "--", *COPIED]
    try:
        listed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        raise MutateError(f"git cannot list the files of {root}: {error}") from error
    names = {name for name in listed.split("\0") if name and (root / name).is_file()}
    return sorted(names | {str(path.relative_to(root)) for path in (root / "mrc").rglob("*.so*")})


def digest_of(root: Path, names: Iterable[str]) -> str:
    """A digest of the names and the content of these files."""
    digest = hashlib.sha256()
    for name in names:
        digest.update(name.encode() + b"\0" + (root / name).read_bytes())
    return digest.hexdigest()
