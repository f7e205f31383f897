# SPDX-License-Identifier: Apache-2.0
"""SPAKE2 over Ed25519, written a second time: plain arithmetic, slow, and for tests only.

It is the SPAKE2 of the package spake2, which differs from RFC 9382 in its points M and N, in how a
code becomes a number, and in the transcript. It shares no code with that package.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from hashlib import sha256

from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

Point = tuple[int, int]
PRIME = 2**255 - 19
ORDER = 2**252 + 27742317777372353535851937790883648493
D = -121665 * pow(121666, -1, PRIME) % PRIME
ROOT = pow(2, (PRIME - 1) // 4, PRIME)  # of -1
ZERO = (0, 1)


def add(p: Point, q: Point) -> Point:
    (x1, y1), (x2, y2) = p, q
    product = D * x1 * x2 * y1 * y2 % PRIME
    x = (x1 * y2 + x2 * y1) * pow(1 + product, -1, PRIME) % PRIME
    return x, (y1 * y2 + x1 * x2) * pow(1 - product, -1, PRIME) % PRIME


@cache
def times(n: int, p: Point) -> Point:
    found = ZERO
    for bit in f"{n:b}":
        found = add(found, found)
        if bit == "1":
            found = add(found, p)
    return found


def with_y(y: int) -> Point | None:
    """The point of the curve with this y and an even x."""
    square = (y * y - 1) * pow(D * y * y + 1, -1, PRIME) % PRIME
    x = pow(square, (PRIME + 3) // 8, PRIME)
    for root in (x, x * ROOT % PRIME):
        if root * root % PRIME == square:
            return (root if root % 2 == 0 else PRIME - root), y
    return None


BASE = with_y(4 * pow(5, -1, PRIME) % PRIME)


def encoded(p: Point) -> bytes:
    """32 bytes, as Ed25519 writes a point."""
    return (p[1] | (p[0] & 1) << 255).to_bytes(32, "little")


def _number(material: bytes, info: bytes) -> int:
    return int.from_bytes(HKDF(SHA256(), 48, b"", info).derive(material), "big")


def element(seed: bytes) -> Point:
    """A point whose logarithm nobody knows."""
    y = _number(seed, b"SPAKE2 arbitrary element") % PRIME
    while True:
        found = with_y(y)
        if found is not None and (large := times(8, found)) != ZERO:
            return large
        y = (y + 1) % PRIME


M, N = element(b"M"), element(b"N")


@dataclass(frozen=True, slots=True)
class Meeting:
    """Both sides have the same code. The 64 random bytes of each give its number."""

    code: bytes
    connects: bytes
    listens: bytes

    @property
    def number(self) -> int:
        """The code as a number."""
        return _number(self.code, b"SPAKE2 pw") % ORDER

    def message(self, side: str) -> bytes:
        """What a side sends."""
        letter, blind = (b"A", M) if side == "connects" else (b"B", N)
        assert BASE is not None
        own = times(int.from_bytes(getattr(self, side), "big") % ORDER, BASE)
        return letter + encoded(add(own, times(self.number, blind)))

    @property
    def shared(self) -> bytes:
        """The point that both compute."""
        x, y = (int.from_bytes(each, "big") % ORDER for each in (self.connects, self.listens))
        assert BASE is not None
        return encoded(times(x * y % ORDER, BASE))

    @property
    def key(self) -> bytes:
        parts = [sha256(each).digest() for each in (self.code, b"connects", b"listens")]
        parts += [self.message("connects")[1:], self.message("listens")[1:], self.shared]
        return sha256(b"".join(parts)).digest()
