# SPDX-License-Identifier: Apache-2.0
"""Builds and runs tests/c/test_*.c under the sanitizers: each C test function is a result here.

Programs that include csrc/io or csrc/emu, where the threads are, run under the thread sanitizer as
well.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import cbuild
import pytest

HERE = Path(__file__).parent


def functions() -> list[object]:
    """(file, function, flavour) for every RUN(function) of every file."""
    return [
        pytest.param(source, name, flavour, id=f"{source.stem}-{name}-{flavour.name}")
        for source in sorted(HERE.glob("test_*.c"))
        for name in re.findall(r"\bRUN\((\w+)\)", source.read_text())
        for flavour in flavours(source)
    ]


def flavours(source: Path) -> list[cbuild.Flavour]:
    threads = {"io", "emu"} & set(cbuild.parts([source]))
    return [cbuild.ASAN, cbuild.TSAN] if threads else [cbuild.ASAN]


@pytest.fixture(scope="session")
def built(request: pytest.FixtureRequest) -> None:
    """The programs of all tests that were selected."""
    chosen = (item.callspec.params for item in request.session.items if hasattr(item, "callspec"))
    cbuild.build_ahead(
        dict.fromkeys(
            (each["source"], each["flavour"])
            for each in chosen
            if "flavour" in each and "name" in each
        )
    )


@pytest.mark.usefixtures("built")
@pytest.mark.parametrize(("source", "name", "flavour"), functions())
def test_c(source: Path, name: str, flavour: cbuild.Flavour) -> None:
    try:
        program = cbuild.program(source, flavour)
    except cbuild.BuildError as error:
        pytest.fail(str(error), pytrace=False)
    run = subprocess.run([program, name], capture_output=True, text=True, check=False, timeout=60)
    if "unexpected memory mapping" in run.stderr:
        pytest.skip("the thread sanitizer cannot map its shadow on this kernel (mmap_rnd_bits)")
    if run.returncode != 0:
        pytest.fail(f"exit {run.returncode}\n{run.stdout}{run.stderr}", pytrace=False)
    assert run.stdout.endswith("1 passed, 0 failed\n")
    if skipped := re.search(r"^skipped: (.*)", run.stdout, re.MULTILINE):
        pytest.skip(skipped[1])
