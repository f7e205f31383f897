# SPDX-License-Identifier: Apache-2.0
"""The package installs into a clean environment, from a checkout, a source archive and a wheel."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from cbuild import has_header
from project_text import ROOT, copy_sources, sources

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

# The compiled module is loaded from the installed package, not from a checkout.
PROBE = """
import mrc, mrc.binding.verbs, pathlib, sys
folder = pathlib.Path(mrc.__file__).parent
assert folder.is_relative_to(sys.prefix), folder
assert (folder / "sim" / "report.html").is_file()
"""


# ISA-L comes from the wheel, and both ends of the example compute CRCs.
BUNDLED = """
import asyncio, pathlib, sys
from mrc.examples.hello import main
asyncio.run(main())
libraries = {line.split()[-1] for line in open("/proc/self/maps") if "libisal" in line}
assert all(pathlib.Path(each).is_relative_to(sys.prefix) for each in libraries) and libraries
"""
# Programs link libmrc, or open it by the name of libibverbs; both need its ISA-L.
PROVIDER = "libmrc-fi.so"
LIBRARIES = ("libmrc.so.1", "libmrc.so", "lib_mrc.so", "libibverbs.so", PROVIDER)
LOADED = "import ctypes, sys; ctypes.CDLL(sys.argv[1])[sys.argv[2]]"
DATA = (
    "share/man/man1/mrc.1", "share/man/man1/mrc-recv.1", "lib/systemd/system/mrc-recv.service",
    "lib/systemd/system/mrc-agent.service", "share/bash-completion/completions/mrc",
    "share/zsh/site-functions/_mrc",
)  # fmt: skip


def run(*command: str | Path, cwd: Path, **environ: str) -> str:
    done = subprocess.run(
        [str(word) for word in command], cwd=cwd, capture_output=True, text=True,
        env=os.environ | environ,
    )  # fmt: skip
    assert done.returncode == 0, f"{command}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done.stdout


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A copy of what git would clone, in a folder whose name holds a blank."""
    copy = tmp_path / "a checkout"
    copy_sources(copy)
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


def test_pip_install__a_library_that_does_not_compile_costs_only_itself(
    checkout: Path, clean_venv: Path, tmp_path: Path
) -> None:
    if not has_header("rdma/providers/fi_prov.h"):
        pytest.skip("needs libfabric: apt-get install libfabric-dev")
    broken = tmp_path / "include" / "rdma" / "fi_errno.h"
    broken.parent.mkdir(parents=True)
    broken.write_text("#error of another version\n")
    path = {"CPATH": str(broken.parent.parent)}
    run(clean_venv / "python", "-m", "pip", "install", checkout, cwd=tmp_path, **path)
    check_installed(clean_venv, tmp_path)
    doctor = run(clean_venv / "mrc", "doctor", cwd=tmp_path)
    (line,) = (line for line in doctor.splitlines() if "libmrc-fi" in line)
    assert line.startswith("limited") and "fi_errno.h:1:2: error: #error of another" in line
    # Where every part is required, the build fails.
    build = [sys.executable, "setup.py", "-q", "build_ext"]
    environment = os.environ | path | {"MRC_WERROR": "1"}
    done = subprocess.run(build, cwd=checkout, env=environment, capture_output=True, text=True)
    assert done.returncode == 1 and "error: #error of another" in done.stderr


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


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the two files of tools/wheel."""
    for name in ("auditwheel", "shtab"):
        pytest.importorskip(name, reason="tools/setup")
    folder = tmp_path_factory.mktemp("dist")
    printed = run(ROOT / "tools" / "wheel", "--output", folder, cwd=folder)
    assert sorted(printed.split()) == sorted(map(str, folder.iterdir()))
    return folder


def test_wheel__tag_licences_and_data(dist: Path) -> None:
    (wheel,) = dist.glob("*.whl")
    assert "-cp311-abi3-manylinux_" in wheel.name
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        (licence,) = (name for name in names if name.endswith("licenses/LICENSE"))
        text = archive.read(licence).decode()
    assert "Apache License" in text and "Intel Corporation" in text and "BSD-3" in text
    for name in DATA:
        assert any(each.endswith(f".data/data/{name}") for each in names), name
    with tarfile.open(next(dist.glob("*.tar.gz"))) as archive:
        packed = {name.partition("/")[2] for name in archive.getnames()}
    assert {f"wheel-data/{name}" for name in DATA} <= packed


def test_wheel__needs_no_compiler(dist: Path, clean_venv: Path, tmp_path: Path) -> None:
    """It also runs on processors without AVX-512, such as valgrind's."""
    alone = {"PATH": f"{clean_venv}", "CC": "/bin/false"}
    options = ("--only-binary", ":all:", "--find-links", dist)
    run(clean_venv / "pip", "install", *options, "mrc-transport", cwd=tmp_path, **alone)
    check_installed(clean_venv, tmp_path)
    assert run(clean_venv / "python", "-c", BUNDLED, cwd=tmp_path, **alone) == "hello over MRC\n"
    for name in DATA:
        assert (clean_venv.parent / name).is_file()
    folder = Path(run(clean_venv / "mrc", "run", "--libdir", cwd=tmp_path).strip())
    assert sorted(path.name for path in folder.iterdir()) == sorted(LIBRARIES)
    for name in ("libmrc.so.1", "libibverbs.so"):
        run(clean_venv / "python", "-c", LOADED, folder / name, "mrc_query_version", cwd=tmp_path)
    run(clean_venv / "python", "-c", LOADED, folder / PROVIDER, "fi_prov_ini", cwd=tmp_path)
    if shutil.which("valgrind"):
        command = ("valgrind", "--tool=none", "-q", clean_venv / "mrc", "sim", "run", "lossy-ev")
        assert "writes completed" in run(*command, cwd=tmp_path)
