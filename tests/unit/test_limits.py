# SPDX-License-Identifier: Apache-2.0
"""Every limit equals its value in C."""

from __future__ import annotations

import pytest
import walls

from mrc import limits
from mrc.engine.native import lib


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=walls.needs("programs") if name.startswith("AGENT_") else ())
        for name in vars(limits)
        if name.isupper()
    ],
)
def test_limits__are_those_of_c(name: str) -> None:
    assert getattr(limits, name) == getattr(lib, f"MRC_{name}")
