# SPDX-License-Identifier: Apache-2.0
"""Whom the user at the terminal lets send.

Consent holds for a key that the sender has proved, never for a name or an address: "y" until the
command ends, "always" also later. A sender who has proved no key is asked about each time. What the
question shows is all that the transfer may store.
"""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime

from msgspec import Struct

from mrc.cli.endpoint import Question
from mrc.cli.output import format_bytes
from mrc.connect.parse import quoted
from mrc.transfer.cli.progress import ProgressMeter
from mrc.transfer.messages import Announced
from mrc.transfer.server import agreement, refuse
from mrc.transfer.session import TransferSession
from mrc.trust.identity import PREFIX, allow, allowed, default_allowed
from mrc.trust.security import Security
from mrc.units import counted

_YES = ("y", "yes")
_NAMES = 3  # that a question shows
_NAME_CHARACTERS = 32
_BUSY = "its user is asked about another transfer from this address: try again afterwards"


class Consent(Struct, frozen=True):
    """An answer. `agreed`: what it covers; None: whatever comes, from somebody who is trusted."""

    seconds: float = 0.0
    """from the offer to the answer"""
    agreed: Announced | None = None


class Consents:
    """Asks about senders, one question at a time."""

    def __init__(
        self, security: Security | None, meter: ProgressMeter, *, idle_seconds: float
    ) -> None:
        self._security = security
        self._meter = meter
        self._idle_seconds = idle_seconds
        self._asking = Question()
        self._turn = asyncio.Lock()
        self._given: set[str] = set()  # fingerprints, until the command ends
        self._open: dict[str, str] = {}  # by address: who the open question is about

    async def get(self, session: TransferSession) -> Consent:
        """What the user agreed to; raises TransferError if that is nothing.

        One question about each address is open at a time: a stranger with many keys cannot keep
        the user busy.
        """
        if self._security is None or not self._security.allow_any or self._has(session):
            return Consent()
        address, who = session.qp.peer_address, session.qp.peer_identity
        if address in self._open and not (_is_key(who) and self._open[address] == who):
            await refuse(session, _BUSY, f"refused another sender at {address}: a question is open")
        first = address not in self._open
        self._open.setdefault(address, who)
        try:
            start = time.monotonic()
            answered = await agreement(session, self._answer, self._idle_seconds)
            return Consent(time.monotonic() - start, answered.agreed)
        finally:
            if first:
                del self._open[address]

    def _has(self, session: TransferSession) -> bool:
        who, path = session.qp.peer_identity, default_allowed()
        always = allowed([str(path)]) if path.exists() else ()
        return _is_key(who) and (who in self._given or who in always)

    async def _answer(self, session: TransferSession, announced: Announced) -> Consent | None:
        """None: no."""
        async with self._turn:
            if self._has(session):  # from the answer to another session of this sender
                return Consent()
            with self._meter.lines():
                answer = await self._asking.ask(_question(session, announced))
            yes = answer in _YES
            if _is_key(who := session.qp.peer_identity):
                yes = self._remember(who, session.qp.peer_address, answer)
            return Consent(agreed=announced) if yes else None

    def _remember(self, who: str, address: str, answer: str) -> bool:
        """What the answer about a proved key means, also for later."""
        if answer == "always":
            path = default_allowed()
            try:
                allow(path, who, f"{address}, {datetime.now(UTC):%Y-%m-%d}")
            except OSError as error:
                why = (error.strerror or str(error)).lower()
                self._meter.note(f"{path}: {why}: the answer counts until this command ends")
            else:
                self._meter.note(f"{path} has {who} now: remove that line to be asked again")
                return True
        elif answer in _YES:
            self._meter.note(f"no further question about {who} until this command ends")
        else:
            return False
        self._given.add(who)
        return True


def _is_key(identity: str) -> bool:
    return identity.startswith(PREFIX)


def _question(session: TransferSession, announced: Announced) -> str:
    """Who it is comes first; what a peer chose itself is quoted, and short."""
    qp = session.qp
    proved = qp.peer_identity or "no key"
    choices = "[y/N/always]" if _is_key(proved) else "[y/N]"
    who = f"{proved} at {qp.peer_address}, called {quoted(qp.peer_name, _NAME_CHARACTERS)},"
    return f"{who} offers {_what(announced)}: accept? {choices} "


def _what(announced: Announced) -> str:
    files, size = announced.files, announced.bytes
    what = "files" if files is None else "a file" if files == 1 else counted(files, "file")
    if folders := announced.folders:
        what += " and " + ("a folder" if folders == 1 else counted(folders, "folder"))
    what += f", {'of unknown size' if size is None else format_bytes(size)}"
    names = ", ".join(quoted(name, _NAME_CHARACTERS) for name in announced.names[:_NAMES])
    more = announced.more + len(announced.names[_NAMES:])
    return what + (f": {names}" if names else "") + (f" and {more} more" if more else "")
