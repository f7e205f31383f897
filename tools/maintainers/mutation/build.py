# SPDX-License-Identifier: Apache-2.0
"""Compiles the C of a copy of the tree, and the sources that a change affects.

The programs of tests/c are linked once, with one shared library for each folder of csrc. A change
costs one compilation and one link. The new library is in a folder that comes first in the loader's
search path, so an empty folder reverts the change.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from .trees import MutateError

PARTS = (
    "pair",
    "emu",
    "sim",
    "virtual",
    "rc",
    "msg",
    "io",
    "core",
)  # each part before the parts that it uses
DESCRIBE_SIM = """
import json, pathlib, sysconfig
from mrc import _ffi_build
_ffi_build.sim_builder().emit_c_code("build/sim_glue.c")
sources = _ffi_build.sources(pathlib.Path("."), _ffi_build.SIM)
print(json.dumps({"include": sysconfig.get_path("include"), "sources": sources}))
"""


class DoesNotCompile(Exception):
    """The changed line is not valid C."""


def load_cbuild(base: Path) -> Any:
    """The copy's own cbuild, which stores its objects in the copy."""
    spec = importlib.util.spec_from_file_location("cbuild_of_base", base / "tests" / "cbuild.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look up their module there
    spec.loader.exec_module(module)
    return module


class Build:
    """The compiled base: libraries, test programs and mrc._sim."""

    def __init__(self, base: Path, python: Path) -> None:
        self.base = base
        self.python = python
        self.folder = base / "build" / "mutate"
        self.cbuild = load_cbuild(base)
        self.asan = self.cbuild.Flavour("mutate", (*self.cbuild.SANITIZE, "-fPIC"))
        self.programs: list[Path] = []
        self.sim_sources: list[str] = []
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
            self.prepare_sim()
            sources = [p for part in PARTS for p in self.cbuild._sources(part)] + tests
            with ThreadPoolExecutor(jobs) as pool:
                self.includes = dict(pool.map(self.included, sources))
        except (self.cbuild.BuildError, DoesNotCompile) as error:
            raise MutateError(f"the unchanged tree does not compile: {error}") from error

    def prepare_sim(self) -> None:
        said = run([str(self.python), "-c", DESCRIBE_SIM], self.base)
        described = json.loads(said.splitlines()[-1])
        self.sim_sources = described["sources"]
        include = [f"-I{described['include']}", f"-I{self.base / 'csrc'}"]
        glue = self.base / "build" / "sim_glue"
        run(["gcc", "-O2", "-fPIC", "-w", *include, "-c", f"{glue}.c", "-o", f"{glue}.o"])
        self.link_sim({}, self.folder / "_sim.abi3.so")

    # ---- one change ------------------------------------------------------------------------------

    def touched(self, file: str) -> list[str]:
        """The sources to compile again after a change of this file."""
        return [source for source, files in self.includes.items() if file in files]

    def compile(
        self, tree: Path, sources: Sequence[str], flavour: Any, folder: Path
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
        if "-lsim" in names and "-lemu" not in names:
            names.insert(0, "-lemu")
        made = str(changed or self.cbuild._object(test, self.asan))
        search = [f"-L{self.folder}", f"-Wl,-rpath-link,{self.folder}"]
        libraries = [*names, *self.cbuild._link_flags(self.asan)]
        flags = [*self.cbuild.SANITIZE, "-pthread"]
        run(["gcc", *flags, "-o", str(target), made, *search, *libraries])
        return target

    def link_sim(self, changed: dict[str, Path], target: Path) -> None:
        flavour = self.cbuild.FAST
        sources = [self.base / name for name in self.sim_sources]
        objects = [self.object_of(source, changed, flavour) for source in sources]
        glue = self.base / "build" / "sim_glue.o"
        libraries = self.cbuild._link_flags(flavour)
        run(["gcc", "-shared", "-o", str(target), str(glue), *objects, *libraries])

    def object_of(self, source: Path, changed: dict[str, Path], flavour: Any) -> str:
        name = str(source.relative_to(self.base))
        return str(changed.get(name) or self.cbuild._object(source, flavour))

    def flags(self, tree: Path, flavour: Any) -> list[str]:
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
