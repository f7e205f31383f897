# SPDX-License-Identifier: Apache-2.0
"""Tries one changed line of C: builds it and runs tests/c, then tests of the engine in Python, or
`mrc conform` alone.

The judge notices a change, too, if the engine follows other readings with it.
"""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from .mutants import Mutant, of_c
from .trial import Bench, MutateError, Outcome

if TYPE_CHECKING:
    import cbuild

FUZZ = "tests/fuzz/test_fuzz.py::test_target__holds_its_invariant"
# In the order in which they run, quick ones first. These suites test only csrc/core.
SUITES = ("tests/wire", "tests/models", FUZZ, "tests/sim/test_sweep.py", "tests/sim")
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

    def judge(self, mutant: Mutant, tree: Path, original: str, scratch: Path) -> Outcome:
        build = self.build
        sources = build.touched(mutant.file)
        try:
            is_source = mutant.file.endswith(".c")
            if is_source and build.same_code(tree, mutant.file, original, scratch):
                return Outcome("equivalent")
            objects = build.compile(tree, sources, build.asan, scratch)
        except DoesNotCompile:
            return Outcome("invalid")
        parts, tests = to_link(sources)
        for part in parts:
            build.link_part(part, objects, scratch)
        for test in tests:
            build.link_test(build.base / test, objects[test], scratch)
        for program in self.in_order(mutant):
            if found := self.try_program(program, tree, scratch):
                return found
        if not mutant.file.startswith(("csrc/core/", "csrc/msg/")):
            return Outcome("survived")
        return self.try_suites(mutant, tree, sources, scratch)

    def in_order(self, mutant: Mutant) -> list[Path]:
        """The programs that have the file: first the file's own test programs, then quick ones."""
        part, stem = part_of(mutant.file), Path(mutant.file).stem
        tests = self.base / "tests" / "c"
        wanted = [
            program
            for program in self.build.programs
            if part in self.build.cbuild.parts([tests / f"{program.name}.c"])
        ]

        def place(program: Path) -> tuple[bool, float]:
            return not program.name.startswith(f"test_{stem}"), self.usual_s[program.name]

        return sorted(wanted, key=place)

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
        build = self.build
        inside = [source for source in sources if build.base / source in build.sim_sources]
        objects = build.compile(tree, inside, build.cbuild.FAST, scratch)
        build.link_module("sim_builder", build.sim_sources, objects, tree / "mrc/_sim.abi3.so")
        try:
            return self.run_suites(mutant, tree, scratch)
        finally:
            shutil.copy2(build.folder / "_sim.abi3.so", tree / "mrc" / "_sim.abi3.so")

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
        skip = ["--ignore=tests/models/test_states.py"]  # it compares documentation
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


# ---- the build -----------------------------------------------------------------------------------

# Each part before the parts that it uses.
PARTS = ("pair", "sim", "virtual", "rc", "msg", "io", "core")
DESCRIBE = """
import json, pathlib, sys, sysconfig
from mrc import _ffi_build
builder, parts, glue = sys.argv[1:]
getattr(_ffi_build, builder)().emit_c_code(glue)
sources = _ffi_build.sources(pathlib.Path("."), getattr(_ffi_build, parts))
print(json.dumps({"include": sysconfig.get_path("include"), "sources": sources}))
"""


def part_of(file: str) -> str:
    """The part that a file belongs to. Of libmrc, the tests of C have emulated RC alone."""
    part = file.split("/")[1]
    return "rc" if part == "verbs" else part


def to_link(sources: Sequence[str]) -> tuple[list[str], list[str]]:
    """The parts and the test programs that some sources belong to."""
    named = set(map(part_of, sources))
    tests = [source for source in sources if source.startswith("tests/c/")]
    return [part for part in PARTS if part in named], tests


class DoesNotCompile(Exception):
    """The changed line is not valid C."""


class Build:
    """The compiled base: libraries, test programs and mrc._sim."""

    def __init__(self, base: Path, python: Path) -> None:
        self.base = base
        self.python = python
        self.folder = base / "build" / "mutate"
        # The copy's own cbuild stores its objects in the copy.
        spec = importlib.util.spec_from_file_location("cbuild_of_base", base / "tests/cbuild.py")
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module  # dataclasses look up their module there
        spec.loader.exec_module(module)
        if TYPE_CHECKING:  # mypy checks what is used of it
            self.cbuild = cbuild
        else:
            self.cbuild = module
        self.asan = self.cbuild.Flavour("mutate", (*self.cbuild.SANITIZE, "-fPIC"))
        self.programs: list[Path] = []
        self.sim_sources: list[Path] = []
        self.includes: dict[str, frozenset[str]] = {}  # source -> includes, relative to the base
        self.code: dict[Path, bytes] = {}  # source in a tree -> its machine code without a change

    def prepare(self, jobs: int) -> None:
        """Compiles everything that is not compiled yet. Raises MutateError."""
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.base / "build" / "home").mkdir(exist_ok=True)
        every = sorted((self.base / "tests" / "c").glob("test_*.c"))
        tests = [test for test in every if set(PARTS).issuperset(self.cbuild.parts([test]))]
        try:
            self.cbuild.build_ahead((test, self.asan) for test in tests)
            for part in PARTS:
                self.link_part(part, {}, self.folder)
            with ThreadPoolExecutor(jobs) as pool:
                self.programs = list(pool.map(lambda test: self.link_test(test, None), tests))
            self.sim_sources = self.module("sim_builder", "SIM")
            self.link_module("sim_builder", self.sim_sources, {}, self.folder / "_sim.abi3.so")
            sources = [p for part in PARTS for p in self.cbuild._sources(part)] + tests
            with ThreadPoolExecutor(jobs) as pool:
                self.includes = dict(pool.map(self.included, sources))
        except (self.cbuild.BuildError, DoesNotCompile) as error:
            raise MutateError(f"the unchanged tree does not compile: {error}") from error

    def module(self, builder: str, parts: str) -> list[Path]:
        """Compiles the part of a module of mrc that cffi writes. Returns the other sources."""
        glue = self.base / "build" / f"{builder}_glue"
        said = run([str(self.python), "-c", DESCRIBE, builder, parts, f"{glue}.c"], self.base)
        described = json.loads(said.splitlines()[-1])
        include = [f"-I{described['include']}", f"-I{self.base / 'csrc'}"]
        run(["gcc", "-O2", "-fPIC", "-w", *include, "-c", f"{glue}.c", "-o", f"{glue}.o"])
        return [self.base / name for name in described["sources"]]

    # ---- one change ------------------------------------------------------------------------------

    def touched(self, file: str) -> list[str]:
        """The sources to compile again after a change of this file."""
        return [source for source, files in self.includes.items() if file in files]

    def compile(
        self, tree: Path, sources: Sequence[str], flavour: cbuild.Flavour, folder: Path
    ) -> dict[str, Path]:
        """Objects of some sources of a tree, by source."""
        objects = {}
        for source in sources:
            target = folder / f"{source.replace('/', '-')}-{flavour.name}.o"
            command = ["gcc", *self.flags(tree, flavour), "-c", str(tree / source)]
            run([*command, "-o", str(target)])
            objects[source] = target
        return objects

    def same_code(self, tree: Path, source: str, original: str, folder: Path) -> bool:
        """Whether the changed source compiles to the same machine code as the original."""
        flags = [*self.flags(tree, self.cbuild.FAST), "-g0", "-c", str(tree / source)]
        target = folder / "code.o"
        run(["gcc", *flags, "-o", str(target)])
        changed = target.read_bytes()
        path = tree / source  # assertions mention it, so each tree has its own code
        if path not in self.code:
            text = path.read_text()
            path.write_text(original)
            run(["gcc", *flags, "-o", str(target)])
            path.write_text(text)
            self.code[path] = target.read_bytes()
        return changed == self.code[path]

    def link_part(self, part: str, changed: dict[str, Path], folder: Path) -> None:
        """Links lib<part>.so, with changed objects instead of the base's."""
        sources = self.cbuild._sources(part)
        objects = [self.object_of(source, changed, self.asan) for source in sources]
        flags = [*self.cbuild.SANITIZE, "-shared", "-pthread"]
        libraries = self.cbuild._link_flags(self.asan)
        run(["gcc", *flags, "-o", str(folder / f"lib{part}.so"), *objects, *libraries])

    def link_test(self, test: Path, changed: Path | None, folder: Path | None = None) -> Path:
        target = (folder or self.folder) / test.stem
        names = [f"-l{part}" for part in self.cbuild.parts([test])]
        if "-lmsg" in names and "-lio" not in names:  # messages.c needs it, and a library is whole
            names.insert(names.index("-lmsg") + 1, "-lio")
        made = str(changed or self.cbuild._object(test, self.asan))
        search = [f"-L{self.folder}", f"-Wl,-rpath-link,{self.folder}"]
        libraries = [*names, *self.cbuild._link_flags(self.asan)]
        flags = [*self.cbuild.SANITIZE, "-pthread"]
        run(["gcc", *flags, "-o", str(target), made, *search, *libraries])
        return target

    def link_module(
        self, builder: str, sources: list[Path], changed: dict[str, Path], target: Path
    ) -> None:
        """Links a module of mrc, with changed objects instead of the base's."""
        flavour = self.cbuild.FAST
        objects = [self.object_of(source, changed, flavour) for source in sources]
        glue = str(self.base / "build" / f"{builder}_glue.o")
        libraries = [*self.cbuild._link_flags(flavour), "-pthread", "-ldl"]
        target.unlink(missing_ok=True)
        run(["gcc", "-shared", "-o", str(target), glue, *objects, *libraries])

    def object_of(self, source: Path, changed: dict[str, Path], flavour: cbuild.Flavour) -> str:
        name = str(source.relative_to(self.base))
        return str(changed.get(name) or self.cbuild._object(source, flavour))

    def flags(self, tree: Path, flavour: cbuild.Flavour) -> list[str]:
        """cbuild's flags for another tree, without warnings, which changed lines may cause."""
        own = self.cbuild._flags(flavour)
        return [*(flag.replace(str(self.base), str(tree)) for flag in own), "-w"]

    def included(self, source: Path) -> tuple[str, frozenset[str]]:
        text = run(["gcc", *self.flags(self.base, self.asan), "-MM", str(source)])
        paths = [Path(word).resolve() for word in text.replace("\\\n", " ").split()[1:]]
        inside = [path for path in paths if path.is_relative_to(self.base)]
        name = str(source.relative_to(self.base))
        return name, frozenset(str(path.relative_to(self.base)) for path in inside)


def run(command: Sequence[str], folder: Path | None = None) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder)
    if done.returncode != 0:
        raise DoesNotCompile(done.stderr.strip()[-500:])
    return done.stdout


# ---- by the judge of conformance -----------------------------------------------------------------

RUN = ("-m", "mrc", "conform", "run", "--first", "--wait", "0.5", "--seed", "1")
RUNS: tuple[tuple[str, ...], ...] = (
    RUN,
    (*RUN, "--address", "::1"),
    (*RUN, "--reading", "C3-B", "--reading", "C4-A", "--reading", "S5-B", "--reading", "S8-B"),
)
"""Of two planes, of IPv6, and of the other readings."""
READINGS = re.compile(r"^agrees with readings? .*", re.MULTILINE)
WHERE = "import mrc; print(mrc.__file__)"  # as the device imports it
MODULE = Path("mrc", "_core.abi3.so")


def rules() -> list[dict[str, str]]:
    """What no peer can see, or is no part of the protocol."""
    document = tomllib.loads((Path(__file__).parent / "conform.toml").read_text())
    kinds = ("before", "after", "function")
    return [*({kind: each} for kind in kinds for each in document[kind]), *document["rule"]]


def seen_by_peers(file: str, text: str) -> list[Mutant]:
    """The changes of a file that a peer may see."""
    every = rules()
    return [
        mutant
        for mutant in of_c(file, text)
        if not any(is_excluded(mutant, rule) for rule in every)
    ]


def is_excluded(mutant: Mutant, rule: dict[str, str]) -> bool:
    """Whether all regular expressions of a rule match."""
    return all(
        re.search(pattern, getattr(mutant, name).strip())
        for name, pattern in rule.items()
        if name != "why"
    )


class ConformBench(Bench):
    """The unchanged module, and the time of all cases."""

    def __init__(self, base: Path, work: Path, jobs: int, python: Path) -> None:
        super().__init__(base, work, jobs, python)
        self.build = Build(base, python)
        self.sources: list[Path] = []
        self.readings: dict[tuple[str, ...], str] = {}

    def measure(self, say: Callable[[str], None]) -> None:
        say(f"compiling the unchanged tree in {self.base}")
        self.build.folder.mkdir(parents=True, exist_ok=True)
        self.sources = self.build.module("builder", "CORE")
        with ThreadPoolExecutor(self.jobs) as pool:
            self.build.includes = dict(pool.map(self.build.included, self.sources))
        self.build.link_module("builder", self.sources, {}, self.base / MODULE)
        told = self.run([str(self.python), "-P", "-c", WHERE], self.base, self.build.folder, 60)
        if not told.output.startswith(str(self.base)):
            raise MutateError(f"the device would run the engine of {told.output}")
        for words in RUNS:
            done = self.run([str(self.python), *words], self.base, self.build.folder, 600)
            if done.code != 0:
                raise MutateError(f"a case fails without a change, repair it first:\n{done.output}")
            self.usual_s[" ".join(words)] = done.seconds
            self.readings[words] = READINGS.findall(done.output)[-1]

    def judge(self, mutant: Mutant, tree: Path, original: str, scratch: Path) -> Outcome:
        build = self.build
        try:
            if mutant.file.endswith(".c") and build.same_code(tree, mutant.file, original, scratch):
                return Outcome("equivalent")
            objects = build.compile(tree, build.touched(mutant.file), build.cbuild.FAST, scratch)
        except DoesNotCompile:
            return Outcome("invalid")
        build.link_module("builder", self.sources, objects, tree / MODULE)
        for words in RUNS:
            seen = self.noticed(words, tree, scratch)
            if seen is not None and self.noticed(words, tree, scratch) is not None:
                return seen  # twice: a busy machine can make a case fail
        return Outcome("survived")

    def noticed(self, words: tuple[str, ...], tree: Path, scratch: Path) -> Outcome | None:
        """What one run of the cases finds."""
        limit = self.limit(self.usual_s[" ".join(words)])
        done = self.run([str(self.python), *words], tree, scratch, limit)
        if done.code == 0:
            if READINGS.findall(done.output)[-1] == self.readings[words]:
                return None
            return Outcome("noticed", "mrc/conform/cases/readings", "other readings")
        found = re.search(r"^failed +(\S+) +(\S+?):? ", done.output, re.MULTILINE)
        by = f"mrc/conform/cases/{found[1]}.case {found[2]}" if found else "mrc/conform"
        return Outcome("noticed", by, {None: "time limit", 1: "failed"}.get(done.code, "died"))
