# SPDX-License-Identifier: Apache-2.0
"""Whom the user at the terminal lets send.

Consent holds for a key that the sender has proved, never for a name or an address: "y" until the
command ends, "always" also later. A sender who has proved no key is asked about each time.
"""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime

from mrc.cli.asking import Asking
from mrc.cli.output import format_bytes
from mrc.cli.progress import ProgressMeter
from mrc.exchange.foreign import shown
from mrc.tasks import cancelled
from mrc.transfer.messages import Asking as AskingMessage
from mrc.transfer.messages import Refuse
from mrc.transfer.patience import patience
from mrc.transfer.session import TAKES_ASKING, Session, TransferError
from mrc.trust.identity import PREFIX
from mrc.trust.known import allow, allowed, default_allowed
from mrc.trust.security import Security

_YES = ("y", "yes")


class Consent:
    """Asks about senders, one question at a time."""

    def __init__(
        self, security: Security | None, meter: ProgressMeter, *, idle_seconds: float
    ) -> None:
        self._security = security
        self._meter = meter
        self._idle_seconds = idle_seconds
        self._asking = Asking()
        self._turn = asyncio.Lock()
        self._given: set[str] = set()  # fingerprints, until the command ends

    async def get(self, session: Session) -> float:
        """Returns the seconds that the user took; raises TransferError if the answer is no."""
        if self._security is None or not self._security.allow_any or self._has(session):
            return 0.0
        start = time.monotonic()
        if session.qp.private.get(TAKES_ASKING) is True:
            async with patience(session, self._idle_seconds):
                await session.say(AskingMessage())
        answer = asyncio.create_task(self._answer(session))
        gone = asyncio.create_task(session.qp.peer_gone.wait())
        try:
            await asyncio.wait((answer, gone), return_when=asyncio.FIRST_COMPLETED)
            if not answer.done():
                raise TransferError("the sender did not wait for an answer")
            accepted = answer.result()
        except asyncio.CancelledError:  # the sender need not try again
            await session.say_last(Refuse("stopped", "the receiver was stopped"))
            raise
        finally:
            await cancelled(answer, gone)
        if not accepted:
            await session.say_last(Refuse("stopped", "the user did not accept the files"))
            raise TransferError("the files were not accepted")
        return time.monotonic() - start

    def _has(self, session: Session) -> bool:
        who, path = session.qp.peer_identity, default_allowed()
        always = allowed([str(path)]) if path.exists() else ()
        return _is_key(who) and (who in self._given or who in always)

    async def _answer(self, session: Session) -> bool:
        async with self._turn:
            if self._has(session):  # from the answer to another session of this sender
                return True
            with self._meter.lines():
                answer = await self._asking.ask(_question(session))
            if _is_key(who := session.qp.peer_identity):
                return self._remember(who, session.qp.peer_address, answer)
            return answer in _YES

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


def _question(session: Session) -> str:
    offered, qp = session.qp.private, session.qp
    files, size = offered.get("files"), offered.get("bytes")
    what = f"{files} files" if type(files) is int and files != 1 else "a file"
    how_much = format_bytes(size) if type(size) is int and size >= 0 else "of unknown size"
    proved = qp.peer_identity or "no key"
    choices = "[y/N/always]" if _is_key(proved) else "[y/N]"
    who = f"{shown(qp.peer_name)} ({qp.peer_address}, {proved})"
    return f"{who} offers {what}, {how_much}: accept? {choices} "
