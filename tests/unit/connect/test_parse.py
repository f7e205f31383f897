# SPDX-License-Identifier: Apache-2.0
"""Values from peers, made safe for terminals, logs and arithmetic."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mrc.connect.parse import MAX_WHOLE, harmless_lines, parse, printable, shown


def test_printable__escapes_what_a_terminal_acts_on() -> None:
    assert printable("a b\x1b[2J\n\u202eä\udcff") == "a b\\x1b[2J\\n\\u202eä\\udcff"


def test_shown__is_cut() -> None:
    assert shown("x" * 10, 10) == "x" * 10
    assert shown("x" * 11, 10) == "xxxxxxx..."
    assert shown("\x1b" * 9, 10) == "\\x1b\\x1..."


NESTED: Any = []
for _ in range(10_000):
    NESTED = [NESTED]


@pytest.mark.parametrize(
    ("value", "said"),
    [(7, "7"), (None, "None"), (1.5, "1.5"), (True, "True"), (NESTED, "(list)"), ({}, "(dict)")],
    ids=["whole", "none", "real", "flag", "nested", "object"],
)
def test_shown__what_is_no_text(value: Any, said: str) -> None:
    assert shown(value) == said


@given(st.text() | st.integers() | st.lists(st.text()))
def test_shown__is_one_harmless_line_of_bounded_length(value: Any) -> None:
    assert shown(value, 40).isprintable()
    assert len(shown(value, 40)) <= 40


def test_harmless_lines__keeps_the_lines() -> None:
    assert harmless_lines("a\tb\nc\x1b[1m\u200b") == "a\\tb\nc\\x1b[1m\\u200b"


def test_parse__an_object() -> None:
    told = {"a": [MAX_WHOLE, -MAX_WHOLE, 1.5, None, "é", {"b": True}]}
    assert parse(json.dumps(told).encode()) == told


@pytest.mark.parametrize(
    "data",
    [b"", b"{", b"\xff", b"[" * 100_000, b"[1]", b"1", b'{"a": NaN}', b'{"a": Infinity}',
     b'{"a": 1e400}', b'{"a": -1e400}', b'{"a": 18446744073709551616}',
     b'{"a": 1' + b"0" * 400 + b"}", b'{"a": 1' + b"0" * 5000 + b"}"],
)  # fmt: skip
def test_parse__refuses(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"^not (JSON|a JSON object)$"):
        parse(data)
