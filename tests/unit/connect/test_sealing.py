# SPDX-License-Identifier: Apache-2.0
"""Random bytes go into a frame after it was encoded, and out of it before it is decoded."""

from __future__ import annotations

import json

import pytest

from mrc.connect import tls
from mrc.trust.secret import Secret

RANDOM, OTHER = bytes(range(200, 232)), bytes(range(32))


def hello(**attributes: object) -> dict[str, object]:
    return {"type": "hello", "private": {}, "attributes": {"qpn": 5, **attributes}}


def test_write__is_read_by_everybody() -> None:
    mark = "ab" * 32
    frame = bytearray(json.dumps(hello(seal_random=mark)).encode())
    tls.write_random(Secret.copy(RANDOM), frame, mark.encode())
    assert json.loads(frame) == hello(seal_random=RANDOM.hex())


@pytest.mark.parametrize("indent", [None, 2])
def test_cut__leaves_an_index(indent: int | None) -> None:
    frame = bytearray(json.dumps(hello(seal_random=RANDOM.hex()), indent=indent).encode())
    (found,) = tls.cut_random(frame)
    assert found.bytes == RANDOM
    assert json.loads(frame) == hello(seal_random="0" * 64)


def test_cut__a_name_of_the_caller_is_another_entry() -> None:
    message = hello(seal_random=RANDOM.hex()) | {"private": {"seal_random": OTHER.hex()}}
    frame = bytearray(json.dumps(message).encode())
    found = tls.cut_random(frame)
    index = int(json.loads(frame)["attributes"]["seal_random"], 16)
    assert found[index].bytes == RANDOM and len(found) == 2


@pytest.mark.parametrize("text", ["", "ab", "AB" * 32, "xy" * 32])
def test_cut__other_text_stays_for_the_checks(text: str) -> None:
    frame = bytearray(json.dumps(hello(seal_random=text)).encode())
    assert tls.cut_random(frame) == []
    assert json.loads(frame) == hello(seal_random=text)
