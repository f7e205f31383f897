# SPDX-License-Identifier: Apache-2.0
"""Commands that write to a full disk or to a read-only one: each is a small file system in a mount
namespace.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest
from file_commands import MRC
from slowness import PATIENCE

from mrc.linux import netns

_NEW = "-Urnm" if netns.lacks() else "-nm"
_MOUNT = """
ip link set lo up
if [ "$state" = full ]; then
  mount -t tmpfs -o size="${size:-64k}" none "$folder"
  [ "$size" ] || head -c 64k /dev/zero > "$folder/ballast" 2>/dev/null
else
  mount -t tmpfs -o ro none "$folder"
fi
"""
_REASONS = {"full": "no space left on device", "read-only": "read-only file system"}
# Both ends of a transfer, whose exit codes are printed. The port is in the first line of mrc recv.
_TRANSFER = """
"$@" recv --once --port 0 --output "$inbox" > received 2> said &
while ! grep -qs 'TCP port' said && kill -0 $!; do sleep 0.05; done
port=$(sed -n 's/.*TCP port \\([0-9]*\\),.*/\\1/p' said)
"$@" send --retry 0 "$what" "127.0.0.1:$port" < source > sent
sent=$?
echo "sent: $sent"
[ -z "$waits" ] || kill $!  # for data, of which none came
wait $!
echo "received: $?"
cat said >&2
"""


def _is_allowed() -> bool:
    words = ["unshare", _NEW, "mount", "-t", "tmpfs", "none", "/mnt"]
    return bool(shutil.which("unshare")) and subprocess.run(words, check=False).returncode == 0


pytestmark = pytest.mark.skipif(not _is_allowed(), reason="needs root, or user namespaces")


@dataclass
class Ended:
    """How a script ended."""

    code: int
    out: list[str]
    err: list[str]
    left: list[str]
    """in the folder"""


def inside(script: str, state: str, folder: Path | str, place: Path, **more: str) -> Ended:
    """Runs a shell script where a folder is on a bad disk; `"$@"` is the command `mrc`."""
    environment = os.environ | {"state": state, "folder": str(folder)} | more
    whole = f'{_MOUNT}\n{script}\ncode=$?; ls -A "$folder" > left; exit $code'
    done = subprocess.run(
        ["unshare", _NEW, "sh", "-c", whole, "sh", *MRC], env=environment, cwd=place, text=True,
        stdin=subprocess.DEVNULL, capture_output=True, timeout=PATIENCE, check=False,
    )  # fmt: skip
    left = [each for each in (place / "left").read_text().split() if each != "ballast"]
    return Ended(done.returncode, done.stdout.splitlines(), done.stderr.splitlines(), left)


@pytest.fixture
def bad(tmp_path: Path) -> Path:
    """A folder for the bad disk."""
    folder = tmp_path / "bad"
    folder.mkdir()
    return folder


@pytest.mark.parametrize(
    ("words", "name", "state"),
    [
        ("key --identity $folder/identity.pem", "identity.pem", "full"),
        ("key --secret $folder/secret", "secret", "full"),
        ("key --secret $folder/secret", "secret", "read-only"),
        ("testbed plan --svg $folder/lab.svg", "lab.svg", "full"),
        ("testbed export --netns-script $folder/lab.sh", "lab.sh", "full"),
    ],
)
def test_write__names_the_file_and_leaves_nothing(
    words: str, name: str, state: str, bad: Path, tmp_path: Path
) -> None:
    done = inside(f'"$@" {words}', state, bad, tmp_path)
    assert done.code == 1 and done.left == [] and done.out == []
    (line,) = done.err
    assert line.startswith("mrc") and f"{bad}/{name}: " in line
    assert _REASONS[state] in line.lower()


@pytest.mark.parametrize("state", _REASONS)
def test_dissect__installs_all_or_nothing(state: str, bad: Path, tmp_path: Path) -> None:
    script = 'HOME="$folder" "$@" dissect --install; code=$?; find "$folder" -type f; (exit $code)'
    done = inside(script, state, bad, tmp_path)
    (line,) = done.err
    assert done.code == 1 and line.startswith(f"mrc dissect: {bad}/")
    assert line.endswith(f"/mrc.lua: {_REASONS[state]}")
    assert [Path(each).name for each in done.out] in ([], ["ballast"])


@pytest.mark.parametrize("state", _REASONS)
@pytest.mark.parametrize(
    "words", ["testbed up --planes 2 --t1 1", "demo --planes 2 --t1 1 --size 48MiB --quiet"]
)
def test_bed__without_room_in_run(words: str, state: str, tmp_path: Path) -> None:
    done = inside(f'"$@" {words}', state, "/run", tmp_path)
    (line,) = done.err
    assert done.code == 1 and done.out == []
    assert line.startswith("mrc ") and line.endswith(f": {_REASONS[state]}")
    assert done.left in ([], ["mrc"])


@pytest.mark.parametrize("words", ["key", f"perf --server --port 0 --allow mrc:SHA256:{'A' * 43}"])
@pytest.mark.parametrize("state", _REASONS)
def test_key__without_room_for_it(words: str, state: str, bad: Path, tmp_path: Path) -> None:
    done = inside(f'HOME="$folder" "$@" {words}', state, bad, tmp_path)
    assert done.code == 1 and done.out == []
    (line,) = done.err
    said = f"{bad}/.config/mrc/identity.pem: cannot be made: {_REASONS[state]}: name another"
    assert said in line


def test_agent__at_a_socket_on_a_read_only_disk(bad: Path, tmp_path: Path) -> None:
    words = "agent --insecure --port 0"
    done = inside(f'MRC_AGENT="$folder/agent" "$@" {words}', "read-only", bad, tmp_path)
    assert done.code == 1 and done.out == []
    (line,) = done.err
    assert line.lower() == f"mrc agent: socket {bad}/agent: read-only file system".lower()


def test_recv__makes_no_folder_on_a_read_only_disk(bad: Path, tmp_path: Path) -> None:
    done = inside('"$@" recv --output "$folder/inbox"', "read-only", bad, tmp_path)
    assert done.code == 1
    assert done.err == [f"mrc recv: {bad}/inbox: read-only file system"]


def transfer(
    state: str, folder: Path | str, place: Path, inbox: Path, what: str = "source", **more: str
) -> Ended:
    """A file from one end to the other; -: through a pipe, so its size is not known before."""
    (place / "source").write_bytes(bytes(range(256)) * 4096)
    return inside(_TRANSFER, state, folder, place, inbox=str(inbox), what=what, **more)


def test_recv__on_a_full_disk_refuses(bad: Path, tmp_path: Path) -> None:
    done = transfer("full", bad, tmp_path, bad, waits="yes")
    assert done.out == ["sent: 1", "received: 143"] and done.left == [], done
    assert "(0 free): free some space or choose another --output" in done.err[0]


@pytest.mark.default
def test_recv__on_a_disk_that_fills_up(bad: Path, tmp_path: Path) -> None:
    done = transfer("full", bad, tmp_path, bad, "-", size="600k")
    assert done.out == ["sent: 1", "received: 1"] and done.left == [], done
    assert "refused the file: stdin: no room for" in done.err[0]


@pytest.mark.parametrize("state", _REASONS)
def test_transfer__without_room_in_run(state: str, tmp_path: Path) -> None:
    """`mrc top --local` may not see the receiver then, but the file arrives."""
    inbox = tmp_path / "inbox"
    done = transfer(state, "/run", tmp_path, inbox)
    assert done.out == ["sent: 0", "received: 0"], done
    assert done.left in ([], ["mrc-endpoints"])
    assert (inbox / "source").read_bytes() == (tmp_path / "source").read_bytes()
    assert all(line.startswith("mrc ") for line in done.err), done
