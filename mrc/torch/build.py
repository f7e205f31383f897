# SPDX-License-Identifier: Apache-2.0
"""Whether the installed torch fits, and gloo_device.cc compiled against it: once for each torch and
each source. `examine` is the row of `mrc doctor`; it does not import torch.
"""

from __future__ import annotations

import ctypes
import fcntl
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

from mrc.doctor import Finding, State
from mrc.errors import MrcError

VERSIONS = ((2, 13), (2, 15))  # the first and the last torch that this was tested with
RANGE = " to ".join(".".join(map(str, version)) for version in VERSIONS)

# Sizes in bytes of virtual tables: 8 for each function and 16 before them.
TABLES = {
    "_ZTVN4gloo9transport7ContextE": 0x48,
    "_ZTVN4gloo9transport3tcp7ContextE": 0x48,
    "_ZTVN4gloo9transport3tcp6DeviceE": 0x48,
    "_ZTVN4gloo9transport3tcp4PairE": 0xD8,
    "_ZTVN4gloo9transport3tcp13UnboundBufferE": 0x70,
    "_ZTVN4gloo9transport3tcp7AddressE": 0x30,
}
FUNCTIONS = (
    "_ZN4c10d18GlooDeviceRegistryB5cxx11Ev",
    "_ZN4gloo9transport7ContextC2Eii",
    "_ZN4gloo9transport7ContextD2Ev",
    "_ZN4gloo9transport7Context7getPairEi",
    "_ZN4gloo9transport7Context24createAndConnectAllPairsESt10shared_ptrINS_6IStoreEE",
    "_ZN4gloo9transport4PairD2Ev",
    "_ZN4gloo9transport6DeviceD2Ev",
    "_ZN4gloo9transport7AddressD2Ev",
    "_ZN4gloo9transport13UnboundBufferD2Ev",
    "_ZTIN4gloo11IoExceptionE",
)


class TorchError(MrcError):
    """This torch cannot run over mrc."""


class _Info(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char_p),
        ("base", ctypes.c_void_p),
        ("symbol", ctypes.c_char_p),
        ("address", ctypes.c_void_p),
    )


class _Symbol(ctypes.Structure):  # Elf64_Sym
    _fields_ = (
        ("name", ctypes.c_uint32),
        ("info", ctypes.c_uint8),
        ("other", ctypes.c_uint8),
        ("section", ctypes.c_uint16),
        ("value", ctypes.c_uint64),
        ("size", ctypes.c_uint64),
    )


def check_version(version: str) -> None:
    """Raises TorchError for a torch that this transport was not tested with."""
    first, last = VERSIONS
    try:
        major, minor = map(int, version.split(".")[:2])
    except ValueError:
        major, minor = 0, 0
    if not first <= (major, minor) <= last:
        raise TorchError(
            f"torch {version}: the mrc transport supports torch {RANGE}; unset"
            " GLOO_DEVICE_TRANSPORT or install one of these"
        )


def check_library(version: str, library: Path) -> None:
    """Raises TorchError unless libtorch_cpu has all functions and tables of the right size."""
    try:
        loaded = ctypes.CDLL(str(library))
    except OSError as error:
        raise TorchError(f"torch {version}: cannot load {library}: {error}") from None
    found = {name: size_of(loaded, name) for name in (*FUNCTIONS, *TABLES)}
    for name, size in found.items():
        if size is None:
            raise TorchError(f"torch {version}: its Gloo has no {name}; {REMEDY}")
        if size != TABLES.get(name, size):
            raise TorchError(
                f"torch {version}: {name} has {size} bytes, not {TABLES[name]}; {REMEDY}"
            )


REMEDY = "the mrc transport does not fit it: unset GLOO_DEVICE_TRANSPORT"


def size_of(library: ctypes.CDLL, name: str) -> int | None:
    """The size of a symbol in bytes; None: the library does not export it."""
    try:
        address = ctypes.addressof(ctypes.c_char.in_dll(library, name))
    except ValueError:
        return None
    info, symbol = _Info(), ctypes.POINTER(_Symbol)()
    dladdr1 = ctypes.CDLL(None).dladdr1
    dladdr1.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int)
    if not dladdr1(address, ctypes.byref(info), ctypes.byref(symbol), 1) or not symbol:
        return None
    return int(symbol.contents.size)


# ---- Compiling ----------------------------------------------------------------------------------

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


# ---- The row of mrc doctor ----------------------------------------------------------------------


def examine() -> list[Finding]:
    """One finding. Loads torch's libraries, which takes half a second."""
    spec = find_spec("torch")
    if spec is None or spec.origin is None:
        return _limited("not installed", "pip install 'mrc-transport[torch]'")
    try:
        found = version("torch")
    except PackageNotFoundError:
        found = "of unknown version"
    try:
        check_version(found)
        check_library(found, Path(spec.origin).parent / "lib" / "libtorch_cpu.so")
    except TorchError as error:
        return _limited(str(error).partition("; ")[0], f"install torch {RANGE}")
    if compiler() is None:
        return _limited(f"torch {found} fits, but there is no g++", "apt-get install g++")
    return [Finding("torch", State.OK, f"torch {found}; GLOO_DEVICE_TRANSPORT=MRC selects mrc")]


def _limited(found: str, remedy: str) -> list[Finding]:
    return [Finding("torch", State.LIMITED, found, "no torch.distributed over mrc", remedy)]
