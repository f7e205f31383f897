# SPDX-License-Identifier: Apache-2.0
"""Compiles the ends that are in C, with the flags of the shipped engine; cached by content."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))
import cbuild  # noqa: E402  it lies with the tests that it builds

_HERE = Path(__file__).resolve().parent


def program(name: str) -> str:
    """The path of a compiled end."""
    return str(cbuild.program(_HERE / f"{name}.c", cbuild.FAST, [_HERE / "job.c"]))
