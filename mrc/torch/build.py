# SPDX-License-Identifier: Apache-2.0
"""Compiles gloo_device.cc against the installed torch, once for each torch and each source."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from mrc.torch.abi import TorchError, check_library, check_version

HERE = Path(__file__).parent
SOURCES = (HERE / "gloo_device.cc", HERE / "gloo_abi.h")
FLAGS = ("-std=c++17", "-O2", "-fPIC", "-shared", "-D_GLIBCXX_USE_CXX11_ABI=1")
COMPILE_SECONDS = 120.0


def cache_folder() -> Path:
    """$XDG_CACHE_HOME/mrc, by default ~/.cache/mrc."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "mrc"


def built(version: str, folder: Path) -> Path:
    """The compiled transport for the torch in `folder`; compiles it if it is not in the cache.

    Raises TorchError for a torch that does not fit, without g++, and if the compiler fails.
    """
    check_version(version)
    check_library(version, folder / "lib" / "libtorch_cpu.so")
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in SOURCES))
    digest.update(" ".join((*FLAGS, str(folder))).encode())
    target = cache_folder() / f"gloo-{version}-{digest.hexdigest()[:16]}.so"
    if not target.exists():
        _compile(version, folder, target)
    return target


def compiler() -> str | None:
    """The command of the C++ compiler."""
    return os.environ.get("CXX") or shutil.which("g++") or shutil.which("c++")


def _compile(version: str, folder: Path, target: Path) -> None:
    words = compiler()
    if words is None:
        raise TorchError("the mrc transport is compiled once for each torch: install g++")
    target.parent.mkdir(parents=True, exist_ok=True)
    # Several ranks of one host may compile at the same time; each replaces the file as a whole.
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        output = Path(scratch) / target.name
        command = [
            *words.split(), *FLAGS, str(SOURCES[0]), "-o", str(output),
            "-I", str(folder / "include"), "-L", str(folder / "lib"), "-ltorch_cpu", "-lc10",
        ]  # fmt: skip
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=COMPILE_SECONDS, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise TorchError(f"torch {version}: {words} failed: {error}") from None
        if done.returncode:
            first = next((line for line in done.stderr.splitlines() if "error" in line), "")
            raise TorchError(f"torch {version}: {words} failed: {first or done.stderr[:200]}")
        output.replace(target)
