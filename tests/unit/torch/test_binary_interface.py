# SPDX-License-Identifier: Apache-2.0
"""A torch that does not fit is refused, with its version."""

from __future__ import annotations

import ctypes
from pathlib import Path

import pytest

from mrc.engine import native
from mrc.torch import build

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
