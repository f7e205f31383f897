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
def ffi() -> Any:
    text = (HERE / "shim.h").read_text()
    declarations = text.split("/* cdef begin */")[1].split("/* cdef end */")[0]
    found = cffi.FFI()
    found.cdef(declarations)
    return found


@functools.cache
def library() -> Any:
    core = sorted((cbuild.CSRC / "core").glob("*.c"))
    path = cbuild.shared_library([*core, HERE / "shim.c"], "model", cbuild.SHARED_TRAP)
    return ffi().dlopen(str(path))
