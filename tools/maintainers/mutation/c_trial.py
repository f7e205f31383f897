# SPDX-License-Identifier: Apache-2.0
"""Tries one changed line of C: builds it and runs tests/c, then tests of the engine in Python."""

from __future__ import annotations

import re
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from .build import PARTS, Build, DoesNotCompile
from .mutants import Mutant
from .trees import MutateError
from .trial import Bench, Outcome

# In the order in which they run, quick ones first. These suites test only csrc/core.
SUITES = ("tests/wire", "tests/models", "tests/sim/test_sweep.py", "tests/sim")
OF_WIRE = {"wire.c", "wire.h", "crc.c", "crc.h", "base.h"}
SANITIZER = "hard_rss_limit_mb=2000"


class CBench(Bench):
    """The unchanged build, and the times of its tests."""

    def __init__(self, base: Path, work: Path, jobs: int, python: Path) -> None:
        super().__init__(base, work, jobs, python)
        self.build = Build(base, python)

    def measure(self, say: Callable[[str], None]) -> None:
        say(f"compiling the unchanged tree in {self.base}")
        self.build.prepare(self.jobs)
        say("running the tests without a change, to measure their time")
        shutil.copy2(self.build.folder / "_sim.abi3.so", self.base / "mrc" / "_sim.abi3.so")
        for program in self.build.programs:
            self.time(program.name, [str(program)], self.base)
        for suite in SUITES:
            self.time(suite, self.pytest(suite), self.base)

    def time(self, name: str, command: Sequence[str], tree: Path) -> None:
        done = self.run(command, tree, self.build.folder, 600)
        if done.code != 0:
            last = "\n".join(done.output.splitlines()[-15:])
            raise MutateError(f"{name} fails without a change, repair it first:\n{last}")
        self.usual_s[name] = done.seconds

    def environment(self, first: Path) -> dict[str, str]:
        search = f"{first}:{self.build.folder}"
        return {"LD_LIBRARY_PATH": search, "ASAN_OPTIONS": SANITIZER}

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
        done = self.run(command, tree, scratch, self.limit(self.usual_s[program.name]))
        if done.code == 0:
            return None
        name = culprit(done.output, program, self.base)
        by = f"tests/c/{program.name}.c {name}"
        if done.code is None:
            return Outcome("noticed", by, "time limit")
        again = self.run([*command, name], tree, scratch, self.limit(self.usual_s[program.name]))
        if again.code == 0:
            return None
        return Outcome("noticed", by, "failed" if done.code == 1 else "died")

    def try_suites(
        self, mutant: Mutant, tree: Path, sources: Sequence[str], scratch: Path
    ) -> Outcome:
        inside = [source for source in sources if source in self.build.sim_sources]
        objects = self.build.compile(tree, inside, self.build.cbuild.FAST, scratch)
        self.build.link_sim(objects, tree / "mrc" / "_sim.abi3.so")
        try:
            return self.run_suites(mutant, tree, scratch)
        finally:
            shutil.copy2(self.build.folder / "_sim.abi3.so", tree / "mrc" / "_sim.abi3.so")

    def run_suites(self, mutant: Mutant, tree: Path, scratch: Path) -> Outcome:
        for suite in SUITES:
            if suite == "tests/wire" and Path(mutant.file).name not in OF_WIRE:
                continue
            done = self.run(self.pytest(suite), tree, scratch, self.limit(self.usual_s[suite]))
            if done.code != 0:
                by = re.findall(r"^(tests/\S+::\S+)", done.output, re.MULTILINE)
                how = {None: "time limit", 1: "failed"}.get(done.code, "died")
                return Outcome("noticed", by[-1] if by else suite, how)
        return Outcome("survived")

    def pytest(self, suite: str) -> list[str]:
        """The pytest command. It stops at the first failure and prints each test's name first."""
        own = ["-p", "no:cacheprovider", "-x", "-v", "-m", "not slow", "--no-header", "--tb=no"]
        # test_states compares documentation, test_cost counts instructions.
        skip = ["--ignore=tests/models/test_states.py", "--ignore=tests/sim/test_cost.py"]
        if suite == "tests/sim":
            skip.append("--ignore=tests/sim/test_sweep.py")
        return [str(self.python), "-u", "-m", "pytest", suite, *own, *skip]


def culprit(output: str, program: Path, base: Path) -> str:
    """The test that failed, or that was running when the program died or was killed."""
    if failed := re.search(r"^FAILED (\w+)$", output, re.MULTILINE):
        return failed[1]
    text = (base / "tests" / "c" / f"{program.name}.c").read_text()
    tests = re.findall(r"^(?:TEST|MORE|SLOW)\((\w+)\)", text, re.MULTILINE)
    ended = set(re.findall(r"^ok (\w+)$", output, re.MULTILINE))
    return next((test for test in tests if test not in ended), "at its end")
