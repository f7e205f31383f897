# SPDX-License-Identifier: Apache-2.0
"""The engine's parts as a cffi library; undefined behaviour ends the process."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import cbuild
import cffi

HERE = Path(__file__).parent


@functools.cache
def _ffi(source: str) -> Any:
    text = (HERE / source).read_text()
    declarations = text.split("/* cdef begin */")[1].split("/* cdef end */")[0]
    found = cffi.FFI()
    found.cdef(declarations)
    return found


def _library(name: str, sources: list[Path]) -> Any:
    """The last source has the declarations."""
    path = cbuild.shared_library(sources, name, cbuild.SHARED_TRAP)
    return _ffi(sources[-1].name).dlopen(str(path))


def ffi() -> Any:
    return _ffi("shim.c")


@functools.cache
def library() -> Any:
    core = cbuild._sources("core")
    return _library("model", [*core, HERE / "shim.c"])


def msg_ffi() -> Any:
    return _ffi("msg_shim.c")


@functools.cache
def msg_library() -> Any:
    """Messages over QPs that the model drives, without the engine."""
    pure = {*(cbuild.CSRC / "msg").glob("*.c")} - {cbuild.CSRC / "msg" / "messages.c"}
    sources = [cbuild.CSRC / "core" / "base.c", *sorted(pure), HERE / "msg_shim.c"]
    return _library("msgmodel", sources)
