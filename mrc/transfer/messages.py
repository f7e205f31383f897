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

from dataclasses import asdict, dataclass, fields
from typing import Any, ClassVar

from mrc.binding.verbs import RemoteMemory
from mrc.errors import ProtocolError
from mrc.exchange.foreign import shown

VERSION = 3
DIGEST = "xxh3_128"
MIN_CHUNK_BYTES = 1 << 12
MAX_FILE_BYTES = (1 << 63) - 1
MAX_TEXT = 4096
MAX_SLOTS = 256
_SLOT_SHIFT = 23
_INDEX_MASK = (1 << _SLOT_SHIFT) - 1


@dataclass(frozen=True, slots=True)
class Offer:
    """A file that the sender has, and the size of the chunks in which it will write it."""

    type: ClassVar[str] = "offer"
    name: str
    bytes: int
    chunk_bytes: int


@dataclass(frozen=True, slots=True)
class Accept:
    """There is room; this is the window through which the file goes.

    QPs that name `token` may join the session; none, if it is empty.
    """

    type: ClassVar[str] = "accept"
    window: RemoteMemory
    token: str


@dataclass(frozen=True, slots=True)
class Refuse:
    """The receiver will not, or could not, store the file. `code` is one of REFUSALS."""

    type: ClassVar[str] = "refuse"
    code: str
    error: str


REFUSALS = ("file", "verification", "stopped")


@dataclass(frozen=True, slots=True)
class Done:
    """Every chunk is written; this is the digest of what was read."""

    type: ClassVar[str] = "done"
    digest: str


@dataclass(frozen=True, slots=True)
class Stored:
    """The file is complete, verified and has its final name."""

    type: ClassVar[str] = "stored"


@dataclass(frozen=True, slots=True)
class Abort:
    """The sender gives up."""

    type: ClassVar[str] = "abort"
    error: str


@dataclass(frozen=True, slots=True)
class Bye:
    """There are no more files."""

    type: ClassVar[str] = "bye"


TransferMessage = Offer | Accept | Refuse | Done | Stored | Abort | Bye
_KINDS: dict[str, type[TransferMessage]] = {
    kind.type: kind for kind in (Offer, Accept, Refuse, Done, Stored, Abort, Bye)
}


def to_json(message: TransferMessage) -> dict[str, Any]:
    body: dict[str, Any] = {"type": message.type}
    if isinstance(message, Accept):
        return body | {"window": message.window.to_json(), "token": message.token}
    return body | asdict(message)


def from_json(body: dict[str, Any]) -> TransferMessage:
    """Raises ProtocolError for anything that is not a message. Unknown keys are ignored."""
    named = body.get("type")
    kind = _KINDS.get(named) if isinstance(named, str) else None
    if kind is None:
        raise ProtocolError(f"the peer sent a message of unknown type '{shown(named, 40)}'")
    values = {field.name: body.get(field.name) for field in fields(kind)}
    if kind is Accept:
        values["window"] = RemoteMemory.from_json(body.get("window"))
    for name, value in values.items():
        if not _fits(name, value):
            raise ProtocolError(f"the peer sent a message {kind.type!r} with a bad {name!r}")
    return kind(**values)  # type: ignore[arg-type]


def _fits(name: str, value: object) -> bool:
    match name:
        case "bytes":
            return type(value) is int and 0 <= value <= MAX_FILE_BYTES
        case "chunk_bytes":
            return type(value) is int and MIN_CHUNK_BYTES <= value < 1 << 32
        case "window":
            return isinstance(value, RemoteMemory)
        case "code":
            return value in REFUSALS
        case _:
            return isinstance(value, str) and len(value) <= MAX_TEXT


def chunk_imm(index: int, slot: int) -> int:
    """The immediate that goes with a chunk."""
    return slot << _SLOT_SHIFT | index & _INDEX_MASK


def chunk_of(imm: int, after: int) -> tuple[int, int]:
    """Index and slot of a chunk; the index is the first of those that fit from `after` on."""
    return after + ((imm - after) & _INDEX_MASK), imm >> _SLOT_SHIFT
