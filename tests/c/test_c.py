# SPDX-License-Identifier: Apache-2.0
"""Builds and runs tests/c/test_*.c under the sanitizers: each C test function is a result here.

Programs that include csrc/io or csrc/emu have threads, so they also run under the thread
sanitizer.
"""

from __future__ import annotations

import os
import re
import subprocess
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import cbuild
import pytest
from slowness import PATIENCE

HERE = Path(__file__).parent

Test = tuple[Path, str, cbuild.Flavour]
Done = subprocess.CompletedProcess[str]


def functions() -> list[object]:
    """(file, function, flavour) for every RUN(function) of every file."""
    return [
        pytest.param(
            source, name, flavour, id=f"{source.stem}-{name}-{flavour.name}", marks=lacks(source)
        )
        for source in sorted(HERE.glob("test_*.c"))
        for name in re.findall(r"\bRUN\((\w+)\)", source.read_text())
        for flavour in flavours(source)
    ]


def lacks(source: Path) -> list[pytest.MarkDecorator]:
    if "ofi" not in cbuild.parts([source]) or cbuild.has_header("rdma/fabric.h"):
        return []
    return [pytest.mark.skip(reason="needs libfabric: apt-get install libfabric-dev")]


def flavours(source: Path) -> list[cbuild.Flavour]:
    return [cbuild.ASAN, cbuild.TSAN] if has_threads(source) else [cbuild.ASAN]


def has_threads(source: Path) -> bool:
    return not {"io", "emu"}.isdisjoint(cbuild.parts([source]))


def run(source: Path, name: str, flavour: cbuild.Flavour) -> Done:
    program = cbuild.program(source, flavour)
    return subprocess.run(
        [program, name], capture_output=True, text=True, check=False, timeout=PATIENCE
    )


@pytest.fixture(scope="session")
def ended(request: pytest.FixtureRequest) -> dict[Test, Future[Done]]:
    """Results of all selected tests: built on all cores; tests in virtual time also run on them."""
    chosen: list[Test] = [
        tuple(item.callspec.params[name] for name in ("source", "name", "flavour"))
        for item in request.session.items
        if item.path == Path(__file__)
    ]
    cbuild.build_ahead(dict.fromkeys((source, flavour) for source, _, flavour in chosen))
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return {test: pool.submit(run, *test) for test in chosen if not has_threads(test[0])}


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("source", "name", "flavour"), functions())
def test_c(
    source: Path, name: str, flavour: cbuild.Flavour, ended: dict[Test, Future[Done]]
) -> None:
    test = (source, name, flavour)
    try:
        done = ended[test].result() if test in ended else run(*test)
    except cbuild.BuildError as error:
        pytest.fail(str(error), pytrace=False)
    if "unexpected memory mapping" in done.stderr:
        pytest.skip("the thread sanitizer cannot map its shadow on this kernel (mmap_rnd_bits)")
    if done.returncode != 0:
        pytest.fail(f"exit {done.returncode}\n{done.stdout}{done.stderr}", pytrace=False)
    assert done.stdout.endswith("1 passed, 0 failed\n")
    if skipped := re.search(r"^skipped: (.*)", done.stdout, re.MULTILINE):
        pytest.skip(skipped[1])
