# SPDX-License-Identifier: Apache-2.0
"""The package installs into a clean environment, from a checkout and from a source archive."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from project_text import ROOT, sources

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

# The compiled module is loaded from the installed package, not from a checkout.
PROBE = """
import mrc, mrc.binding.verbs, pathlib, sys
folder = pathlib.Path(mrc.__file__).parent
assert folder.is_relative_to(sys.prefix), folder
assert (folder / "sim" / "report.html").is_file()
"""


def run(*command: str | Path, cwd: Path) -> str:
    done = subprocess.run([str(word) for word in command], cwd=cwd, capture_output=True, text=True)
    assert done.returncode == 0, f"{command}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done.stdout


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A copy of what git would clone, in a folder whose name holds a blank."""
    copy = tmp_path / "a checkout"
    for path in sources():
        (copy / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / path, copy / path)
    return copy


@pytest.fixture
def clean_venv(tmp_path: Path) -> Path:
    """The bin folder of a new virtual environment that contains only pip."""
    run(sys.executable, "-m", "venv", tmp_path / "venv", cwd=tmp_path)
    return tmp_path / "venv" / "bin"


def make_sdist(checkout: Path) -> Path:
    code = "from setuptools import build_meta; print(build_meta.build_sdist('dist'))"
    return checkout / "dist" / run(sys.executable, "-c", code, cwd=checkout).split()[-1]


def check_installed(bin_folder: Path, elsewhere: Path) -> None:
    run(bin_folder / "python", "-c", PROBE, cwd=elsewhere)
    assert "send" in run(bin_folder / "mrc", "--help", cwd=elsewhere)
    assert "lossy-ev" in run(bin_folder / "mrc", "sim", "list", cwd=elsewhere)


def test_pip_install__from_a_checkout(checkout: Path, clean_venv: Path, tmp_path: Path) -> None:
    run(clean_venv / "python", "-m", "pip", "install", checkout, cwd=tmp_path)
    check_installed(clean_venv, tmp_path)


def test_pip_install__from_a_source_archive(
    checkout: Path, clean_venv: Path, tmp_path: Path
) -> None:
    archive = make_sdist(checkout)
    run(clean_venv / "python", "-m", "pip", "install", archive, cwd=tmp_path)
    check_installed(clean_venv, tmp_path)


def test_sdist__carries_the_engine(checkout: Path) -> None:
    with tarfile.open(make_sdist(checkout)) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    engine = {
        str(path)
        for path in sources()
        if path.parts[:2] in {("csrc", "core"), ("csrc", "io")} and path.suffix != ".md"
    }
    assert engine | {"csrc/mrc.h", "LICENSE", "README.md", "pyproject.toml", "setup.py"} <= names
