# SPDX-License-Identifier: Apache-2.0
"""Tries one change of Python: runs those tests that run its line, the likely ones first."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest_log

from .mutants import Mutant
from .trial import Bench, Outcome, digest_of

# Tests of the control plane, measured one after the other. Other tests can only find the same.
SUITES = (
    "tests/unit/connect", "tests/unit/aio", "tests/unit/transfer", "tests/unit/agent",
    "tests/unit/test_mailbox.py", "tests/unit/perf", "tests/unit/observe",
    "tests/unit/torch/test_group.py", "tests/netns/test_transfer.py", "tests/netns/test_trust.py",
    "tests/netns/test_copier.py",
    "tests/netns/test_verbs.py", "tests/netns/test_ofi.py", "tests/netns/test_programs.py",
)  # fmt: skip
KINDS = ("connect", "copy", "end", "group")  # of tests/virtual
SEEDS = 12  # of each kind
VIRTUAL = "tests/virtual"
# Seconds of unit tests, seeds and tests with namespaces for one change, without the change.
BUDGETS = {"tests/unit": 25.0, VIRTUAL: 12.0, "tests/netns": 20.0}
READ = {".py", ".c", ".h", ".def", ".toml"}
SETTINGS = Path("tools", "maintainers", "mutation", "coverage.ini")


class PythonBench(Bench):
    """The tests, and which lines each of them runs."""

    lines: dict[str, dict[str, list[int]]]  # test -> file -> its lines

    # ---- measuring -------------------------------------------------------------------------------

    def measure(self, say: Callable[[str], None]) -> None:
        """Runs the tests under coverage. Keeps what it found until a source or these tests change.
        Leaves out tests that fail.
        """
        self.lines = {}
        sources = [p for part in ("csrc", "mrc", "tests") for p in (self.base / part).rglob("*.*")]
        names = sorted(str(path.relative_to(self.base)) for path in sources if path.suffix in READ)
        common = [name for name in names if not re.search(r"/test_\w+\.py$", name)]
        for suite in (*SUITES, *KINDS):
            own = [name for name in names if name.startswith(suite)]
            path = self.work / f"measured-{digest_of(self.base, common + own)[:16]}.json"
            path = path.with_stem(f"{path.stem}-{Path(suite).stem}")
            if not path.exists():
                say(f"running {suite} without a change, to see which lines it runs")
                path.write_text(json.dumps(self.measure_suite(suite, say)))
            for test, found in json.loads(path.read_text()).items():
                self.usual_s[test], self.lines[test] = found

    def measure_suite(self, suite: str, say: Callable[[str], None]) -> dict[str, Any]:
        folder = self.base / "build" / "measure"
        folder.mkdir(parents=True, exist_ok=True)
        for old in folder.glob("coverage*"):
            old.unlink()
        seconds: dict[str, float] = {}
        failed: set[str] = set()
        if suite in KINDS:
            for seed in range(SEEDS):
                test = f"{VIRTUAL} {suite} {seed}"
                traced = ["-m", "coverage", "run", f"--rcfile={SETTINGS}", f"--context={test}"]
                command = [str(self.python), *traced, *self.command([test])[1:]]
                done = self.run(command, self.base, folder, 600)
                seconds[test] = done.seconds
                if done.code != 0:
                    failed.add(test)
            command = [str(self.python), "-m", "coverage", "combine", f"--rcfile={SETTINGS}"]
            self.run(command, self.base, folder, 600)
        else:
            traced = ["-p", "mutation", "--cov", f"--cov-config={SETTINGS}", "--cov-context=test"]
            command = [*self.pytest(), "-vv", "--durations=0", *traced, "--cov-report=", suite]
            done = self.run(command, self.base, folder, 3600)
            found = re.findall(r"^([\d.]+)s (?:call|setup) +(\S.*)$", done.output, re.MULTILINE)
            for each, test in found:
                seconds[test] = seconds.get(test, 0) + float(each)
            failed = set(pytest_log.outcome(done.output).failed)
        for test in failed:
            say(f"{test} fails without a change: left out")
        lines = self.lines_of(folder / "coverage")
        return {
            test: (seconds.get(test, 0.0), ran)
            for test, ran in lines.items()
            if test in seconds and test not in failed
        }

    def lines_of(self, path: Path) -> dict[str, dict[str, list[int]]]:
        """The lines of each test, by file. The programs that a fixture starts serve all the tests
        of their module, so they count for its first one only.
        """
        import coverage

        data = coverage.CoverageData(str(path))
        data.read()
        lines: dict[str, dict[str, list[int]]] = {}
        for file in data.measured_files():
            name = str(Path(file).relative_to(self.base))
            for line, contexts in data.contexts_by_lineno(file).items():
                for test in {test_of(context) for context in contexts}:
                    lines.setdefault(test, {}).setdefault(name, []).append(line)
        return lines

    # ---- one change ------------------------------------------------------------------------------

    def judge(self, mutant: Mutant, tree: Path, original: str, scratch: Path) -> Outcome:
        try:
            compile(mutant.apply(original), mutant.file, "exec")
        except SyntaxError:
            return Outcome("invalid")
        for tests in self.choose(mutant, original):
            if found := self.try_tests(tests, tree, scratch):
                return found
        return Outcome("survived")

    def choose(self, mutant: Mutant, original: str) -> Iterator[list[str]]:
        """The tests that run the change, for one process each: first the file's own, then quick
        ones.
        """
        last = mutant.line + mutant.before.count("\n")
        changed = {*statement(original, mutant.line), *range(mutant.line, last + 1)}
        own = mutant.file.replace("mrc/", "tests/unit/", 1)
        own = own.replace(Path(own).name, f"test_{Path(own).stem.lstrip('_')}")

        def order(test: str) -> tuple[bool, float]:
            return not test.startswith(own), self.usual_s[test]

        touching = [t for t, ran in self.lines.items() if changed & set(ran.get(mutant.file, ()))]
        for kind, budget in BUDGETS.items():
            likely = sorted((test for test in touching if test.startswith(kind)), key=order)
            tests = within(budget, likely, self.usual_s)
            if kind == VIRTUAL:
                yield from ([test] for test in tests)
            elif tests:
                yield tests

    def try_tests(self, tests: list[str], tree: Path, scratch: Path) -> Outcome | None:
        """Runs tests until one fails twice, because a busy machine can cause a failure, too."""
        while tests:
            seconds = [self.usual_s[test] for test in tests]
            each_s = self.limit(max(seconds))
            all_s = self.limit(sum(seconds)) + each_s
            done = self.run(self.command(tests, each_s), tree, scratch, all_s)
            if done.code == 0:
                return None
            named = [test for test in tests if f"{test} " in done.output]
            last = named[-1] if named else tests[0]
            if done.code is None or "from pytest-timeout" in done.output:
                return Outcome("noticed", last, "time limit")
            if done.code == 4:  # no test has this name with the change
                return Outcome("invalid")
            again = self.run(self.command([last], each_s), tree, scratch, all_s)
            if again.code != 0:
                return Outcome("noticed", last, "failed" if done.code in (1, 2) else "died")
            tests = tests[tests.index(last) + 1 :]
        return None

    def command(self, tests: list[str], limit_s: float = 600) -> list[str]:
        if tests[0].startswith(f"{VIRTUAL} "):
            _, kind, seed = tests[0].split()
            return [str(self.python), "-m", "virtual.sweep", kind, seed, "1"]
        return [*self.pytest(), "-x", "-v", "--tb=line", f"--timeout={limit_s:.0f}", *tests]

    def pytest(self) -> list[str]:
        own = ["-p", "no:cacheprovider", "-m", "not slow and not alone", "--no-header", "-n", "0"]
        return [str(self.python), "-u", "-m", "pytest", *own]

    def environment(self, first: Path) -> dict[str, str]:
        """The base gets .pyc files, and so do the trees. Changes have none: a .pyc file knows the
        time of its source in whole seconds only.
        """
        tree = first.parents[1]
        return {
            "PYTHONPATH": f"{tree / 'tests'}:{tree}:{tree / 'tools'}",
            "PYTHONDONTWRITEBYTECODE": "" if tree == self.base else "1",
            "COVERAGE_FILE": str(first / "coverage"),
            "COVERAGE_PROCESS_START": str(tree / SETTINGS),
        }


def test_of(context: str) -> str:
    """The test that a context of coverage names: "NAME|run", or "NAME (call)" in a program."""
    return re.sub(r"\|(?:setup|run|teardown)$| \((?:setup|call|teardown)\)$", "", context)


def within(budget: float, tests: Iterable[str], seconds: Mapping[str, float]) -> list[str]:
    """The first tests that together take no longer than the budget."""
    chosen = []
    for test in tests:
        if seconds[test] <= budget:
            budget -= seconds[test]
            chosen.append(test)
    return chosen


def statement(text: str, line: int) -> range:
    """The lines of the innermost statement around a line, without the statements inside it."""
    lines = range(line, line + 1)
    for node in ast.walk(ast.parse(text)):  # outer ones first
        if isinstance(node, ast.stmt) and node.lineno <= line <= (node.end_lineno or 0):
            inside = getattr(node, "body", None)
            end = inside[0].lineno if inside else (node.end_lineno or 0) + 1
            lines = range(node.lineno, max(end, line + 1))
    return lines
