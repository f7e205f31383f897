# SPDX-License-Identifier: Apache-2.0
"""How each side proves who it is, inside TLS. Without input and output.

All proofs cover the certificate of the server, which each side has seen itself, and random numbers
of both sides. So a proof that somebody in between passes on is of no use: he has another key.

  key     the connecting side signs; the server has proved its own key by TLS
  secret  both sides authenticate by HMAC under a secret of 256 bits that they share
  code    SPAKE2 (RFC 9382's predecessor, as the package `spake2` does it): both sides learn whether
          they have the same code, and a wrong guess tells nothing about it
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from typing import TYPE_CHECKING

from msgspec import Struct

from mrc.errors import ConnectError, ProtocolError
from mrc.linux.secret import Secret

if TYPE_CHECKING:
    from spake2 import SPAKE2_A, SPAKE2_B

NONCE_BYTES = 32
_TEXT = """
    acid acorn actor agent alarm album alert amber angle ankle apple april apron arena armor
    arrow atlas attic audio award bacon badge bagel baker banjo barn basil beach beard bench
    berry bike birch bison blade blank bloom board boat bolt bonus book boot bottle bowl brain
    brave bread brick bridge brush bucket bugle butter cabin cable cactus camel camera canal
    candle canoe canvas carbon cargo carpet carrot castle cedar cello chalk charm cheese cherry
    chess cider cinema circle clay clock cloud clover coast cobra cocoa comet coral corner
    cotton cousin crane crayon cricket crown crystal curtain dance dawn deck denim desert diary
    dinner dolphin domino donkey dragon drum duck eagle earth echo elbow ember engine falcon
    fancy feather fern ferry fiddle field finger flame flute forest fossil fox frog frost galaxy
    garden garlic gecko ginger globe glove goat grape gravel guitar hammer harbor harp hazel
    hedge helmet heron hill honey hotel igloo index island ivory jacket jaguar jelly jewel
    jungle kayak kettle kitten koala ladder lagoon lamp laser lemon lilac lion lizard lotus
    lunar magnet mango maple marble meadow melon metal mint mirror mixer monkey moon motor
    museum nectar needle ninja nylon oasis ocean olive onion opal orbit orchid otter oyster
    paddle palace panda paper parrot pearl pebble pencil pepper piano pilot pine planet plaza
    poem polar pony poppy prism puzzle quartz rabbit radio raven ribbon river robin rocket rose
    ruby saddle salad salmon scarf school sesame shadow silver sketch spider sponge sugar summer
    sunset tailor teapot thunder tiger tomato tulip tunnel turtle velvet violin walnut
"""
WORDS = tuple(_TEXT.split())
_SEPARATORS = re.compile(r"[\s\-_.]+")
CODE_WORDS = 3


class Binding(Struct, frozen=True):
    """What a proof holds for: this connection, and no other."""

    server: bytes  # SHA-256 of its certificate
    server_nonce: bytes
    client_nonce: bytes

    def over(self, who: str) -> bytes:
        """The bytes that a proof of one side covers."""
        return b"".join(
            (
                b"mrc prove 2 ",
                who.encode(),
                b"\0",
                self.server,
                self.server_nonce,
                self.client_nonce,
            )
        )


def digest_of(certificate: bytes) -> bytes:
    return hashlib.sha256(certificate).digest()


def nonce() -> bytes:
    return secrets.token_bytes(NONCE_BYTES)


def mac(key: Secret, who: str, binding: Binding) -> bytes:
    """The proof of one side that it has the key."""
    return hmac.digest(key.bytes, binding.over(who), hashlib.sha256)


def check_mac(shown: bytes, key: Secret, who: str, binding: Binding, wrong: ConnectError) -> None:
    """Raises `wrong` if the other side does not have the key."""
    if not hmac.compare_digest(shown, mac(key, who, binding)):
        raise wrong


def load_spake2() -> None:
    """Loads the package ahead of the first guess."""
    import spake2  # noqa: F401


class Guess:
    """One side's part in a guess of the code."""

    def __init__(self, code: str, *, connects: bool) -> None:
        from spake2 import SPAKE2_A, SPAKE2_B

        side = SPAKE2_A if connects else SPAKE2_B
        self._spake: SPAKE2_A | SPAKE2_B = side(code.encode(), b"connects", b"listens")
        self.message: bytes = self._spake.start()

    def key(self, message: bytes) -> Secret:
        """The key that both sides have if their codes are the same."""
        from spake2 import SPAKEError
        from spake2.ed25519_basic import NotOnCurve

        try:
            return Secret.take(self._spake.finish(message))
        except (SPAKEError, NotOnCurve, ValueError, AssertionError) as error:
            raise ProtocolError("the peer sent a message of SPAKE2 that is none") from error


# ---- One-time codes of words ---------------------------------------------------------------------


def new_code() -> str:
    """A random code, such as `maple-rocket-cider`.

    Three words out of 256 are 24 random bits. A code is worth one guess, so that is enough.
    """
    return "-".join(secrets.choice(WORDS) for _ in range(CODE_WORDS))


def normal_code(code: str) -> str:
    """The code as both ends use it, however a user typed it; raises ValueError if it is none."""
    words = _SEPARATORS.split(code.strip().lower())
    wrong = [word for word in words if word not in WORDS]
    if wrong or len(words) != CODE_WORDS:
        raise ValueError(
            f"a code has {CODE_WORDS} words of the other host, such as maple-rocket-cider"
        )
    return "-".join(words)
