# SPDX-License-Identifier: Apache-2.0
"""Commands whose n-th call for a descriptor or for memory fails, and whose clock is set.

A first run counts the calls, then seeded draws choose those that fail. The slow tests take all.
"""

from __future__ import annotations

import os
import random
import re
import subprocess
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path

import pytest
from file_commands import MRC, receiving
from hostile.environments import ALL, Calls, Done, ended, run, started
from slowness import PATIENCE

_DATA = bytes(range(256)) * 4096  # one chunk of a transfer, and a mapped file
_KINDS = ("files", "memory")
_LAST = 48  # calls of a command that do not only import


class Place:
    """Folders of one run, and what must be true after it."""

    def __init__(self, folder: Path) -> None:
        self.home = folder / "home"
        self.inbox = folder / "inbox"
        self.source = folder / "source"
        for each in (self.home, self.inbox):
            each.mkdir(parents=True)
        self.source.write_bytes(_DATA)

    def judge(self, done: Done, *, stored: bool) -> None:
        """`stored`: some end has said so. A file has its name only when it is complete."""
        named = [each for each in self.inbox.iterdir() if not each.name.startswith(".")]
        assert [each.name for each in named] in (["source"], []), done
        assert all(each.read_bytes() == _DATA for each in named), done
        assert named or not stored, done


def _sends(place: Place, calls: Calls) -> Done:
    with receiving("--output", place.inbox) as (receiver, where):
        done = run(["send", "--retry", "0", str(place.source), where], calls, place.home)
        receiver.terminate()
    done.judge((0, 1, 3, 6))
    place.judge(done, stored=done.code == 0)
    return done


def _receives(place: Place, calls: Calls) -> Done:
    words = ["recv", "--once", "--port", "0", "--output", str(place.inbox)]
    sent = 1
    with started(words, calls, place.home) as receiver:
        assert receiver.stderr is not None
        said = ""
        for line in receiver.stderr:
            said += line
            if port := re.search(r"TCP port (\d+)", line):
                send = ["send", "--retry", "0", str(place.source), f"127.0.0.1:{port[1]}"]
                sent = subprocess.run([*MRC, *send], capture_output=True, check=False).returncode
                break
        if sent:
            receiver.terminate()  # it may wait for another sender
        done = ended(receiver, calls, said)
    done.judge((0, 1, 3, 6, 143))
    assert sent in (0, 1, 3, 4, 6), (sent, done)
    place.judge(done, stored=sent == 0 or done.code == 0)
    return done


def _runs(words: list[str], place: Place, calls: Calls) -> Done:
    done = run(words, calls, place.home)
    done.judge((0, 1))
    left = [each for each in place.home.rglob("*") if each.is_file()]
    assert all(each.name in ("identity.pem", "secret") for each in left), left
    assert all(each.stat().st_size for each in left), left
    return done


def _makes_a_secret(place: Place, calls: Calls) -> Done:
    return _runs(["key", "--secret", str(place.home / "secret")], place, calls)


def _tests(place: Place, calls: Calls) -> Done:
    """A performance test."""
    server = [*MRC, "perf", "--server", "--port", "0"]
    with subprocess.Popen(server, stderr=subprocess.PIPE, text=True, stdout=-1) as process:
        assert process.stderr is not None
        port = process.stderr.readline().split("TCP port ")[1].partition(",")[0]
        words = ["perf", f"127.0.0.1:{port}", "-n", "1M", "--json"]
        done = run(words, calls, place.home)
        process.terminate()
        process.communicate(timeout=PATIENCE)
    done.judge((0, 1, 3))
    return done


def _looks(place: Place, calls: Calls) -> Done:
    with receiving("--output", place.inbox) as (receiver, where):
        done = run(["paths", where], calls, place.home)
        receiver.terminate()
    done.judge((0, 1, 3))
    return done


Row = Callable[[Place, Calls], Done]
ROWS: dict[str, Row] = {
    "send": _sends,
    "recv": _receives,
    "paths": _looks,
    "perf": _tests,
    "secret": _makes_a_secret,
    "key": partial(_runs, ["key"]),
    "top": partial(_runs, ["top", "--local", "--once", "-i", "0.01"]),
    "doctor": partial(_runs, ["doctor"]),
    "schema": partial(_runs, ["schema", "perf"]),
    "sim": partial(_runs, ["sim", "list"]),
    "plan": partial(_runs, ["testbed", "plan"]),
    "run": partial(_runs, ["run", "--libdir"]),
    "profiles": partial(_runs, ["agent", "profiles"]),
}


@pytest.fixture
def places(tmp_path: Path) -> Iterator[Place]:
    """Fresh folders for each run."""
    return (Place(tmp_path / str(number)) for number in range(1 << 20))


def _sweep(row: str, kind: str, places: Iterator[Place], chosen: Callable[[int], Iterable[int]],
           most: int = 1) -> None:  # fmt: skip
    usual = ROWS[row](next(places), Calls(kind))
    for first in chosen(usual.calls):
        done = ROWS[row](next(places), Calls(kind, first, most))
        assert done.calls >= first or done.code == 0, (first, done)


def _drawn(seed: str, count: int) -> int:
    """One of the last calls: most of the others import modules."""
    return random.Random(seed).randint(max(1, count - _LAST), count)


@pytest.mark.parametrize("kind", _KINDS)
@pytest.mark.parametrize("row", ["send", "recv", "secret"])
def test_call__that_fails(row: str, kind: str, places: Iterator[Place]) -> None:
    _sweep(row, kind, places, lambda count: [_drawn(row + kind, count)])


def test_calls__that_fail_from_one_on(places: Iterator[Place]) -> None:
    """As many open files leave no descriptor for anything else."""
    _sweep("send", "files", places, lambda count: [count - 8], ALL)


@pytest.mark.parametrize("row", ["recv"])
def test_clock__that_is_set_by_a_day(row: str, places: Iterator[Place]) -> None:
    """A day ahead at one call, then a day behind."""
    done = ROWS[row](next(places), Calls("clock", random.Random(row).randint(1, 12)))
    assert done.code == 0


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("kind", _KINDS)
@pytest.mark.parametrize("row", ROWS)
def test_call__each_that_fails(row: str, kind: str, places: Iterator[Place]) -> None:
    """Also with all calls after it. MRC_TEST_STEP=20 takes every twentieth."""
    step = int(os.environ.get("MRC_TEST_STEP", "1"))
    for most in (1, ALL):
        _sweep(row, kind, places, lambda count: range(1, count + 1, step), most)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("row", ROWS)
def test_clock__that_is_set_at_each_call(row: str, places: Iterator[Place]) -> None:
    _sweep(row, "clock", places, lambda count: range(1, count + 1))
