# SPDX-License-Identifier: Apache-2.0
"""What the two ends of a transfer say to each other, and the checks on what they hear.

For each file:  sender: offer -> receiver: accept | refuse; then the sender writes the chunks, each
with an immediate that says which it is and where, and: sender: done -> receiver: stored | refuse.
After the last file the sender says bye. A sender that cannot go on says abort. One file is under
way at a time.

The receiver's window has slots of the size of a chunk. The sender chooses one for each chunk, and
the chunks may go by several QPs. The receiver stores them in their order; its credit, an immediate
of its own that counts the chunks stored so far, frees the slots of these.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Annotated, Any, ClassVar, Literal

import xxhash
from msgspec import Meta

from mrc import versions
from mrc.binding.verbs import RemoteMemory
from mrc.errors import ProtocolError
from mrc.exchange.foreign import shown
from mrc.typed import MAX_WHOLE, Whole, take

VERSION = versions.TRANSFER
Digest = xxhash.xxh3_128  # quick enough to see every byte, strong against accident, not malice
MIN_CHUNK_BYTES = 1 << 12
MAX_FILE_BYTES = MAX_WHOLE
MAX_SLOTS = 256
_SLOT_SHIFT = 23
_INDEX_MASK = (1 << _SLOT_SHIFT) - 1
Words = Annotated[str, Meta(max_length=4096)]


@dataclass(frozen=True, slots=True)
class Offer:
    """A file that the sender has, and the size of the chunks in which it will write it."""

    type: ClassVar[str] = "offer"
    name: Words
    bytes: Whole
    chunk_bytes: Annotated[int, Meta(ge=MIN_CHUNK_BYTES, le=0xFFFFFFFF)]


@dataclass(frozen=True, slots=True)
class Accept:
    """There is room; this is the window through which the file goes.

    QPs that name `token` may join the session; none, if it is empty.
    """

    type: ClassVar[str] = "accept"
    window: RemoteMemory
    token: Words


@dataclass(frozen=True, slots=True)
class Refuse:
    """The receiver will not, or could not, store the file."""

    type: ClassVar[str] = "refuse"
    code: Literal["file", "verification", "stopped"]
    error: Words


@dataclass(frozen=True, slots=True)
class Done:
    """Every chunk is written; this is the digest of what was read."""

    type: ClassVar[str] = "done"
    digest: Words


@dataclass(frozen=True, slots=True)
class Stored:
    """The file is complete, verified and has its final name."""

    type: ClassVar[str] = "stored"


@dataclass(frozen=True, slots=True)
class Abort:
    """The sender gives up."""

    type: ClassVar[str] = "abort"
    error: Words


@dataclass(frozen=True, slots=True)
class Bye:
    """There are no more files."""

    type: ClassVar[str] = "bye"


TransferMessage = Offer | Accept | Refuse | Done | Stored | Abort | Bye
_KINDS: dict[str, type[TransferMessage]] = {
    kind.type: kind for kind in (Offer, Accept, Refuse, Done, Stored, Abort, Bye)
}


def to_json(message: TransferMessage) -> dict[str, Any]:
    return {"type": message.type, **asdict(message)}


def from_json(body: dict[str, Any]) -> TransferMessage:
    """Raises ProtocolError for anything that is not a message. Unknown keys are ignored."""
    named = body.get("type")
    kind = _KINDS.get(named) if isinstance(named, str) else None
    if kind is None:
        raise ProtocolError(f"the peer sent a message of unknown type '{shown(named, 40)}'")
    try:
        return take(body, kind)
    except ValueError as error:
        raise ProtocolError(f"the peer sent a bad message {kind.type!r}: {error}") from None


def chunk_imm(index: int, slot: int) -> int:
    """The immediate that goes with a chunk."""
    return slot << _SLOT_SHIFT | index & _INDEX_MASK


def chunk_of(imm: int, after: int) -> tuple[int, int]:
    """Index and slot of a chunk; the index is the first of those that fit from `after` on."""
    return after + ((imm - after) & _INDEX_MASK), imm >> _SLOT_SHIFT
