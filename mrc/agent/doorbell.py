# SPDX-License-Identifier: Apache-2.0
"""The endpoints of a program: their knocks at others, and the knocks of others at them."""

from __future__ import annotations

import asyncio
import errno
from itertools import count

from mrc.agent.attached import Attached
from mrc.agent.peers import Knock
from mrc.agent.reach import knock, patiently, worded
from mrc.enums import AgentKind
from mrc.errors import BusyError, ConnectError, MrcError, ProtocolError
from mrc.running import Limit
from mrc.units import digits

_MOST_VISITS = 1024  # that the program has not answered
_ANSWER_SECONDS = 10.0


class Doorbell:
    """Brings knocks from one program to another."""

    def __init__(self, program: Attached) -> None:
        self._program = program
        self._cookies = count(1)
        self._visits: dict[int, asyncio.Future[int]] = {}

    async def ring(self, asked: Knock) -> None:
        """Asks the endpoint, and tells the program its answer."""
        local, host, port = self._program.address_of(asked.to.gid)
        seconds = local.config.timeouts.exchange
        why = f"{host}: no answer in {digits(seconds)} s"

        async def attempt() -> int:
            nonlocal why
            try:
                return await knock(local, host, port, asked)
            except ConnectError as error:  # the next attempt may be cut off by the limit
                why = worded(error)
                raise

        try:
            async with Limit(seconds):
                qpn = await patiently(attempt, seconds)
        except TimeoutError:
            self._program.fail(asked.qpn, why)
        except (MrcError, OSError) as error:
            self._program.fail(asked.qpn, worded(error))
        else:
            self._program.send(AgentKind.ADMITTED, asked.qpn, 0, qpn.to_bytes(4, "little"))

    async def visit(self, asked: Knock) -> int:
        """The program's QP for an endpoint that asks; raises ConnectError, BusyError."""
        if len(self._visits) >= _MOST_VISITS:
            raise BusyError("too many endpoints ask this program at one time")
        cookie = next(self._cookies)
        answer = self._visits[cookie] = asyncio.get_running_loop().create_future()
        try:
            self._program.send(AgentKind.VISIT, 0, cookie, asked.body)
            async with Limit(_ANSWER_SECONDS):
                qpn: int = await answer
        except TimeoutError:
            raise BusyError("the program does not answer its agent") from None
        finally:
            del self._visits[cookie]
        if qpn == 0:
            raise BusyError("the program has no QP number left for now")
        if qpn == -errno.ENOSPC:
            raise ConnectError("the program has the most peers that it may have")
        if qpn < 0:
            raise ConnectError("the program has no such endpoint: has it ended?")
        return qpn

    def admit(self, qpn: int, cookie: int) -> None:
        """The program has answered; raises ProtocolError."""
        if 0 < qpn < 3 or qpn > 0xFFFFFF:
            raise ProtocolError(f"QP {qpn:#x}: not a QPN")
        answer = self._visits.get(cookie)
        if answer is not None and not answer.done():
            answer.set_result(qpn)
