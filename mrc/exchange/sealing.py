# SPDX-License-Identifier: Apache-2.0
"""How two hosts agree on sealed packets, and on the secrets of a QP. Pure.

Each hello carries 32 random bytes, which only the two ends know because the exchange is encrypted.
Both directions of the QP get a secret by HKDF (RFC 5869) from both random numbers and both QPNs.
`csrc/core/seal.c` derives the keys from them.
"""

from __future__ import annotations

import hashlib
import hmac

from msgspec import Struct

from mrc.enums import Seal

RANDOM_BYTES = 32


class Terms(Struct, frozen=True):
    """What one side says: its QPN, the seal that it wants, and its random bytes."""

    qpn: int
    seal: Seal
    random: bytes


def agreed(ours: Terms, theirs: Terms) -> Seal:
    """The stronger of both wishes."""
    return max(ours.seal, theirs.seal)


def secrets_of(ours: Terms, theirs: Terms, *, first: bool) -> tuple[bytes, bytes]:
    """The secrets by which this side sends and receives. `first`: this side connected."""
    one, other = (ours, theirs) if first else (theirs, ours)
    key = hmac.digest(b"mrc seal 1", one.random + other.random, hashlib.sha256)
    return _of(key, ours, theirs), _of(key, theirs, ours)


def _of(key: bytes, sender: Terms, receiver: Terms) -> bytes:
    """The secret of one direction: HKDF-Expand, whose first block is enough."""
    ends = sender.qpn.to_bytes(3, "big") + receiver.qpn.to_bytes(3, "big")
    return hmac.digest(key, b"mrc direction" + ends + b"\x01", hashlib.sha256)
