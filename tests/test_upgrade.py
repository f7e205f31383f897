# SPDX-License-Identifier: Apache-2.0
"""The last release and this version beside each other: what it wrote is read, and where it cannot
talk to this version, both say so.

The last release is the tag of the newest one in CHANGELOG.md, or what MRC_UPGRADE_FROM names.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from file_commands import MRC, receiving
from project_text import ROOT, releases
from slowness import PATIENCE

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def run(*command: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)


@pytest.fixture(scope="module")
def last(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Words before `MRC` that run the last release."""
    newest = next(each.version for each in releases((ROOT / "CHANGELOG.md").read_text())[1:])
    tag = os.environ.get("MRC_UPGRADE_FROM") or f"v{newest}"
    packed = subprocess.run(["git", "-C", ROOT, "archive", tag], capture_output=True, check=False)
    if packed.returncode != 0:
        pytest.skip(f"no tag of the last release: {tag}")
    tree, made = tmp_path_factory.mktemp("tree"), tmp_path_factory.mktemp("made")
    subprocess.run(["tar", "-x", "-C", tree], input=packed.stdout, check=True)
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation"]
    subprocess.run([*pip, "--target", made, tree], check=True)
    return ["env", f"PYTHONPATH={made}"]


def test_last__is_another_version(last: list[str]) -> None:
    texts = {run(*before, *MRC, "--version").stdout for before in (last, [])}
    assert len({text.splitlines()[0] for text in texts}) == 2


@pytest.mark.parametrize("newer", ["sender", "receiver"])
def test_transfer__to_a_host_of_the_other_version(
    last: list[str], tmp_path: Path, newer: str
) -> None:
    """The file arrives, or the sender hears what to install."""
    file, inbox = tmp_path / "file", tmp_path / "inbox"
    file.write_bytes(os.urandom(100_000))
    send = [*MRC, "send", "--retry", "0"] if newer == "sender" else [*last, *MRC, "send"]
    with receiving("--output", inbox, before=last if newer == "sender" else []) as (end, where):
        sent = run(*send, file, where)
        if sent.returncode != 0:  # else it waits for another sender
            end.terminate()
        end.communicate(timeout=PATIENCE)
    if sent.returncode == 0:
        assert (inbox / "file").read_bytes() == file.read_bytes()
    else:
        assert "install the same mrc on both hosts" in sent.stderr
        assert sent.stderr.count("\n") == 1, "one line"


def test_key__of_the_last_release_is_read(last: list[str], tmp_path: Path) -> None:
    key = ("key", "--identity", tmp_path / "key")
    made, read = run(*last, *MRC, *key), run(*MRC, *key)
    assert made.returncode == read.returncode == 0
    assert made.stdout.split()[-1] == read.stdout.split()[-1]
