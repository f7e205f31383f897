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
    text = (HERE / "shim.c").read_text()
    found = cffi.FFI()
    found.cdef(text.split("/* cdef begin */")[1].split("/* cdef end */")[0])
    return found


@functools.cache
def library() -> Any:
    sources = [*cbuild._sources("core"), HERE / "shim.c"]
    return ffi().dlopen(str(cbuild.shared_library(sources, "model", cbuild.SHARED_TRAP)))
