# SPDX-License-Identifier: Apache-2.0
"""Compiles the ends in C with the flags of the shipped engine. Cached by content."""

from __future__ import annotations

from pathlib import Path

import cbuild

_HERE = Path(__file__).resolve().parent


def program(name: str) -> str:
    """The path of a compiled end."""
    return str(cbuild.program(_HERE / f"{name}.c", cbuild.SHIPPED, [_HERE / "job.c"]))


def library(name: str) -> str:
    """The path of a compiled library."""
    return str(cbuild.shared_library([_HERE / f"{name}.c"], f"bench-{name}"))
