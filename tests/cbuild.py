# SPDX-License-Identifier: Apache-2.0
"""Compiles C for tests and benchmarks: objects, archives, programs, libraries under build/tests.

Results are cached by content: the core is compiled once for all programs, and a second run compiles
nothing. Several test runs may build at once: each result is built once, and gets its name only when
it is complete.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import os
import re
import runpy
import shutil
import subprocess
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CSRC = ROOT / "csrc"
TESTS = ROOT / "tests"
BUILD = ROOT / "build" / "tests"

# The flags that decide what C means are those of the shipped modules. Sanitizers show line numbers
# only; full -g takes a quarter longer to compile.
LANGUAGE = runpy.run_path(str(ROOT / "mrc" / "_ffi_build.py"))["LANGUAGE"]
COMMON = (*LANGUAGE, "-g1", "-pthread", "-Wall", "-Wextra", "-Werror", "-Wshadow")
SANITIZE = ("-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
# For two threads of one program: only the thread sanitizer detects races.
THREAD = ("-O1", "-fsanitize=thread")


@dataclass(frozen=True, slots=True)
class Flavour:
    """One way to compile everything."""

    name: str  # directory under build/tests
    flags: tuple[str, ...]
    isal: bool = True  # CRC-32 from ISA-L where it is installed, else from zlib
    compiler: str = "gcc"
    archiver: str = "gcc-ar"


ASAN = Flavour("asan", SANITIZE)
TSAN = Flavour("tsan", THREAD)
FAST = Flavour("fast", ("-O2", "-fPIC"))  # also in libraries
SHIPPED = Flavour("shipped", ("-O3", "-flto=auto"))  # as mrc/_ffi_build.py compiles the engine
# A sanitizer's runtime cannot be loaded into Python: undefined behaviour traps instead.
SHARED_TRAP = Flavour(
    "shared-trap",
    ("-O1", "-fPIC", "-fsanitize=undefined", "-fsanitize-undefined-trap-on-error"),
)
SHARED_ZLIB = Flavour("shared-zlib", ("-O2", "-fPIC"), isal=False)


class BuildError(Exception):
    """A command failed; the message holds the command and its output."""


def has_isal(flavour: Flavour = ASAN) -> bool:
    """Whether ISA-L is installed, so that the ICRC can come from it."""
    return has_header("isa-l/crc.h", flavour)


@functools.cache
def has_header(name: str, flavour: Flavour = ASAN) -> bool:
    """Whether the flavour's compiler finds a header."""
    probe = subprocess.run(
        [flavour.compiler, *flavour.flags, "-E", "-x", "c", "-"],
        input=f"#include <{name}>\n",
        capture_output=True,
        text=True,
        check=False,
    )
    return probe.returncode == 0


@functools.cache
def libfuzzer() -> Flavour:
    """The flavour of a libFuzzer target; raises BuildError when clang or its runtime is missing."""
    names = ["clang", *(f"clang-{version}" for version in range(30, 10, -1))]
    clang = next((name for name in names if shutil.which(name)), None)
    install = "apt-get install clang libclang-rt-dev"
    if clang is None:
        raise BuildError(f"clang is not installed: {install}")
    flags = ("-O1", "-fno-omit-frame-pointer", "-fsanitize=fuzzer,address,undefined")
    empty = "int LLVMFuzzerTestOneInput(const char *input, unsigned long n) { return !input * !n; }"
    probe = [clang, *flags, "-x", "c", "-", "-o", os.devnull]
    done = subprocess.run(probe, input=empty, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise BuildError(f"{clang} has no fuzzer: {install}\n{done.stderr}")
    return Flavour("libfuzzer", (*flags, "-fno-sanitize-recover=all"), compiler=clang)


def program(source: Path, flavour: Flavour = ASAN, extra: Sequence[Path] = ()) -> Path:
    """Compiles and links a C file with a main (and `extra` sources) with the parts it includes."""
    sources = [source, *extra]
    objects = [_object(path, flavour) for path in sources]
    libraries = [_archive(part, flavour) for part in parts(sources)]
    return _link(source.stem, objects + libraries, flavour, "bin", ())


def build_ahead(programs: Iterable[tuple[Path, Flavour]]) -> None:
    """Compiles and links many programs on all cores. program() raises the errors later."""

    def attempt(build: Callable[..., Path], *arguments: object) -> None:
        with contextlib.suppress(BuildError):
            build(*arguments)

    programs = list(programs)
    used = {(part, flavour) for source, flavour in programs for part in parts([source])}
    objects = [*programs, *((path, flavour) for part, flavour in used for path in _sources(part))]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(lambda each: attempt(_object, *each), objects))
        for each in used:
            attempt(_archive, *each)
        list(pool.map(lambda each: attempt(program, *each), programs))


def shared_library(sources: Iterable[Path], name: str, flavour: Flavour = FAST) -> Path:
    """Links C files into lib<name>.so."""
    objects = _objects(sources, flavour)
    return _link(f"lib{name}.so", objects, flavour, "lib", ("-shared",))


def _sources(part: str) -> list[Path]:
    if part == "rc":  # the rest of libmrc needs rdma-core's headers
        return [CSRC / "verbs/rc.c"]
    return sorted(((TESTS if part == "pair" else CSRC) / part).rglob("*.c"))


def parts(sources: Sequence[Path]) -> list[str]:
    """The parts to link, users before the parts they use: folders of csrc, emulated RC,
    and the tests' pair.
    """
    named = {part for path in sources for part in _named_parts(path)}
    return [*(part for part in _SIGNS if part in named), "core"]


_SIGNS = {
    "ofi": r'^#include "ofi/',
    "rc": r'^#include "verbs/rc\.h"',
    "msg": r'^#include "msg/',
    "io": r'^#include "io/|\bmrc_ctx_create\(',
    "pair": r'^#include "pair/',
    "sim": r'^#include "sim/',
    "virtual": r'^#include "(virtual|sim|pair)/',
}


@functools.cache
def _named_parts(source: Path) -> frozenset[str]:
    """The parts that a file, or a header beside it that it includes, names."""
    text = source.read_text()
    named = {part for part, sign in _SIGNS.items() if re.search(sign, text, re.MULTILINE)}
    for name in re.findall(r'^#include "(\w+\.h)"', text, re.MULTILINE):
        if (header := source.with_name(name)).exists():
            named |= _named_parts(header)
    return frozenset(named)


def _flags(flavour: Flavour) -> list[str]:
    isal = ["-DMRC_HAVE_ISAL=1"] if flavour.isal and has_isal(flavour) else []
    return [*COMMON, *flavour.flags, *isal, *(f"-I{path}" for path in (CSRC, TESTS / "c", TESTS))]


def _link_flags(flavour: Flavour) -> list[str]:
    return ["-lisal" if flavour.isal and has_isal(flavour) else "-l:libz.so.1"]


def _key(flags: Iterable[str], *parts: bytes) -> str:
    digest = hashlib.sha256("\0".join(flags).encode())
    for part in parts:
        digest.update(hashlib.sha256(part).digest())
    return digest.hexdigest()[:16]


@functools.cache
def _headers_digest() -> bytes:
    files = (p for place in (CSRC, TESTS, ROOT / "bench") for p in place.rglob("*"))
    headers = sorted(p for p in files if p.suffix in (".h", ".def"))
    return hashlib.sha256(b"\0".join(p.read_bytes() for p in headers)).digest()


@functools.cache
def _object(source: Path, flavour: Flavour) -> Path:
    flags = _flags(flavour)
    if flavour in (ASAN, TSAN) and source.parent == TESTS / "c":
        flags.append("-O0")  # what tests do besides calling csrc takes no time
    key = _key(flags, source.read_bytes(), _headers_digest())
    target = BUILD / flavour.name / "obj" / f"{source.stem}-{key}.o"
    _make(target, [flavour.compiler, *flags, "-c", str(source), "-o"])
    return target


def _objects(sources: Iterable[Path], flavour: Flavour) -> list[Path]:
    """Compiles the sources on all cores."""
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return list(pool.map(lambda source: _object(source, flavour), sources))


@functools.cache
def _archive(part: str, flavour: Flavour) -> Path:
    objects = _objects(_sources(part), flavour)
    key = _key([str(path) for path in objects])
    target = BUILD / flavour.name / "lib" / f"lib{part}-{key}.a"
    if not target.exists():
        _make(target, [flavour.archiver, "rcs"], [str(path) for path in objects])
    return target


def _link(
    name: str, objects: Sequence[Path], flavour: Flavour, folder: str, mode: tuple[str, ...]
) -> Path:
    flags = [*_flags(flavour), *mode]
    inputs = [str(path) for path in objects]
    # The name is fixed, so it can be run by hand; the key file beside it shows whether it is stale.
    target = BUILD / flavour.name / folder / name
    keyed = target.with_name(f".{name}-{_key(flags, *(i.encode() for i in inputs))}")
    if not keyed.exists():
        libraries = [*inputs, *_link_flags(flavour)]
        _make(keyed, [flavour.compiler, *flags, "-o"], libraries)
    if not target.exists() or not target.samefile(keyed):
        temporary = target.with_name(f"{target.name}.{os.getpid()}")
        os.link(keyed, temporary)
        os.replace(temporary, target)
    return keyed


def _make(target: Path, command: Sequence[str], inputs: Sequence[str] = ()) -> None:
    """Runs `command TEMPORARY inputs...` and renames the result, unless it is there already."""
    if target.exists():
        return
    if shutil.which(command[0]) is None:
        raise BuildError(f"{command[0]} is not installed: apt-get install {command[0]}")
    target.parent.mkdir(parents=True, exist_ok=True)
    with _locked(target):
        if target.exists():
            return
        temporary = target.with_name(f"{target.name}.{os.getpid()}.tmp")
        full = [*command, str(temporary), *inputs]
        done = subprocess.run(full, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            temporary.unlink(missing_ok=True)
            raise BuildError(f"{' '.join(full)}\n{done.stderr}")
        os.replace(temporary, target)


@contextlib.contextmanager
def _locked(target: Path) -> Iterator[None]:
    """Other processes that need this result too wait for it."""
    path = target.with_name(f".{target.name}.lock")
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
        path.unlink(missing_ok=True)  # the result exists, so later ones need no lock
