# SPDX-License-Identifier: Apache-2.0
"""A program that uses rdma_cm: its ids, its calls, and the events for it."""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from collections import deque
from typing import Any, Protocol

from msgspec import structs

from mrc.agent import steering
from mrc.agent.cm import Answer, CmAddress, Reason, Request, end_of, gid_of, params_of
from mrc.agent.cm_end import CmEnd, Phase
from mrc.agent.cm_ports import CmError, CmPorts
from mrc.agent.socket import Visitor
from mrc.agent.steering import AgentFrame, pack, struct_bytes
from mrc.engine.native import CData
from mrc.enums import AgentKind, CmCall, CmEvent
from mrc.errors import ProtocolError
from mrc.fabric.hostconfig import IpAddress, unpack_address
from mrc.limits import AGENT_CM_CHILD

logger = logging.getLogger("mrc.agent")

_MOST_IDS = 16384
_MOST_BACKLOG = 1024
_MOST_WAITING = 65536  # frames for a program that does not read them


class Board(Protocol):
    """What connects ids."""

    ports: CmPorts

    def gid_for(self, called: IpAddress) -> IpAddress:
        """The GID by which a peer knows this host, which has called it at an address."""

    def listen(self, end: CmEnd, session: CmSession) -> None:
        """Peers reach the id from now on."""

    def call(self, end: CmEnd, request: Request) -> None:
        """Asks for a connection."""

    def keep(self, end: CmEnd) -> None:
        """The peer's agent may end the connection from now on."""

    def hang_up(self, end: CmEnd) -> None:
        """Ends a connection, and tells the peer's agent."""

    def forget(self, end: CmEnd) -> None:
        """The id is no more."""


class CmSession:
    """Serves one program until it ends."""

    def __init__(self, board: Board, connection: socket.socket, visitor: Visitor) -> None:
        self._board = board
        self._connection = connection
        self._visitor = visitor
        self._ends: dict[int, CmEnd] = {}
        self._next_child = AGENT_CM_CHILD
        self._waiting: deque[bytes] = deque()

    @property
    def pid(self) -> int:
        """The process of the program."""
        return self._visitor.pid

    async def serve(self) -> None:
        """Returns when the program has ended, or broken the protocol."""
        loop = asyncio.get_running_loop()
        try:
            while packet := await loop.sock_recv(self._connection, steering.MAX_FRAME):
                self._on_frame(steering.unpack(packet))
        except ProtocolError as error:
            logger.warning("process %d: rdma_cm: detached: %s", self._visitor.pid, error)
        except OSError:
            pass
        finally:
            self._waiting.clear()
            loop.remove_writer(self._connection)

    def end_all(self) -> None:
        """The program has ended: so do its connections."""
        for end in tuple(self._ends.values()):
            self._destroy(end)

    # ---- To the program -------------------------------------------------------------------

    def _send(self, packet: bytes) -> None:
        self._waiting.append(packet)
        if len(self._waiting) == 1:
            self._flush()
        elif len(self._waiting) > _MOST_WAITING:
            self._connection.shutdown(socket.SHUT_RDWR)  # `serve` ends

    def _flush(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while self._waiting:
                self._connection.send(self._waiting[0])
                self._waiting.popleft()
        except BlockingIOError:
            loop.add_writer(self._connection, self._flush)
            return
        except OSError:
            self._waiting.clear()  # `serve` finds the end of the program
        loop.remove_writer(self._connection)

    def _tell(self, fields: dict[str, Any]) -> None:
        self._send(pack(AgentKind.CM_EVENT, body=struct_bytes("mrc_agent_cm", fields)))

    def ring(self, listener: CmEnd, request: Request) -> CmEnd | None:
        """A new id for the request of a peer, which the program gets by an event; None: it has the
        most that it may have.
        """
        if len(self._ends) >= _MOST_IDS:
            return None
        number = self._next_child
        self._next_child += 1
        child = self._ends[number] = CmEnd(number, None, self._tell)
        child.peer = request.by
        child.own = structs.replace(request.by, gid=request.to, port=request.port)
        listener.tell(
            CmEvent.CONNECT_REQUEST, child=number, peer=request.by, params=request.params,
            to=request.to, token=child.token,
        )  # fmt: skip
        return child

    # ---- Calls ------------------------------------------------------------------------------

    def _on_frame(self, frame: AgentFrame) -> None:
        fields, _ = steering.checked(frame, AgentKind.CM_CALL, "mrc_agent_cm")
        try:
            port = self._do(frame.value, fields)
        except CmError as error:
            port, status = 0, -error.number
        else:
            status = 0
        body = struct_bytes("mrc_agent_cm", {"id": fields.id, "own": {"port": port}})
        self._send(pack(AgentKind.ANSWER, status, frame.cookie, body))

    def _do(self, call: int, fields: CData) -> int:
        """Returns the port of the id; raises CmError, ProtocolError."""
        if call == CmCall.BIND:
            end = self._bind(fields)
        elif call == CmCall.RESUME:
            end = self._resume(fields)
        else:
            found = self._ends.get(fields.id)
            if found is None:
                raise CmError(errno.EINVAL)
            end = found
            self._act(call, end, fields)
        return end.bound.port if end.bound else 0

    def _act(self, call: int, end: CmEnd, fields: CData) -> None:
        match call:
            case CmCall.LISTEN:
                self._listen(end, fields.option)
            case CmCall.CONNECT:
                self._connect(end, fields)
            case CmCall.ACCEPT:
                self._accept(end, fields)
            case CmCall.REJECT:
                end.answer(Answer(reason=fields.status & 0xFFFF or Reason.CONSUMER,
                                  params=params_of(fields)))  # fmt: skip
            case CmCall.ESTABLISH:
                end.answer(Answer())
            case CmCall.DISCONNECT:
                if end.phase not in (Phase.ACCEPTED, Phase.CONNECTED, Phase.ENDED):
                    raise CmError(errno.EINVAL)
                self._board.hang_up(end)
            case CmCall.DESTROY:
                self._destroy(end)
            case _:
                raise ProtocolError(f"call {call} of rdma_cm")

    def _add(self, fields: CData) -> int:
        """The number of a new id."""
        number = int(fields.id)
        if number in self._ends:
            raise CmError(errno.EINVAL)
        if len(self._ends) >= _MOST_IDS:
            raise CmError(errno.ENOMEM)
        return number

    def _bind(self, fields: CData) -> CmEnd:
        number = self._add(fields)
        bound = self._board.ports.bind(
            gid_of(bytes(fields.own.gid)), fields.own.port,
            shares=bool(fields.option), root=self._visitor.uid == 0,
        )  # fmt: skip
        end = self._ends[number] = CmEnd(number, bound, self._tell)
        return end

    def _listen(self, end: CmEnd, backlog: int) -> None:
        if end.bound is None or end.phase is not Phase.BOUND:
            raise CmError(errno.EINVAL)
        in_range = 0 < backlog < _MOST_BACKLOG
        self._board.ports.listen(end.bound, backlog if in_range else _MOST_BACKLOG)
        self._board.listen(end, self)

    def _connect(self, end: CmEnd, fields: CData) -> None:
        if end.bound is None or end.phase is not Phase.BOUND or end.bound.backlog:
            raise CmError(errno.EINVAL)
        gid = gid_of(bytes(fields.own.gid))
        if gid is None or not fields.peer.port:
            raise CmError(errno.EINVAL)
        end.own = self._address(end, gid, end.bound.port, fields.own.qpn)
        end.phase = Phase.CALLING
        to = unpack_address(bytes(fields.peer.gid))
        self._board.call(end, Request(to, fields.peer.port, end.own, params_of(fields)))

    def _address(self, end: CmEnd, gid: IpAddress, port: int, qpn: int) -> CmAddress:
        if not 3 <= qpn <= 0xFFFFFF:
            raise CmError(errno.EINVAL)
        return CmAddress(gid, port, qpn, end.token)

    def _accept(self, end: CmEnd, fields: CData) -> None:
        if end.phase is not Phase.CALLED or end.own is None:
            raise CmError(errno.EINVAL)
        gid = self._board.gid_for(end.own.gid)
        end.own = self._address(end, gid, end.own.port, fields.own.qpn)
        end.answer(Answer(by=end.own, params=params_of(fields)))

    def _resume(self, fields: CData) -> CmEnd:
        """Takes up a connected id that a former agent knew."""
        number = self._add(fields)
        end = CmEnd(number, None, self._tell)
        end.own, end.peer = end_of(fields.own), end_of(fields.peer)
        end.token, end.phase = end.own.token, Phase.CONNECTED
        self._next_child = max(self._next_child, number + 1)
        self._ends[number] = end
        self._board.keep(end)
        return end

    def _destroy(self, end: CmEnd) -> None:
        del self._ends[end.number]
        if end.phase is Phase.CALLED:
            end.reject()
        elif end.phase in (Phase.ACCEPTED, Phase.CONNECTED):
            self._board.hang_up(end)
        end.close()
        self._board.forget(end)
