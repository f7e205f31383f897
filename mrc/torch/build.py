# SPDX-License-Identifier: Apache-2.0
"""Compiles gloo_device.cc against the installed torch, once for each torch and each source."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mrc.torch.abi import TorchError, check_library, check_version

HERE = Path(__file__).parent
SOURCES = (HERE / "gloo_device.cc", HERE / "gloo_abi.h")
FLAGS = ("-std=c++17", "-O2", "-fPIC", "-shared", "-D_GLIBCXX_USE_CXX11_ABI=1")
COMPILE_SECONDS = 120.0
_SCRATCH = ".scratch"  # suffix of folders for files of the compiler
_WRITABLE = "set XDG_CACHE_HOME to a folder that can be written"


def cache_folder() -> Path:
    """$XDG_CACHE_HOME/mrc, by default ~/.cache/mrc; raises TorchError for a user without a home."""
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "mrc"
    except RuntimeError as error:
        raise TorchError(f"the mrc transport: {error}; {_WRITABLE}") from None


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
        try:
            _compile_once(version, folder, target)
        except OSError as error:
            where = f"{target.parent}: {error.strerror or error}"
            raise TorchError(f"the mrc transport is compiled into {where}; {_WRITABLE}") from None
    return target


def compiler() -> str | None:
    """The command of the C++ compiler."""
    return os.environ.get("CXX") or shutil.which("g++") or shutil.which("c++")


def _compile_once(version: str, folder: Path, target: Path) -> None:
    """Compiles unless another rank of this host has done so meanwhile."""
    words = compiler()
    if words is None:
        raise TorchError("the mrc transport is compiled once for each torch: install g++")
    target.parent.mkdir(parents=True, exist_ok=True)
    with _locked(target.parent) as alone:
        for left in target.parent.glob(f"*{_SCRATCH}") if alone else ():
            shutil.rmtree(left, ignore_errors=True)  # of a process that was killed
        if not target.exists():
            with tempfile.TemporaryDirectory(dir=target.parent, suffix=_SCRATCH) as scratch:
                output = Path(scratch) / target.name
                _compile(version, folder, words, output)
                output.replace(target)


@contextmanager
def _locked(folder: Path) -> Iterator[bool]:
    """One process at a time; the lock ends with the process. False: NFS cannot lock a folder."""
    lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        alone = True
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
        except OSError:
            alone = False
        yield alone
    finally:
        os.close(lock)


def _compile(version: str, folder: Path, words: str, output: Path) -> None:
    command = [
        *words.split(), *FLAGS, str(SOURCES[0]), "-o", str(output),
        "-I", str(folder / "include"), "-L", str(folder / "lib"), "-ltorch_cpu", "-lc10",
    ]  # fmt: skip
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=COMPILE_SECONDS, check=False,
            env={**os.environ, "TMPDIR": str(output.parent)},
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        raise TorchError(f"torch {version}: {words} failed: {error}") from None
    if done.returncode:
        first = next((line for line in done.stderr.splitlines() if "error" in line), "")
        raise TorchError(f"torch {version}: {words} failed: {first or done.stderr[:200]}")
