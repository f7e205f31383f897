# SPDX-License-Identifier: Apache-2.0
"""Tries one changed line of the engine: builds mrc._core with it and runs `mrc conform` alone.

A change is noticed, too, if the judge finds that the engine follows other readings with it.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from . import c_source
from .build import Build, DoesNotCompile, run
from .mutants import Mutant
from .trees import MutateError
from .trial import Bench, Outcome

DESCRIBE = """
import json, pathlib, sysconfig
from mrc import _ffi_build
_ffi_build.builder().emit_c_code("build/core_glue.c")
sources = _ffi_build.sources(pathlib.Path("."), _ffi_build.CORE)
print(json.dumps({"include": sysconfig.get_path("include"), "sources": sources}))
"""
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
    return list(document["rule"])


def mutants(file: str, text: str) -> list[Mutant]:
    """The changes of a file that a peer may see."""
    every = rules()
    return [
        mutant
        for mutant in c_source.mutants(file, text)
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
        described = json.loads(run([str(self.python), "-c", DESCRIBE], self.base).splitlines()[-1])
        self.sources = [self.base / name for name in described["sources"]]
        include = [f"-I{described['include']}", f"-I{self.base / 'csrc'}"]
        glue = self.base / "build" / "core_glue"
        run(["gcc", "-O1", "-fPIC", "-w", *include, "-c", f"{glue}.c", "-o", f"{glue}.o"])
        with ThreadPoolExecutor(self.jobs) as pool:
            self.build.includes = dict(pool.map(self.build.included, self.sources))
        self.link({}, self.base)
        told = self.run([str(self.python), "-P", "-c", WHERE], self.base, self.build.folder, 60)
        if not told.output.startswith(str(self.base)):
            raise MutateError(f"the device would run the engine of {told.output}")
        for words in RUNS:
            done = self.run([str(self.python), *words], self.base, self.build.folder, 600)
            if done.code != 0:
                raise MutateError(f"a case fails without a change, repair it first:\n{done.output}")
            self.usual_s[" ".join(words)] = done.seconds
            self.readings[words] = READINGS.findall(done.output)[-1]

    def link(self, changed: dict[str, Path], tree: Path) -> None:
        """Puts mrc._core with the changed objects into a tree."""
        flavour = self.build.cbuild.FAST
        objects = [self.build.object_of(source, changed, flavour) for source in self.sources]
        glue = str(self.base / "build" / "core_glue.o")
        libraries = [*self.build.cbuild._link_flags(flavour), "-pthread", "-ldl"]
        (tree / MODULE).unlink(missing_ok=True)
        run(["gcc", "-shared", "-o", str(tree / MODULE), glue, *objects, *libraries])

    def judge(
        self, mutant: Mutant, tree: Path, original: str, scratch: Path, noticed: Counter[str]
    ) -> Outcome:
        del noticed
        build = self.build
        try:
            if mutant.file.endswith(".c") and build.same_code(tree, mutant.file, original, scratch):
                return Outcome("equivalent")
            objects = build.compile(tree, build.touched(mutant.file), build.cbuild.FAST, scratch)
        except DoesNotCompile:
            return Outcome("invalid")
        self.link(objects, tree)
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
