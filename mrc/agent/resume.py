# SPDX-License-Identifier: Apache-2.0
"""What an agent must know of a connected QP, as bytes that its program keeps.

A program outlives its agent. It gives these bytes to the next one, which has no other memory.
"""

from __future__ import annotations

import json
import zlib
from typing import Any, NoReturn

from msgspec import Struct, to_builtins

from mrc.agent.steering import MAX_RESUME
from mrc.connect.oob import Channel, Hello
from mrc.connect.parse import parse
from mrc.errors import PeerGoneError, ProtocolError
from mrc.fabric.hostconfig import read_address
from mrc.fabric.paths import PathEv
from mrc.typed import take

_MOST = 1 << 20  # bytes of a state that is unpacked: thousands of EVs


class ResumeState(Struct, frozen=True):
    """A connected QP."""

    called: str
    """what this host calls the peer; empty: the peer connected"""
    remote: str
    """address of the peer's agent"""
    path_mtu: int
    window: int
    evs: tuple[PathEv, ...]
    """in the order of the engine's array"""
    peer: dict[str, Any]
    """the peer's hello"""

    @property
    def hello(self) -> Hello:
        """The peer's hello."""
        return Hello.from_dict(self.peer)


def pack_resume(
    called: str, remote: str, path_mtu: int, window: int, evs: tuple[PathEv, ...], peer: Hello
) -> bytes:
    """The bytes of a state; empty if it is too large to keep: then no later agent knows the QP."""
    state = ResumeState(called, remote, path_mtu, window, evs, peer.to_dict())
    text = json.dumps(to_builtins(state, enc_hook=str)).encode()
    packed = zlib.compress(text)
    return packed if len(packed) <= MAX_RESUME and len(text) <= _MOST else b""


def unpack_resume(packed: bytes) -> ResumeState:
    """The state in these bytes; raises ProtocolError."""
    try:
        unpacker = zlib.decompressobj()
        text = unpacker.decompress(packed, _MOST)
        if unpacker.unconsumed_tail:
            raise ValueError(f"unpacked it has more than {_MOST} bytes")
        return take(parse(text), ResumeState, read=read_address)
    except (ValueError, zlib.error) as error:
        raise ProtocolError(f"a program kept a wrong note: {error}") from None


class LostChannel(Channel):
    """In place of the connection to an agent that has to be found again."""

    def __init__(self, called: str, remote: str) -> None:
        self.called = called
        self.remote = remote
        self.secured = False
        self.peer_identity = ""
        self._at_end = []

    async def send(self, kind: str, /, **fields: Any) -> NoReturn:
        """Raises PeerGoneError."""
        raise PeerGoneError("the peer's agent is not connected")

    async def receive(self, limit: int = 0) -> NoReturn:
        """Raises PeerGoneError."""
        raise PeerGoneError("the peer's agent is not connected")

    async def close(self) -> None:
        """Nothing is open."""
        self._end()

    def abort(self) -> None:
        """Nothing is open."""
        self._end()
