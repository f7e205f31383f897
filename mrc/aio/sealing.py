# SPDX-License-Identifier: Apache-2.0
"""The seal of a QP: what this side wants, what both hellos lead to, and the engine's command."""

from __future__ import annotations

from secrets import token_hex
from typing import Literal

from msgspec import Struct

from mrc.config import ContextConfig
from mrc.connect.oob import Channel, Hello
from mrc.connect.tls import RANDOM_BYTES
from mrc.engine import native
from mrc.engine.native import Command
from mrc.engine.queue_pair import QueuePair
from mrc.enums import Seal
from mrc.errors import ConnectError, ProtocolError
from mrc.trust.secret import Secret

NAMES: tuple[Literal["none", "auth", "aead"], ...] = ("none", "auth", "aead")
"""The words in a hello, by Seal."""


def wanted(config: ContextConfig, channel: Channel) -> Seal:
    """What this side wants for the packets; raises ConnectError if that cannot be had."""
    seal = config.seal
    if not channel.secured:
        if seal:
            raise ConnectError(
                f"sealed packets ({NAMES[seal]}) to {channel.called or channel.remote} require an"
                " encrypted exchange"
            )
        return Seal.NONE
    if native.aead_name() is None and seal is not Seal.NONE:
        raise ConnectError(
            "this host has no library to seal packets with: install OpenSSL (libcrypto), or choose"
            " --seal none on both sides"
        )
    return Seal.AEAD if seal is None else seal


class Own(Struct, frozen=True):
    """The random bytes of this side, and what stands for them in its hello."""

    random: Secret
    mark: str


def drawn(channel: Channel) -> Own | None:
    """New random bytes; None for a plain exchange, where they would be no secret."""
    if not channel.secured:
        return None
    return Own(Secret.random(RANDOM_BYTES), token_hex(RANDOM_BYTES))


def _random_of(channel: Channel, peer: Hello) -> Secret | None:
    """The random bytes of the peer."""
    index = int(peer.attributes.seal_random or "0", 16)
    return channel.randoms[index] if index < len(channel.randoms) else None


def agreed_by(channel: Channel, mine: Hello, peer: Hello, own: Own | None) -> Seal:
    """The stronger wish of both hellos; raises ProtocolError if the peer's is wrong."""
    seal = Seal(max(NAMES.index(each.attributes.seal) for each in (mine, peer)))
    if seal and own is None:
        raise ProtocolError("the peer wants sealed packets, but the exchange is not encrypted")
    if seal and own is not None and _random_of(channel, peer) in (None, own.random):
        raise ProtocolError("the peer sent no random bytes of its own for sealed packets")
    return seal


def command(
    queue: QueuePair, channel: Channel, peer: Hello, own: Own, seal: Seal, *, first: bool
) -> Command:
    """The command that gives the engine the secrets of the QP. The random bytes are wiped."""
    random = _random_of(channel, peer)
    assert random is not None
    qpn = peer.attributes.qpn
    made = queue.set_seal(seal, qpn, random=own.random, peer_random=random, first=first)
    for each in (own.random, *channel.randoms):
        each.wipe()
    channel.randoms.clear()
    return made
