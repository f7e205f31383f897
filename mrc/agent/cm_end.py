# SPDX-License-Identifier: Apache-2.0
"""One id of rdma_cm, as its agent knows it."""

from __future__ import annotations

import asyncio
import errno
import secrets
from collections.abc import Callable
from enum import Enum, auto
from typing import Any

from mrc.agent.cm import NOTHING, Answer, CmAddress, Params, Reason, event_fields
from mrc.agent.cm_ports import Bound, CmError
from mrc.enums import CmEvent
from mrc.fabric.hostconfig import IpAddress, pack_address

TIMEWAIT_SECONDS = 1.0


class Phase(Enum):
    """How far it is."""

    BOUND = auto()  # or listening
    CALLING = auto()
    ANSWERED = auto()  # it calls; the other side has accepted, this one has not said that it is up
    CALLED = auto()
    ACCEPTED = auto()  # it was called; the other side is not up yet
    CONNECTED = auto()
    ENDED = auto()


class CmEnd:
    """An id that has a port, or that a peer's request has made."""

    def __init__(self, number: int, bound: Bound | None, tell: Callable[[dict[str, Any]], None]):
        self.number = number
        self.bound = bound
        """its port; None: that of the id that listens"""
        self._tell = tell
        self.phase = Phase.BOUND if bound else Phase.CALLED
        self.token = secrets.token_hex(16)
        self.own: CmAddress | None = None
        self.peer: CmAddress | None = None
        self._answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._timewait: asyncio.TimerHandle | None = None

    def tell(
        self, event: CmEvent, status: int = 0, *, child: int = 0, params: Params = NOTHING,
        peer: CmAddress | None = None, to: IpAddress | None = None, token: str = "",
    ) -> None:  # fmt: skip
        """Sends the program an event."""
        own = {} if to is None else {"gid": pack_address(to)}
        if token:
            own["token"] = bytes.fromhex(token)
        fields = event_fields(
            self.number, event, status=status, child=child, params=params, peer=peer, own=own
        )
        self._tell(fields)

    async def answered(self) -> Answer:
        """What the program says to the other side, once in each of the phases that wait for it."""
        answer = await self._answer
        self._answer = asyncio.get_running_loop().create_future()
        return answer

    def answer(self, answer: Answer) -> None:
        """The program has decided; raises CmError if nobody waits for that."""
        if self.phase not in (Phase.CALLED, Phase.ANSWERED) or self._answer.done():
            raise CmError(errno.EINVAL)
        accepts = answer.reason == 0
        if self.phase is Phase.CALLED:
            self.phase = Phase.ACCEPTED if accepts else Phase.ENDED
        else:
            self.phase = Phase.CONNECTED if accepts else Phase.ENDED
        self._answer.set_result(answer)

    def reject(self) -> None:
        """The program does not want to decide any more."""
        self.answer(Answer(reason=Reason.CONSUMER))

    def fail(self, event: CmEvent, status: int, params: Params = NOTHING) -> None:
        """It will not be connected."""
        if self.phase is not Phase.ENDED:
            self.phase = Phase.ENDED
            self.tell(event, status, params=params)

    def disconnected(self) -> None:
        """One side has ended the connection, and both know it."""
        if self.phase is Phase.ENDED:
            return
        self.phase = Phase.ENDED
        self.tell(CmEvent.DISCONNECTED)
        self._timewait = asyncio.get_running_loop().call_later(
            TIMEWAIT_SECONDS, self.tell, CmEvent.TIMEWAIT_EXIT
        )

    def close(self) -> None:
        """The program has destroyed it."""
        self.phase = Phase.ENDED
        if self._timewait is not None:
            self._timewait.cancel()
