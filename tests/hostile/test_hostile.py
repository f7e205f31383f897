# SPDX-License-Identifier: Apache-2.0
"""Commands whose n-th call for a descriptor or for memory fails, whose clock is set, and whose
standard output or error leads to a full disk.

A first run counts the calls, then seeded draws choose those that fail. The slow tests take all.
"""

from __future__ import annotations

import random
import shlex
import subprocess
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import product
from pathlib import Path

import pytest
from file_commands import MRC, receiving
from hostile.environments import ALL, NAMESPACES, ROWS, Calls, Place
from slowness import PATIENCE
from wire.golden import GOLDEN, frame, write

_KINDS = ("files", "memory")
_LAST = 48  # calls of a command that do not only import


@pytest.fixture
def places(tmp_path: Path) -> Iterator[Place]:
    """Fresh folders for each run."""
    return (Place(tmp_path / str(number)) for number in range(1 << 20))


def _sweep(row: str, kind: str, places: Iterator[Place], chosen: Callable[[int], Iterable[int]],
           most: int = 1, modules: str = "") -> None:  # fmt: skip
    usual = ROWS[row](next(places), Calls(kind, modules=modules))
    for first in chosen(usual.calls):
        done = ROWS[row](next(places), Calls(kind, first, most, modules))
        assert done.calls >= first or done.code == 0, (first, done)


@pytest.mark.parametrize(
    ("row", "kind"), [("send", "files"), ("recv", "memory"), ("agent", "files")]
)
def test_call__that_fails(row: str, kind: str, places: Iterator[Place]) -> None:
    """One of the last: most of the others import modules."""
    rng = random.Random(row + kind)
    _sweep(row, kind, places, lambda count: [rng.randint(max(1, count - _LAST), count)])


def test_calls__that_fail_from_one_on(places: Iterator[Place]) -> None:
    """As many open files leave no descriptor for anything else."""
    _sweep("send", "files", places, lambda count: [count - 8], ALL)


@pytest.mark.default
def test_clock__that_is_set_by_a_day(places: Iterator[Place]) -> None:
    """A day ahead at one call, then a day behind."""
    done = ROWS["recv"](next(places), Calls("clock", random.Random("recv").randint(1, 12)))
    assert done.code == 0


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kind", _KINDS)
@pytest.mark.parametrize("row", ROWS)
def test_call__each_that_fails(row: str, kind: str, places: Iterator[Place], tmp_path: Path
                               ) -> None:  # fmt: skip
    """Also with all calls after it. All modules are imported before."""
    modules = tmp_path / "modules"
    ROWS[row](next(places), Calls(kind, modules=str(modules)))
    assert modules.stat().st_size
    for most in (1, ALL):
        _sweep(row, kind, places, lambda count: range(1, count + 1), most, str(modules))


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("row", ROWS)
def test_call__some_of_the_imports_that_fail(row: str, places: Iterator[Place]) -> None:
    for most in (1, ALL):
        _sweep(row, "files", places, lambda count: range(1, count + 1, 24), most)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("row", ROWS)
def test_clock__that_is_set_at_each_call(row: str, places: Iterator[Place]) -> None:
    _sweep(row, "clock", places, lambda count: range(1, count + 1))


# ---- standard output and error -------------------------------------------------------------------

_SENT = b"some bytes"
_CLOSED = ("<&-", ">&-", "2>&-", "<&- >&- 2>&-")
_IN_BED = ("testbed up --planes 2 --t1 1", "demo --planes 2 --t1 1 --size 48MiB --quiet")
_MOUNT = ["sh", "-c", 'mount -t tmpfs none /run && ip link set lo up && exec "$@"', "sh"]
_COMMANDS = (
    "completion bash", "schema perf", "dissect --verbose capture.pcap", "dissect --install", "key",
    "agent --idle 0.05 --insecure --port 0", *_IN_BED,
)  # fmt: skip


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder and a home of its own, with a capture."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("MRC_AGENT", str(tmp_path / "agent"))
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "capture.pcap", [frame(golden.packet, golden.flow) for golden in GOLDEN])


def shell(words: str, where: str, before: Sequence[str] = ()) -> subprocess.CompletedProcess[str]:
    command = [*before, "sh", "-c", f'exec "$@" {where}', "sh", *MRC, *shlex.split(words)]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=PATIENCE, check=False,
        stdin=subprocess.DEVNULL,
    )  # fmt: skip


@pytest.mark.usefixtures("place")
@pytest.mark.parametrize(
    ("words", "prog"),
    [
        ("--help", "mrc"),
        ("--version", "mrc"),
        ("schema perf", "mrc schema"),
        ("sim list --json", "mrc sim list"),
        ("testbed plan", "mrc testbed plan"),
        ("completion bash", "mrc completion"),
        ("dissect --verbose capture.pcap", "mrc dissect"),
        ("key", "mrc key"),
    ],
)
def test_output__on_a_full_disk_fails(words: str, prog: str) -> None:
    done = shell(words, ">/dev/full")
    assert done.stderr == f"{prog}: standard output: no space left on device\n"
    assert done.returncode == 1


@pytest.mark.usefixtures("place")
@pytest.mark.default
def test_messages__on_a_full_disk_do_not_change_the_exit_code() -> None:
    assert shell(f"send {shlex.quote(__file__)} 127.0.0.1:1", "2>/dev/full").returncode == 3
    assert shell("send", "2>/dev/full").returncode == 2


@pytest.mark.usefixtures("place")
def test_recv__stores_files_whose_messages_are_lost(tmp_path: Path) -> None:
    source, inbox = tmp_path / "source", tmp_path / "inbox"
    source.write_bytes(_SENT)
    full = ["sh", "-c", 'exec "$@" >/dev/full', "sh"]
    with receiving("--output", inbox, before=full) as (receiver, where):
        done = shell(f"send --json {shlex.quote(str(source))} {where}", "2>/dev/full")
        _, said = receiver.communicate(timeout=PATIENCE)
    assert done.returncode == 0 and (inbox / "source").read_bytes() == _SENT
    last = said.decode().splitlines()[-1]
    assert last.endswith("standard output: no space left on device") and receiver.returncode == 1


_FEW = {(_COMMANDS[0], _CLOSED[3]), (_COMMANDS[2], _CLOSED[1]), (_COMMANDS[5], _CLOSED[0]),
        (_IN_BED[0], _CLOSED[3])}  # fmt: skip


@pytest.mark.usefixtures("place")
@pytest.mark.parametrize(
    ("words", "closed"),
    [
        pytest.param(*each, marks=[] if each in _FEW else [pytest.mark.slow])
        for each in product(_COMMANDS, _CLOSED)
    ],
)
def test_command__with_closed_descriptors(words: str, closed: str) -> None:
    """What is for people goes nowhere."""
    before = [*NAMESPACES, *_MOUNT] if words in _IN_BED else []
    done = shell(words, closed, before)
    assert done.returncode == 0, done
    assert all(line.startswith("mrc ") for line in done.stderr.splitlines()), done
