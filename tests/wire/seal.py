# SPDX-License-Identifier: Apache-2.0
"""Sealed packets and SPAKE2 over Ed25519, written a second time from their description, with the
package cryptography. They share no code with csrc/core/seal.c and the package spake2, so that a
mistake in one of them does not hide.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from hashlib import sha256

from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF, HKDFExpand

AUTH, AEAD = 1, 2  # modes
TAG_BYTES, SEAL_BYTES, IMM_BYTES = 16, 12, 4
BTH, METH, TSETH, RETH = 12, 4, 4, 16
HEADERS = {0xD1: BTH + 4, 0xD8: BTH + 16, 0xD9: BTH + 36, 0xDC: BTH + 28 + 8, 0xDD: BTH + 20,
           0xDE: BTH + 16}  # fmt: skip
FIRST_DATA, LAST_DATA, WITH_IMM = 0xC6, 0xCB, (0xC9, 0xCB)
TS = 0x10  # flag in byte 8: a TSETH follows
IS_SEALED = 0x01  # version of the transport in byte 1


def qp_secret(randoms: tuple[bytes, bytes], sender_qpn: int, receiver_qpn: int) -> bytes:
    """The secret of one direction. `randoms` are those of the connecting and the listening side."""
    ends = sender_qpn.to_bytes(3, "big") + receiver_qpn.to_bytes(3, "big")
    return HKDF(SHA256(), 32, b"mrc seal 1", b"mrc direction" + ends).derive(b"".join(randoms))


def epoch_secret(secret: bytes, epoch: int) -> bytes:
    """The secret of an epoch; the one of a direction is that of epoch 0."""
    for _ in range(epoch):
        secret = HKDFExpand(SHA256(), 32, b"mrc next").derive(secret)
    return secret


def epoch_keys(secret: bytes, epoch: int) -> tuple[bytes, bytes]:
    """Key and IV of an epoch."""
    secret = epoch_secret(secret, epoch)
    key = HKDFExpand(SHA256(), 32, b"mrc key").derive(secret)
    return key, HKDFExpand(SHA256(), 12, b"mrc iv").derive(secret)


def clear_bytes(packet: bytes) -> int:
    """The bytes at the beginning that AEAD leaves readable."""
    if FIRST_DATA <= packet[0] <= LAST_DATA:
        return BTH + METH + (TSETH if packet[8] & TS else 0) + RETH
    return HEADERS[packet[0]]


@dataclass(frozen=True, slots=True)
class Opened:
    """A sealed packet without its seal."""

    body: bytes  # headers, immediate, payload and padding
    mode: int
    qpn: int  # of the receiver
    counter: int


@dataclass(frozen=True, slots=True)
class Direction:
    """What one side of a QP sends to the other."""

    secret: bytes
    epoch_bits: int

    def nonce(self, ev: int, counter: int) -> bytes:
        _, iv = epoch_keys(self.secret, counter >> self.epoch_bits)
        return (int.from_bytes(iv, "big") ^ (ev << 64 | counter)).to_bytes(12, "big")

    def _cipher(self, ev: int, counter: int) -> tuple[AESGCM, bytes]:
        key, _ = epoch_keys(self.secret, counter >> self.epoch_bits)
        return AESGCM(key), self.nonce(ev, counter)

    def open(self, packet: bytes, ev: int) -> Opened:
        """Raises cryptography's InvalidTag."""
        covered, tag = packet[:-TAG_BYTES], packet[-TAG_BYTES:]
        body, seal = covered[:-SEAL_BYTES], covered[-SEAL_BYTES:]
        assert body[1] & 0x0F == IS_SEALED
        mode, qpn, counter = seal[0], int.from_bytes(seal[1:4], "big"), int.from_bytes(seal[4:])
        cipher, nonce = self._cipher(ev, counter)
        if mode == AUTH:
            assert cipher.decrypt(nonce, tag, covered) == b""
        else:
            clear, text = body[: clear_bytes(body)], body[clear_bytes(body) :]
            body = clear + cipher.decrypt(nonce, text + tag, clear)
        return Opened(body, mode, qpn, counter)

    def close(self, opened: Opened, ev: int) -> bytes:
        """Seals a packet."""
        cipher, nonce = self._cipher(ev, opened.counter)
        body, seal = opened.body, bytes([opened.mode]) + opened.qpn.to_bytes(3, "big")
        seal += opened.counter.to_bytes(8, "big")
        if opened.mode == AUTH:
            return body + seal + cipher.encrypt(nonce, b"", body + seal)
        clear, text = body[: clear_bytes(body)], body[clear_bytes(body) :]
        made = cipher.encrypt(nonce, text, clear)
        return clear + made[:-TAG_BYTES] + seal + made[-TAG_BYTES:]


# ---- SPAKE2 over Ed25519 -------------------------------------------------------------------------
#
# Plain arithmetic, slow, and for tests only. It is the SPAKE2 of the package spake2, which differs
# from RFC 9382 in its points M and N, in how a code becomes a number, and in the transcript.


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
