# SPDX-License-Identifier: Apache-2.0
"""Tries one changed line: builds it in a separate tree and runs tests until one notices it."""

from __future__ import annotations

import os
import queue
import re
import shutil
import signal
import subprocess
import threading
import time
import tomllib
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .build import PARTS, Build, DoesNotCompile, MutateError
from .mutants import Mutant

MIN_LIMIT_S = 20  # long enough for a busy machine
LIMIT_FACTOR = 10  # relative to the time of the same tests without a change
# In the order in which they run, quick ones first. These suites test only csrc/core.
SUITES = ("tests/wire", "tests/models", "tests/sim/test_sweep.py", "tests/sim")
OF_WIRE = {"wire.c", "wire.h", "icrc.c", "icrc.h", "crc32.c", "crc32.h", "base.h"}
# Limits for changed programs: no core files, limited output, limited memory.
SHELL = 'ulimit -c 0; ulimit -f 400000; exec "$@"'
SANITIZER = "hard_rss_limit_mb=2000"

Key = tuple[str, str, str, str]


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of trying a change."""

    status: str  # noticed, survived, invalid (not C), equivalent (the same machine code)
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


def accepted(root: Path) -> dict[Key, str]:
    """The survivors that do not matter, with the reason."""
    document = tomllib.loads((root / "tools" / "mutation" / "accepted.toml").read_text())
    return {key(entry): entry["why"] for entry in document.get("accepted", [])}


def mutant_of(record: dict[str, Any]) -> Mutant:
    return Mutant(**{name: record[name] for name in Mutant.__slots__})


class Bench:
    """The unchanged build, the times of its tests, and a tree for each job."""

    def __init__(self, base: Path, work: Path, jobs: int, python: Path) -> None:
        self.base = base
        self.work = work
        self.jobs = jobs
        self.python = python
        self.build = Build(base, python)
        self.usual_s: dict[str, float] = {}  # program or suite -> its time without a change
        self.trees: queue.Queue[Path] = queue.Queue()
        self.live: set[int] = set()  # process groups
        self.lock = threading.Lock()
        self.killed = False

    def prepare(self, say: Callable[[str], None]) -> None:
        """Builds everything and runs it once without a change."""
        say(f"compiling the unchanged tree in {self.base}")
        self.build.prepare(self.jobs)
        say("running the tests without a change, to measure their time")
        shutil.copy2(self.build.folder / "_sim.abi3.so", self.base / "mrc" / "_sim.abi3.so")
        for program in self.build.programs:
            self.time(program.name, [str(program)], self.base)
        for suite in SUITES:
            self.time(suite, self.pytest(suite), self.base)
        for number in range(self.jobs):
            tree = self.work / f"job-{number}"
            shutil.rmtree(tree, ignore_errors=True)
            shutil.copytree(self.base, tree, ignore=shutil.ignore_patterns("mutate"))
            self.trees.put(tree)

    def time(self, name: str, command: Sequence[str], tree: Path) -> None:
        done = self.run(command, tree, self.build.folder, 600)
        if done.code != 0:
            last = "\n".join(done.output.splitlines()[-15:])
            raise MutateError(f"{name} fails without a change, repair it first:\n{last}")
        self.usual_s[name] = done.seconds

    # ---- one change ------------------------------------------------------------------------------

    def attempt(self, mutant: Mutant, noticed: Counter[str]) -> Outcome:
        """Waits for a free tree, tries the change there, and always restores the line."""
        started = time.monotonic()
        tree = self.trees.get()
        path = tree / mutant.file
        original = path.read_text()
        scratch = tree / "build" / "scratch"
        try:
            shutil.rmtree(scratch, ignore_errors=True)
            scratch.mkdir(parents=True)
            path.write_text(mutant.apply(original))
            outcome = self.judge(mutant, tree, original, scratch, noticed)
        finally:
            path.write_text(original)
            shutil.copy2(self.build.folder / "_sim.abi3.so", tree / "mrc" / "_sim.abi3.so")
            self.trees.put(tree)
        seconds = round(time.monotonic() - started, 1)
        return Outcome(outcome.status, outcome.by, outcome.how, seconds)

    def judge(
        self, mutant: Mutant, tree: Path, original: str, scratch: Path, noticed: Counter[str]
    ) -> Outcome:
        build = self.build
        sources = build.touched(mutant.file)
        try:
            is_source = mutant.file.endswith(".c")
            if is_source and build.same_code(tree, mutant.file, original, scratch):
                return Outcome("equivalent")
            objects = build.compile(tree, sources, build.asan, scratch)
        except DoesNotCompile:
            return Outcome("invalid")
        for part in PARTS:
            if any(source.startswith(f"csrc/{part}/") for source in sources):
                build.link_part(part, objects, scratch)
        for test in (source for source in sources if source.startswith("tests/")):
            build.link_test(build.base / test, objects[test], scratch)
        for program in self.in_order(mutant, noticed):
            if found := self.try_program(program, tree, scratch):
                return found
        if not mutant.file.startswith(("csrc/core/", "csrc/msg/")):
            return Outcome("survived")
        return self.try_suites(mutant, tree, sources, scratch)

    def in_order(self, mutant: Mutant, noticed: Counter[str]) -> Iterable[Path]:
        """First the programs that noticed changes of this file, then the file's own test programs,
        then quick ones.
        """
        stem = Path(mutant.file).stem
        wanted = [p for p in self.build.programs if self.sees(p, mutant.file)]

        def place(program: Path) -> tuple[int, bool, float]:
            own = program.name.startswith(f"test_{stem}")
            return -noticed[f"tests/c/{program.name}.c"], not own, self.usual_s[program.name]

        return sorted(wanted, key=place)

    def sees(self, program: Path, file: str) -> bool:
        part = file.split("/")[1]
        return part in self.build.cbuild.parts([self.base / "tests" / "c" / f"{program.name}.c"])

    def try_program(self, program: Path, tree: Path, scratch: Path) -> Outcome | None:
        """Runs one program of tests/c. A failed test must fail again, because a busy machine can
        cause a failure, too.
        """
        changed = scratch / program.name
        command = [str(changed if changed.exists() else program)]
        done = self.run(command, tree, scratch, self.limit(program.name))
        if done.code == 0:
            return None
        name = culprit(done.output, program, self.base)
        by = f"tests/c/{program.name}.c {name}"
        if done.code is None:
            return Outcome("noticed", by, "time limit")
        again = self.run([*command, name], tree, scratch, self.limit(program.name))
        if again.code == 0:
            return None
        return Outcome("noticed", by, "failed" if done.code == 1 else "died")

    def try_suites(
        self, mutant: Mutant, tree: Path, sources: Sequence[str], scratch: Path
    ) -> Outcome:
        inside = [source for source in sources if source in self.build.sim_sources]
        objects = self.build.compile(tree, inside, self.build.cbuild.FAST, scratch)
        self.build.link_sim(objects, tree / "mrc" / "_sim.abi3.so")
        for suite in SUITES:
            if suite == "tests/wire" and Path(mutant.file).name not in OF_WIRE:
                continue
            done = self.run(self.pytest(suite), tree, scratch, self.limit(suite))
            if done.code != 0:
                by = re.findall(r"^(tests/\S+::\S+)", done.output, re.MULTILINE)
                how = {None: "time limit", 1: "failed"}.get(done.code, "died")
                return Outcome("noticed", by[-1] if by else suite, how)
        return Outcome("survived")

    def limit(self, name: str) -> float:
        return max(MIN_LIMIT_S, LIMIT_FACTOR * self.usual_s[name])

    def pytest(self, suite: str) -> list[str]:
        """The pytest command. It stops at the first failure and prints each test's name first."""
        own = ["-p", "no:cacheprovider", "-x", "-v", "-m", "not slow", "--no-header", "--tb=no"]
        # test_states compares documentation, test_cost counts instructions.
        skip = ["--ignore=tests/models/test_states.py", "--ignore=tests/sim/test_cost.py"]
        if suite == "tests/sim":
            skip.append("--ignore=tests/sim/test_sweep.py")
        return [str(self.python), "-u", "-m", "pytest", suite, *own, *skip]

    # ---- processes -------------------------------------------------------------------------------

    def run(self, command: Sequence[str], tree: Path, first: Path, limit_s: float) -> Done:
        """Runs a command in its own process group. Kills the whole group when the command ends."""
        search = f"{first}:{self.build.folder}"
        environment = {**os.environ, "LD_LIBRARY_PATH": search, "ASAN_OPTIONS": SANITIZER}
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
            self.end(process)
        if self.killed:
            raise KeyboardInterrupt
        return Done(code, output.read_text(errors="replace"), time.monotonic() - started)

    def end(self, process: subprocess.Popen[bytes]) -> None:
        kill_group(process.pid)
        process.wait()
        with self.lock:
            self.live.discard(process.pid)

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


def culprit(output: str, program: Path, base: Path) -> str:
    """The test that failed, or that was running when the program died or was killed."""
    if failed := re.search(r"^FAILED (\w+)$", output, re.MULTILINE):
        return failed[1]
    text = (base / "tests" / "c" / f"{program.name}.c").read_text()
    tests = re.findall(r"\bRUN\((\w+)\)", text)
    ended = set(re.findall(r"^ok (\w+)$", output, re.MULTILINE))
    return next((test for test in tests if test not in ended), "at its end")
