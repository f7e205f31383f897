# SPDX-License-Identifier: Apache-2.0
"""Tries one change: applies it in a copy of the tree and runs tests until one notices it.

`c_trial` and `python_trial` know which tests.
"""

from __future__ import annotations

import hashlib
import os
import queue
import shutil
import signal
import subprocess
import threading
import time
import tomllib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from project_text import sources

from .mutants import Mutant

MIN_LIMIT_S = 20  # long enough for a busy machine
LIMIT_FACTOR = 10  # relative to the time of the same tests without a change
# Limits for changed programs: no core files, limited output.
SHELL = 'ulimit -c 0; ulimit -f 400000; exec "$@"'

Key = tuple[str, str, str, str]


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of trying a change."""

    status: str  # noticed, survived, invalid (does not compile), equivalent
    by: str | None = None  # the test that noticed
    how: str | None = None  # failed, died, or time limit
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Done:
    """The end of a command. `code` is None if it reached its time limit."""

    code: int | None
    output: str
    seconds: float


def key(record: dict[str, Any]) -> Key:
    """The key of an accepted survivor. Its line may move within its function, but not change."""
    return record["file"], record["function"], record["before"].strip(), record["after"].strip()


def accepted(root: Path, name: str = "accepted.toml") -> dict[Key, str]:
    """The survivors that do not matter, with the reason."""
    document = tomllib.loads((root / "tools" / "maintainers" / "mutation" / name).read_text())
    return {
        (file, function, entry["before"].strip(), entry["after"].strip()): entry["why"]
        for file, functions in document["accepted"].items()
        for function, entries in functions.items()
        for entry in entries
    }


class Bench(ABC):
    """The unchanged tree, the times of its tests, and a tree for each job."""

    def __init__(self, base: Path, work: Path, jobs: int, python: Path) -> None:
        self.base = base
        self.work = work
        self.jobs = jobs
        self.python = python
        self.usual_s: dict[str, float] = {}  # test -> its time without a change
        self.trees: queue.Queue[Path] = queue.Queue()
        self.live: set[int] = set()  # process groups
        self.lock = threading.Lock()
        self.killed = False

    @abstractmethod
    def measure(self, say: Callable[[str], None]) -> None:
        """Runs the tests of the base once without a change. Raises MutateError."""

    @abstractmethod
    def judge(self, mutant: Mutant, tree: Path, original: str, scratch: Path) -> Outcome:
        """Runs tests in a tree with the change."""

    def environment(self, first: Path) -> dict[str, str]:
        """The variables that a command needs; `first` is its own folder."""
        return {}

    def prepare(self, say: Callable[[str], None]) -> None:
        """Measures the tests and makes the trees."""
        self.measure(say)
        for number in range(self.jobs):
            tree = self.work / f"job-{number}"
            shutil.rmtree(tree, ignore_errors=True)
            shutil.copytree(self.base, tree, ignore=shutil.ignore_patterns("mutate"))
            self.trees.put(tree)

    def attempt(self, mutant: Mutant) -> Outcome:
        """Waits for a free tree, tries the change there, and always restores the lines."""
        started = time.monotonic()
        tree = self.trees.get()
        path = tree / mutant.file
        original = path.read_text()
        scratch = tree / "build" / "scratch"
        try:
            shutil.rmtree(scratch, ignore_errors=True)
            scratch.mkdir(parents=True)
            path.write_text(mutant.apply(original))
            outcome = self.judge(mutant, tree, original, scratch)
        finally:
            path.write_text(original)
            self.trees.put(tree)
        seconds = round(time.monotonic() - started, 1)
        return Outcome(outcome.status, outcome.by, outcome.how, seconds)

    def limit(self, usual_s: float) -> float:
        return max(MIN_LIMIT_S, LIMIT_FACTOR * usual_s)

    # ---- processes -------------------------------------------------------------------------------

    def run(self, command: Sequence[str], tree: Path, first: Path, limit_s: float) -> Done:
        """Runs a command in its own process group. Kills the whole group when the command ends."""
        # Processes of mrc import nothing from the current folder.
        environment = {**os.environ, "PYTHONPATH": str(tree), **self.environment(first)}
        output = first / "output"
        started = time.monotonic()
        with output.open("w") as file, self.lock:
            if self.killed:
                raise KeyboardInterrupt
            process = subprocess.Popen(
                ["sh", "-c", SHELL, "sh", *command], stdout=file, stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL, cwd=tree, env=environment, start_new_session=True,
            )  # fmt: skip
            self.live.add(process.pid)
        code: int | None
        try:
            code = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            kill_group(process.pid)
            process.wait()
            with self.lock:
                self.live.discard(process.pid)
        if self.killed:
            raise KeyboardInterrupt
        return Done(code, output.read_text(errors="replace"), time.monotonic() - started)

    def kill(self) -> None:
        """Kills all running commands, so that the threads that wait for them end, too."""
        with self.lock:
            self.killed = True
            for group in self.live:
                kill_group(group)


def kill_group(group: int) -> None:
    try:
        os.killpg(group, signal.SIGKILL)
    except ProcessLookupError:
        pass  # the whole group has ended


# ---- trees ---------------------------------------------------------------------------------------

COPIED = ("csrc", "mrc", "tests", "tools", "bench", "pyproject.toml", "setup.py", "README.md")


class MutateError(Exception):
    """No change can be tried; the message has the cause."""


def snapshot(root: Path, work: Path, folders: tuple[str, ...]) -> Path:
    """Makes a copy of the tree, with the compiled modules. If these folders have changed since the
    last run, deletes its results.
    """
    names = sorted(str(path.relative_to(root)) for path in (root / "mrc").rglob("*.so*"))
    names += [str(path) for path in sources() if path.parts[0] in COPIED]
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


def digest_of(root: Path, names: Iterable[str]) -> str:
    """A digest of the names and the content of these files."""
    digest = hashlib.sha256()
    for name in names:
        digest.update(name.encode() + b"\0" + (root / name).read_bytes())
    return digest.hexdigest()
