# SPDX-License-Identifier: Apache-2.0
"""The random bytes in both hellos, which the secrets of a sealed QP follow from. Pure.

Each hello carries 32 random bytes, which only the two ends know because the exchange is encrypted.
`csrc/core/wire/seal.c` derives the secrets from them. They travel as text in JSON, and Python would
leave copies of this text in its memory. So a frame is encoded with a mark in their place, and
decoded after they have been cut out of it.
"""

from __future__ import annotations

import re

from mrc.trust.memory import Secret

RANDOM_BYTES = 32
_DIGITS = b"0123456789abcdef"
_RANDOM = re.compile(rb'"seal_random"\s*:\s*"([0-9a-f]{64})"')


def write(random: Secret, frame: bytearray, mark: bytes) -> None:
    """Writes random bytes into a frame, in place of the mark, which is as long as their text."""
    at = frame.index(mark)
    for number, byte in enumerate(random.bytes):
        frame[at + 2 * number] = _DIGITS[byte >> 4]
        frame[at + 2 * number + 1] = _DIGITS[byte & 15]


def cut(frame: bytearray) -> list[Secret]:
    """Cuts random bytes out of a frame: their text becomes their index in the returned list.

    So does an entry of this name in the private data of the peer's user.
    """
    found: list[Secret] = []
    for match in _RANDOM.finditer(frame):
        random, (begin, end) = Secret(RANDOM_BYTES), match.span(1)
        for number, at in enumerate(range(begin, end, 2)):
            high, low = _DIGITS.index(frame[at]), _DIGITS.index(frame[at + 1])
            random.bytes[number] = high << 4 | low
        frame[begin:end] = b"%064x" % len(found)
        found.append(random)
    return found
