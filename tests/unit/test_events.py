# SPDX-License-Identifier: Apache-2.0
"""Events that callers get, as lines of a log."""

from __future__ import annotations

import pytest

from mrc.enums import WarningKind
from mrc.events import ContextWarning


@pytest.mark.parametrize(
    ("warning", "line"),
    [
        (ContextWarning(WarningKind.RCVBUF_SMALL, 2, 212992),
         f"plane 2: {WarningKind.RCVBUF_SMALL.explanation} (212992 bytes granted)"),
        (ContextWarning(WarningKind.MEMORY_FAULT, 0, 1267580164),
         "a registered file became shorter while it was in use (the memory region with rkey"
         " 0x4b8dbd04)"),
        (ContextWarning(WarningKind.GUARD_REPLACED, 0, 0), WarningKind.GUARD_REPLACED.explanation),
    ],
)  # fmt: skip
def test_context_warning__says_what_its_number_is(warning: ContextWarning, line: str) -> None:
    assert str(warning) == line
