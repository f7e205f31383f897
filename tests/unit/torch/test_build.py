# SPDX-License-Identifier: Apache-2.0
"""The transport is compiled once for each torch and each source."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest

from mrc.torch import build
from mrc.torch.build import TorchError

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
