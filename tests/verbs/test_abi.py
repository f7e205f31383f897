# SPDX-License-Identifier: Apache-2.0
"""What libmrc exports, beside the system's libibverbs."""

from __future__ import annotations

import re
import subprocess
import sys
from ctypes.util import find_library
from pathlib import Path

import pytest
from verbs.building import LIBRARY, ROOT

from mrc.agent.libraries import FOLDER, LIBMRC, LIBMRC_CM, PROVIDER

pytestmark = pytest.mark.default

PUBLIC = re.compile(r"IBVERBS_1\.\d+")
DATA, CONTROL = 27, 14


def exported(library: str | Path, mark: str = "@") -> set[tuple[str, str]]:
    """Name and version of each function that a library exports. "@@" marks those that programs get
    that are linked today.
    """
    lines = subprocess.run(
        ["readelf", "--dyn-syms", "--wide", library], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    found = [line.split() for line in lines if " FUNC " in line and " UND " not in line]
    named = [re.split("@+", words[7]) for words in found if mark in words[7]]
    return {(name, version) for name, version in named}


@pytest.fixture(scope="module")
def ours() -> set[tuple[str, str]]:
    return exported(LIBRARY)


def test_exports__every_public_function_of_libibverbs(ours: set[tuple[str, str]]) -> None:
    name = find_library("ibverbs")
    assert name is not None
    (path,) = {
        line.split()[-1]
        for line in subprocess.run(
            ["ldconfig", "-p"], capture_output=True, text=True, check=True
        ).stdout.splitlines()
        if line.strip().startswith(f"{name} ")
    }
    theirs = {each for each in exported(path, "@@") if PUBLIC.fullmatch(each[1])}
    assert len(theirs) > 70
    assert not theirs - ours, "these would crash on our objects"


def test_exports__those_of_mrc(ours: set[tuple[str, str]]) -> None:
    names = {name for name, version in ours if version == "MRC_1.0"}
    header = (ROOT / "csrc/verbs/mrc_api.h").read_text()
    declared = set(re.findall(r"\b(mrc_\w+)\(", header))
    control = {name for name in declared if name.startswith("mrc_ctl_")}
    assert (len(declared - control), len(control)) == (DATA, CONTROL)
    assert declared == names


def test_exports__nothing_else(ours: set[tuple[str, str]]) -> None:
    others = {
        (name, version)
        for name, version in ours
        if version != "MRC_1.0" and not PUBLIC.fullmatch(version)
    }
    assert {name for name, _ in others} == {"ibv_query_gid_type"}, "which applications use"


def test_library__needs_no_python_and_no_libibverbs() -> None:
    dynamic = subprocess.run(
        ["readelf", "-d", LIBRARY], capture_output=True, text=True, check=True
    ).stdout
    needed = set(re.findall(r"NEEDED.*\[([^.\]]*)", dynamic))
    assert needed <= {"libisal", "libz", "libc", "ld-linux-x86-64", "ld-linux-aarch64"}
    assert "SONAME" in dynamic and "[libmrc.so.1]" in dynamic


@pytest.mark.parametrize("name", [LIBMRC, LIBMRC_CM, PROVIDER])
def test_close__the_library_stays_for_its_thread(name: str) -> None:
    """Intel MPI closes libfabric, and with it the provider, before the process ends."""
    if not (FOLDER / name).exists():
        pytest.skip(f"{name} is not built")
    lines = [
        "import _ctypes, ctypes, pathlib, sys",
        "_ctypes.dlclose(ctypes.CDLL(sys.argv[1])._handle)",
        "assert sys.argv[1] in pathlib.Path('/proc/self/maps').read_text()",
    ]
    command = [sys.executable, "-c", "\n".join(lines), str(FOLDER / name)]
    assert subprocess.run(command, check=False).returncode == 0
