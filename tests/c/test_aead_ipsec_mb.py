# SPDX-License-Identifier: Apache-2.0
"""Which versions of IPsec-MB the engine takes: the libraries of a folder replace this machine's."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(
    platform.machine() != "x86_64", reason="IPsec-MB seals on x86-64 only"
)
NAMES = ("libIPSec_MB.so.1", "libIPSec_MB.so.2")
SEALS = """
from mrc.engine import native
name = native.aead_name()
print(name, *{line.split()[-1] for line in open("/proc/self/maps") if "IPSec" in line})
"""
STUB = "unsigned imb_get_version(void) { return %#x; } int alloc_mb_mgr, init_mb_mgr_auto;"


def sealed_by(folder: Path) -> list[str]:
    """The name of the library that seals, and the files of IPsec-MB that are loaded."""
    environment = os.environ | {"LD_LIBRARY_PATH": str(folder)}
    command = [sys.executable, "-c", SEALS]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return done.stdout.split()


@pytest.mark.parametrize("version", [0x3700, 0x30000])
def test_ipsec_mb__a_version_with_another_layout(version: int, tmp_path: Path) -> None:
    for name in NAMES:
        command = ["gcc", "-shared", "-fPIC", "-x", "c", "-", "-o", str(tmp_path / name)]
        subprocess.run(command, input=STUB % version, text=True, check=True)
    assert sealed_by(tmp_path)[0] == "libcrypto"


@pytest.mark.parametrize("name", NAMES)
def test_ipsec_mb__under_the_name_of_either_version(name: str, tmp_path: Path) -> None:
    found, *loaded = sealed_by(tmp_path)
    if found != "IPsec-MB":
        pytest.skip("needs IPsec-MB: apt-get install libipsec-mb-dev")
    for each in NAMES:
        (tmp_path / each).write_bytes(b"no library")
    shutil.copy(loaded[0], tmp_path / name)
    assert sealed_by(tmp_path) == ["IPsec-MB", str(tmp_path / name)]
