# SPDX-License-Identifier: Apache-2.0
"""What an agent must know of a connected QP, as bytes that its program keeps.

A program outlives its agent. It gives the notes to the next one, which has no other memory.
"""

from __future__ import annotations

import json
import zlib
from typing import Any

from msgspec import Struct, to_builtins

from mrc.agent.steering import MAX_NOTE
from mrc.errors import ProtocolError
from mrc.exchange.foreign import parse
from mrc.exchange.oob import Hello, hello_from_dict, hello_to_dict
from mrc.fabric.hostconfig import read_address
from mrc.fabric.paths import PathEv
from mrc.typed import take

_MOST = 1 << 20  # bytes of a note that is unpacked: thousands of EVs


class Note(Struct, frozen=True):
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
        return hello_from_dict(self.peer)


def note_of(
    called: str, remote: str, path_mtu: int, window: int, evs: tuple[PathEv, ...], peer: Hello
) -> bytes:
    """The bytes of a note; empty if it is too large to keep: then no later agent knows the QP."""
    note = Note(called, remote, path_mtu, window, evs, hello_to_dict(peer))
    text = json.dumps(to_builtins(note, enc_hook=str)).encode()
    packed = zlib.compress(text)
    return packed if len(packed) <= MAX_NOTE and len(text) <= _MOST else b""


def read_note(packed: bytes) -> Note:
    """The note in these bytes; raises ProtocolError."""
    try:
        unpacker = zlib.decompressobj()
        text = unpacker.decompress(packed, _MOST)
        if unpacker.unconsumed_tail:
            raise ValueError(f"unpacked it has more than {_MOST} bytes")
        return take(parse(text), Note, read=read_address)
    except (ValueError, zlib.error) as error:
        raise ProtocolError(f"a program kept a wrong note: {error}") from None
