# SPDX-License-Identifier: Apache-2.0
"""Resume states that programs keep, also those that no agent has written."""

from __future__ import annotations

import zlib

import pytest

from mrc.agent.resume import unpack_resume
from mrc.errors import ProtocolError


@pytest.mark.parametrize(("packed", "why"), [
    (b"no zlib", "incorrect header"),
    (zlib.compress(b"[]"), "not a JSON object"),
    (zlib.compress(b"[" * 100_000), "not JSON"),
    (zlib.compress(b'{"evs": [' + b"0," * (4 << 20)), "more than 1048576 bytes"),
])  # fmt: skip
def test_unpack_resume__of_a_program_that_means_harm(packed: bytes, why: str) -> None:
    """A few kilobytes do not become megabytes that the agent reads."""
    assert len(packed) < 10_000
    with pytest.raises(ProtocolError, match=f"a program kept a wrong note: .*({why})"):
        unpack_resume(packed)
