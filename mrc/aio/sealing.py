# SPDX-License-Identifier: Apache-2.0
"""The seal of a QP: what this side wants, what both hellos lead to, and the engine's command."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from msgspec import structs

from mrc.binding import native
from mrc.binding.native import Command
from mrc.binding.verbs import QueuePair
from mrc.config import ContextConfig
from mrc.enums import Seal
from mrc.errors import ConnectError, ProtocolError
from mrc.exchange.oob import Channel, Hello
from mrc.exchange.sealing import RANDOM_BYTES, Terms, agreed, secrets_of

__all__ = ["NAMES", "RANDOM_BYTES", "agreed_by", "command", "wanted", "without_random"]

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


def _terms(hello: Hello) -> Terms:
    attributes = hello.attributes
    random = bytes.fromhex(attributes.seal_random)
    return Terms(attributes.qpn, Seal(NAMES.index(attributes.seal)), random)


def agreed_by(channel: Channel, mine: Hello, peer: Hello) -> Seal:
    """The seal that both hellos lead to; raises ProtocolError if the peer's is wrong."""
    ours, theirs = _terms(mine), _terms(peer)
    seal = agreed(ours, theirs)
    if seal and not channel.secured:
        raise ProtocolError("the peer wants sealed packets, but the exchange is not encrypted")
    if seal and (not theirs.random or theirs.random == ours.random):
        raise ProtocolError("the peer sent no random bytes of its own for sealed packets")
    return seal


def without_random(hello: Hello) -> Hello:
    """What may be kept of a hello: the secrets follow from its random bytes."""
    return structs.replace(hello, attributes=replace(hello.attributes, seal_random=""))


def command(queue: QueuePair, mine: Hello, peer: Hello, seal: Seal, *, first: bool) -> Command:
    """The command that gives the engine the secrets of the QP."""
    send, receive = secrets_of(_terms(mine), _terms(peer), first=first)
    return queue.set_seal(seal, peer.attributes.qpn, send=send, receive=receive)
