# SPDX-License-Identifier: Apache-2.0
"""Builds and runs tests/c/test_*.c under the sanitizers: each C test function is a result here.

Programs that include csrc/io, or what has threads in csrc/sim, also run under the thread sanitizer.
"""

from __future__ import annotations

import functools
import os
import re
import subprocess
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cbuild
import pytest
from slowness import PATIENCE

HERE = Path(__file__).parent

PARAMETERS = ("source", "name", "flavour")
MARKS: dict[str, list[pytest.MarkDecorator]] = {
    "TEST": [],
    "MORE": [pytest.mark.more],
    "SLOW": [pytest.mark.slow],
}
Program = tuple[Path, cbuild.Flavour]


def functions() -> list[object]:
    """(file, function, flavour) for every function of every file."""
    return [
        pytest.param(
            source,
            name,
            flavour,
            id=f"{source.stem}-{name}-{flavour.name}",
            marks=[*lacks(source), *MARKS[kind]],
        )
        for source in sorted(HERE.glob("test_*.c"))
        for kind, name in re.findall(r"^(TEST|MORE|SLOW)\((\w+)\)", source.read_text(), re.M)
        for flavour in flavours(source)
    ]


def lacks(source: Path) -> list[pytest.MarkDecorator]:
    if "ofi" not in cbuild.parts([source]) or cbuild.has_header("rdma/fabric.h"):
        return []
    return [pytest.mark.skip(reason="needs libfabric: apt-get install libfabric-dev")]


def flavours(source: Path) -> list[cbuild.Flavour]:
    return [cbuild.ASAN, cbuild.TSAN] if has_threads(source) else [cbuild.ASAN]


def has_threads(source: Path) -> bool:
    if re.search(r'^#include "sim/(shards|emu)\.h"', source.read_text(), re.M):
        return True
    return "io" in cbuild.parts([source])


@dataclass(frozen=True, slots=True)
class Ended:
    """How one test function ended."""

    code: int
    text: str  # what it printed

    @property
    def passed(self) -> bool:
        return self.code == 0 and self.text.endswith("1 passed, 0 failed\n")


Outcomes = Callable[[], dict[str, Ended]]
"""Waits for the results of a program's functions, by name."""


def run(source: Path, flavour: cbuild.Flavour, names: Sequence[str]) -> dict[str, Ended]:
    """Runs these functions in one process, or each in its own if one of them fails there."""
    program = cbuild.program(source, flavour)
    try:
        done = subprocess.run(
            [program, *names], capture_output=True, text=True, check=False, timeout=PATIENCE
        )
    except subprocess.TimeoutExpired as late:
        done = subprocess.CompletedProcess(late.cmd, 1, str(late), "")
    if len(names) == 1:
        return {names[0]: Ended(done.returncode, done.stdout + done.stderr)}
    printed = dict(zip(names, re.split(r"^ok \w+\n", done.stdout, flags=re.M), strict=False))
    ended = re.findall(r"^ok (\w+)$", done.stdout, re.M)
    if done.returncode == 0 and ended == list(names):
        return {name: Ended(0, f"{printed[name]}1 passed, 0 failed\n") for name in names}
    return {name: run(source, flavour, [name])[name] for name in names}


@pytest.fixture(scope="session")
def ended(request: pytest.FixtureRequest) -> Iterator[dict[Program, Outcomes]]:
    """Results of all selected tests: built on all cores; those in virtual time also run on them."""
    chosen: dict[Program, list[str]] = {}
    for item in request.session.items:
        if item.path == Path(__file__) and isinstance(item, pytest.Function):
            params: dict[str, Any] = item.callspec.params
            source, name, flavour = (params[p] for p in PARAMETERS)
            chosen.setdefault((source, flavour), []).append(name)
    cbuild.build_ahead(chosen)
    pool, results = ThreadPoolExecutor(os.cpu_count()), dict[Program, Outcomes]()
    for each, names in chosen.items():
        if has_threads(each[0]):
            results[each] = functools.cache(functools.partial(run, *each, names))
        else:
            results[each] = pool.submit(run, *each, names).result
    yield results
    pool.shutdown(cancel_futures=True)


@pytest.mark.timeout(600)
@pytest.mark.parametrize(PARAMETERS, functions())
def test_c(
    source: Path,
    name: str,
    flavour: cbuild.Flavour,
    ended: dict[Program, Outcomes],
) -> None:
    try:
        done = ended[source, flavour]()[name]
    except cbuild.BuildError as error:
        pytest.fail(str(error), pytrace=False)
    if "unexpected memory mapping" in done.text:
        pytest.skip("the thread sanitizer cannot map its shadow on this kernel (mmap_rnd_bits)")
    if not done.passed:
        pytest.fail(f"exit {done.code}\n{done.text}", pytrace=False)
    if skipped := re.search(r"^skipped: (.*)", done.text, re.MULTILINE):
        pytest.skip(skipped[1])
