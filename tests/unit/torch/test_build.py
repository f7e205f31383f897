# SPDX-License-Identifier: Apache-2.0
"""Whether the installed torch fits, and the transport that is compiled for it."""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import subprocess
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from unittest.mock import Mock

import pytest

from mrc.doctor import State
from mrc.engine import native
from mrc.torch import build
from mrc.torch.build import TorchError

# ---- The binary interface -----------------------------------------------------------------------

CORE = Path(native.__file__).parents[1] / "_core.abi3.so"


@pytest.mark.parametrize("version", ["2.13.0+cpu", "2.14.1", "2.15.0+cu132"])
def test_check_version__tested(version: str) -> None:
    build.check_version(version)


@pytest.mark.parametrize("version", ["1.13.0a0", "2.12.1", "2.16.0", "3.0", "nightly", ""])
def test_check_version__others_are_refused(version: str) -> None:
    with pytest.raises(build.TorchError, match=r"supports torch 2\.13 to 2\.15") as caught:
        build.check_version(version)
    assert version in str(caught.value)


def test_check_library__without_gloo() -> None:
    with pytest.raises(build.TorchError, match=r"torch 2\.14\.0: its Gloo has no _ZN4c10d18Gloo"):
        build.check_library("2.14.0", CORE)


def test_check_library__missing() -> None:
    with pytest.raises(build.TorchError, match=r"torch 2\.14\.0: cannot load /no/such"):
        build.check_library("2.14.0", Path("/no/such/libtorch_cpu.so"))


def test_check_library__table_of_another_size(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = dict.fromkeys(build.FUNCTIONS, 10) | build.TABLES
    pair = "_ZTVN4gloo9transport3tcp4PairE"
    monkeypatch.setattr(build, "size_of", lambda _, name: sizes[name])
    build.check_library("2.14.0", CORE)
    sizes[pair] += 8
    with pytest.raises(build.TorchError, match=rf"{pair} has 224 bytes, not 216"):
        build.check_library("2.14.0", CORE)


def test_size_of__a_symbol() -> None:
    library = ctypes.CDLL("libstdc++.so.6")
    assert build.size_of(library, "_ZTVSt9exception") == 40  # what, two destructors, and the head
    assert build.size_of(library, "_ZTV_no_such") is None


# ---- Compiling ----------------------------------------------------------------------------------

VERSION = "2.14.0"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A torch that fits, and an empty cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr(build, "check_library", lambda version, library: None)
    return tmp_path / "torch"


def compiler(tmp_path: Path, body: str) -> str:
    """A program that stands in for g++; it finds the name of its output in $out."""
    path = tmp_path / "compiler"
    find = 'while [ "$1" != -o ]; do shift; done; out=$2\n'
    path.write_text(f"#!/bin/sh\necho >>{tmp_path}/calls\n{find}{body}\n")
    path.chmod(0o755)
    return str(path)


def test_built__compiles_once(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", compiler(tmp_path, 'echo made >"$out"'))
    first = build.built(VERSION, folder)
    assert first == build.built(VERSION, folder)
    assert first.read_text() == "made\n"
    assert first.parent == tmp_path / "cache" / "mrc"
    assert len((tmp_path / "calls").read_text().splitlines()) == 1
    assert [path.name for path in first.parent.iterdir()] == [first.name]


def test_built__again_for_another_source(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", compiler(tmp_path, 'echo made >"$out"'))
    first = build.built(VERSION, folder)
    source = tmp_path / "other.cc"
    source.write_text("// changed")
    monkeypatch.setattr(build, "SOURCES", (source,))
    assert build.built(VERSION, folder) != first


def test_built__without_a_compiler(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(TorchError, match=r"install g\+\+$"):
        build.built(VERSION, folder)


def test_built__the_compiler_fails(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", compiler(tmp_path, "echo note; echo 'x.cc: error: no' >&2; exit 1"))
    with pytest.raises(TorchError, match=r"^torch 2\.14\.0: .* failed: x\.cc: error: no$"):
        build.built(VERSION, folder)
    assert list((tmp_path / "cache" / "mrc").iterdir()) == []


def test_built__into_a_folder_that_cannot_be_written(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", compiler(tmp_path, 'echo made >"$out"'))
    (tmp_path / "cache").write_text("a file")
    with pytest.raises(TorchError, match=r"/cache/mrc: Not a directory; set XDG_CACHE_HOME to a"):
        build.built(VERSION, folder)


def test_built__without_a_home(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(Path, "home", Mock(side_effect=RuntimeError("no home directory")))
    with pytest.raises(TorchError, match=r"no home directory; set XDG_CACHE_HOME to a folder"):
        build.built(VERSION, folder)


def test_built__after_an_interrupt(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A killed rank leaves its scratch folder; the next one removes it."""
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    monkeypatch.setenv("CXX", compiler(tmp_path, f'echo half >"$out"; echo >{fifo}; exec sleep 99'))
    program = f"""
from pathlib import Path
from mrc.torch import build
build.check_library = lambda version, library: None
build.built({VERSION!r}, Path({str(folder)!r}))
"""
    killed = subprocess.Popen([sys.executable, "-c", program], start_new_session=True)
    fifo.read_text()
    os.killpg(killed.pid, signal.SIGKILL)
    killed.wait()
    assert len(list(build.cache_folder().iterdir())) == 1
    monkeypatch.setenv("CXX", compiler(tmp_path, 'echo made >"$out"'))
    made = build.built(VERSION, folder)
    assert made.read_text() == "made\n"
    assert list(build.cache_folder().iterdir()) == [made]


def test_built__another_torch_is_refused(folder: Path) -> None:
    with pytest.raises(TorchError, match=r"^torch 2\.2\.0: "):
        build.built("2.2.0", folder)


# ---- The row of mrc doctor ----------------------------------------------------------------------


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """torch 2.14.0, which fits, and a compiler."""
    spec = ModuleSpec("torch", None, origin="/packages/torch/__init__.py")
    monkeypatch.setattr(build, "find_spec", lambda name: spec)
    monkeypatch.setattr(build, "version", lambda name: "2.14.0")
    monkeypatch.setattr(build, "check_library", lambda version, library: None)
    monkeypatch.setattr(build, "compiler", lambda: "g++")
    return monkeypatch


def test_examine__fits(installed: pytest.MonkeyPatch) -> None:
    seen = []
    installed.setattr(build, "check_library", lambda version, library: seen.append(str(library)))
    (found,) = build.examine()
    assert (found.state, found.consequence, found.remedy) == (State.OK, "", "")
    assert found.found == "torch 2.14.0; GLOO_DEVICE_TRANSPORT=MRC selects mrc"
    assert seen == ["/packages/torch/lib/libtorch_cpu.so"]


def refuse(version: str, library: object) -> None:
    raise TorchError(f"torch {version}: its Gloo has no Pair; unset a variable")


OTHERS = "torch 2.2.0: the mrc transport supports torch 2.13 to 2.15"


@pytest.mark.parametrize(
    ("name", "function", "found", "remedy"),
    [
        ("find_spec", lambda name: None, "not installed", "pip install 'mrc-transport[torch]'"),
        ("version", lambda name: "2.2.0", OTHERS, "install torch 2.13 to 2.15"),
        (
            "check_library",
            refuse,
            "torch 2.14.0: its Gloo has no Pair",
            "install torch 2.13 to 2.15",
        ),
        ("compiler", lambda: None, "torch 2.14.0 fits, but there is no g++", "apt-get install g++"),
    ],
    ids=["not installed", "another version", "another binary interface", "no compiler"],
)
def test_examine__does_not_fit(
    name: str, function: object, found: str, remedy: str, installed: pytest.MonkeyPatch
) -> None:
    installed.setattr(build, name, function)
    (finding,) = build.examine()
    assert (finding.state, finding.found, finding.remedy) == (State.LIMITED, found, remedy)
    assert finding.consequence == "no torch.distributed over mrc"
