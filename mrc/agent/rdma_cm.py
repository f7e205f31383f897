# SPDX-License-Identifier: Apache-2.0
"""rdma_cm (csrc/cm): connects the ids of this host's programs with those of other hosts.

    connecting side           listening side
    cm (CmRequest)  ------>
                    <------   cm (CmAnswer): accepted, or rejected with a reason
    cm (CmAnswer)   ------>   the QP that connects is in RTS; or the program does not want it

Later, over a connection of its own, either side sends `cm_end` with the other side's token.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import random
import secrets
import socket
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from enum import Enum, IntEnum, auto
from functools import partial
from itertools import chain, islice
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from msgspec import Meta, Struct, structs, to_builtins

from mrc.agent import steering
from mrc.agent.parameters import gid_for, gids_of, peer_of, source_of, taken, unpack_address
from mrc.agent.peers import Qpn, agent_channel, described, repeat
from mrc.agent.socket import CmPortRow, Credentials
from mrc.agent.steering import AgentFrame, AgentKind, pack, struct_bytes
from mrc.connect.connect import Local
from mrc.connect.oob import Channel
from mrc.engine.native import CData
from mrc.engine.paths import LocalPort
from mrc.errors import MrcError, ProtocolError
from mrc.fabric.hostconfig import IpAddress, pack_address
from mrc.tasks import Limit, cancelled
from mrc.units import digits

if TYPE_CHECKING:
    from mrc.agent.agent import Agent

logger = logging.getLogger("mrc.agent")

# ---- Messages between agents, and structs of libmrc-cm ------------------------------------------

CM = "cm"
CM_END = "cm_end"
T = TypeVar("T")
PortNumber = Annotated[int, Meta(ge=1, le=0xFFFF)]
_Byte = Annotated[int, Meta(ge=0, le=0xFF)]
_Retries = Annotated[int, Meta(ge=0, le=7)]
_Token = Annotated[str, Meta(pattern="^[0-9a-f]{32}$")]
AGENT_CM_PRIVATE = 196  # bytes of private data of rdma_cm
AGENT_CM_CHILD = 0x80000000  # first number of the ids that peers make
_Private = Annotated[str, Meta(pattern=f"^([0-9a-f]{{2}}){{0,{AGENT_CM_PRIVATE}}}$")]
_ANY = bytes(16)
_EPHEMERAL = range(32768, 61000)
_PRIVILEGED = 1024  # smaller ones are root's
_MOST_BOUND = 1 << 16  # ids with a port
TIMEWAIT_SECONDS = 1.0
_MOST_IDS = 16384
_MOST_BACKLOG = 1024
_MOST_WAITING = 65536  # frames for a program that does not read them
# Programs such as perftest connect again when the other side is about to listen again.
_LISTEN_SECONDS = 2.0
_END_SECONDS = 5.0  # to tell the other side that a connection has ended


class CmCall(IntEnum):
    """A request of an id of rdma_cm (csrc/agent/protocol.h)."""

    BIND = 1
    LISTEN = 2
    CONNECT = 3
    ACCEPT = 4
    REJECT = 5
    ESTABLISH = 6
    DISCONNECT = 7
    DESTROY = 8
    RESUME = 9


class CmEvent(IntEnum):
    """An event for an id of rdma_cm, by rdma_cm's numbers (csrc/agent/protocol.h)."""

    CONNECT_REQUEST = 4
    CONNECT_RESPONSE = 5
    UNREACHABLE = 7
    REJECTED = 8
    ESTABLISHED = 9
    DISCONNECTED = 10
    TIMEWAIT_EXIT = 15


class Reason(IntEnum):
    """Why a request is rejected: numbers of the InfiniBand specification, which programs know."""

    NO_RESOURCES = 3
    NO_LISTENER = 8
    CONSUMER = 28


class CmParams(Struct, frozen=True):
    """What the program at one end tells the other one about its QP."""

    responder_resources: _Byte = 0
    initiator_depth: _Byte = 0
    flow_control: bool = False
    retry_count: _Retries = 0
    rnr_retry_count: _Retries = 0
    srq: bool = False
    private: _Private = ""


NOTHING = CmParams()


def because(reason: str) -> CmParams:
    """Why an id will not be connected, for the user of its program."""
    return CmParams(private=reason.encode()[:AGENT_CM_PRIVATE].hex())


class CmAddress(Struct, frozen=True):
    """One end of a connection."""

    gid: IpAddress
    port: PortNumber
    qpn: Qpn
    token: _Token
    """names this end to the other side's agent, and nobody else knows it"""


class CmRequest(Struct, frozen=True):
    """An id asks for a connection with the id that listens."""

    to: IpAddress
    port: PortNumber
    by: CmAddress
    params: CmParams


class CmAnswer(Struct, frozen=True):
    """Of the other side's program."""

    by: CmAddress | None = None
    """None: it rejects the connection, or accepts that of its request"""
    reason: Annotated[int, Meta(ge=0, le=0xFFFF)] = 0
    """not 0: rejected"""
    params: CmParams = NOTHING


class CmDisconnect(Struct, frozen=True):
    """One end has disconnected."""

    token: _Token


def message_of(content: CmRequest | CmAnswer | CmDisconnect) -> dict[str, Any]:
    """For the peer's agent."""
    found: dict[str, Any] = to_builtins(content, enc_hook=str)
    return found


def read(message: dict[str, Any], kind: type[T]) -> T:
    """A message of a peer's agent; raises ProtocolError."""
    return taken(message, kind, "wrong words about rdma_cm")


# ---- Structs of libmrc-cm -------------------------------------------------------------------


def gid_of(packed: bytes) -> IpAddress | None:
    """An address; None: any."""
    return None if packed == _ANY else unpack_address(packed)


def end_of(fields: CData) -> CmAddress:
    """The `struct mrc_agent_cm_end` of an id with a QP; raises ProtocolError."""
    found = {
        "gid": str(unpack_address(bytes(fields.gid))),
        "port": fields.port,
        "qpn": fields.qpn,
        "token": bytes(fields.token).hex(),
    }
    return read(found, CmAddress)


def params_of(fields: CData) -> CmParams:
    """What a program tells the other end; raises ProtocolError."""
    if fields.private_bytes > AGENT_CM_PRIVATE:
        raise ProtocolError(f"{fields.private_bytes} bytes of private data")
    return CmParams(
        responder_resources=fields.responder_resources,
        initiator_depth=fields.initiator_depth,
        flow_control=bool(fields.flow_control),
        retry_count=min(fields.retry_count, 7),
        rnr_retry_count=min(fields.rnr_retry_count, 7),
        srq=bool(fields.srq),
        private=bytes(fields.private_data[0 : fields.private_bytes]).hex(),
    )


# ---- Ports --------------------------------------------------------------------------------------


class CmError(Exception):
    """A call of a program fails with this errno."""

    def __init__(self, number: int) -> None:
        super().__init__(errno.errorcode[number])
        self.number = number


class CmBinding(Struct, eq=False):
    """An id with a port."""

    gid: IpAddress | None
    """None: all addresses"""
    port: int
    shares: bool = False
    """others may have the port too, while nobody listens"""
    backlog: int = 0
    """connections that may wait for the program; 0: it does not listen"""

    def meets(self, gid: IpAddress | None) -> bool:
        """Whether a peer could mean both."""
        return self.gid is None or gid is None or self.gid == gid


class CmPorts:
    """Who has a port, and who listens there."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._bound: dict[int, list[CmBinding]] = {}
        self._count = 0

    def bind(
        self, gid: IpAddress | None, port: int, *, shares: bool = False, root: bool = False
    ) -> CmBinding:
        """Takes a port, or any free one for 0; raises CmError."""
        if self._count >= _MOST_BOUND:
            raise CmError(errno.ENOMEM)
        if 0 < port < _PRIVILEGED and not root:
            raise CmError(errno.EACCES)
        if port == 0:
            first = self._rng.choice(_EPHEMERAL)
            ports = chain(range(first, _EPHEMERAL.stop), range(_EPHEMERAL.start, first))
            port = next((each for each in ports if each not in self._bound), 0)
            if port == 0:
                raise CmError(errno.EADDRNOTAVAIL)
        made = CmBinding(gid, port, shares)
        others = self._others(made)
        if any(not (shares and each.shares) or each.backlog for each in others):
            raise CmError(errno.EADDRINUSE)
        self._bound.setdefault(made.port, []).append(made)
        self._count += 1
        return made

    def _others(self, bound: CmBinding) -> list[CmBinding]:
        at_port = self._bound.get(bound.port, [])
        return [each for each in at_port if each is not bound and each.meets(bound.gid)]

    def listen(self, bound: CmBinding, backlog: int) -> None:
        """From now on peers reach it; raises CmError if another id has the port too."""
        if self._others(bound):
            raise CmError(errno.EADDRINUSE)
        bound.backlog = backlog

    def listener(self, gid: IpAddress, port: int) -> CmBinding | None:
        """Who listens there."""
        return next((b for b in self._bound.get(port, []) if b.backlog and b.meets(gid)), None)

    def free(self, bound: CmBinding) -> None:
        """The id has ended."""
        at_port = self._bound[bound.port]
        at_port.remove(bound)
        self._count -= 1
        if not at_port:
            del self._bound[bound.port]


# ---- Ids ----------------------------------------------------------------------------------------


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

    def __init__(
        self, number: int, bound: CmBinding | None, tell: Callable[[dict[str, Any]], None]
    ):
        self.number = number
        self.bound = bound
        """its port; None: that of the id that listens"""
        self._tell = tell
        self.phase = Phase.BOUND if bound else Phase.CALLED
        self.token = secrets.token_hex(16)
        self.own: CmAddress | None = None
        self.peer: CmAddress | None = None
        self._answer: asyncio.Future[CmAnswer] = asyncio.get_running_loop().create_future()
        self._timewait: asyncio.TimerHandle | None = None

    def tell(
        self, event: CmEvent, status: int = 0, *, child: int = 0, params: CmParams = NOTHING,
        peer: CmAddress | None = None, to: IpAddress | None = None, token: str = "",
    ) -> None:  # fmt: skip
        """Sends the program an event. Each side sees the other's resources as the limit of its own
        requests, so these two change places.
        """
        own = {} if to is None else {"gid": pack_address(to)}
        if token:
            own["token"] = bytes.fromhex(token)
        end: dict[str, Any] = {}
        if peer is not None:
            end = {"gid": pack_address(peer.gid), "port": peer.port, "qpn": peer.qpn}
            end["token"] = bytes.fromhex(peer.token)
        private = bytes.fromhex(params.private)
        self._tell({
            "id": self.number, "event": event, "status": status, "child": child, "own": own,
            "peer": end, "responder_resources": params.initiator_depth,
            "initiator_depth": params.responder_resources, "flow_control": params.flow_control,
            "retry_count": params.retry_count, "rnr_retry_count": params.rnr_retry_count,
            "srq": params.srq, "private_bytes": len(private), "private_data": private,
        })  # fmt: skip

    async def answered(self) -> CmAnswer:
        """What the program says to the other side, once in each of the phases that wait for it."""
        answer = await self._answer
        self._answer = asyncio.get_running_loop().create_future()
        return answer

    def answer(self, answer: CmAnswer) -> None:
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
        self.answer(CmAnswer(reason=Reason.CONSUMER))

    def fail(self, event: CmEvent, status: int, params: CmParams = NOTHING) -> None:
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


# ---- Programs -----------------------------------------------------------------------------------


class CmSession:
    """Serves one program until it ends."""

    def __init__(
        self, rdma_cm: RdmaCm, connection: socket.socket, credentials: Credentials
    ) -> None:
        self._rdma_cm = rdma_cm
        self._connection = connection
        self._visitor = credentials
        self._ends: dict[int, CmEnd] = {}
        self._next_child = AGENT_CM_CHILD
        # A program that does not read is detached: `serve` ends.
        unread = partial(connection.shutdown, socket.SHUT_RDWR)
        self._packets = steering.Packets(connection, _MOST_WAITING, unread)

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
            self._packets.clear()

    def end_all(self) -> None:
        """The program has ended: so do its connections."""
        for end in tuple(self._ends.values()):
            self._destroy(end)

    # ---- To the program -------------------------------------------------------------------

    def _tell(self, fields: dict[str, Any]) -> None:
        self._packets.send(pack(AgentKind.CM_EVENT, body=struct_bytes("mrc_agent_cm", fields)))

    def request(self, listener: CmEnd, request: CmRequest) -> CmEnd | None:
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
        self._packets.send(pack(AgentKind.ANSWER, status, frame.cookie, body))

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
                if end.bound is None or end.phase is not Phase.BOUND:
                    raise CmError(errno.EINVAL)
                in_range = 0 < fields.option < _MOST_BACKLOG
                backlog = fields.option if in_range else _MOST_BACKLOG
                self._rdma_cm.ports.listen(end.bound, backlog)
                self._rdma_cm.listen(end, self)
            case CmCall.CONNECT:
                self._connect(end, fields)
            case CmCall.ACCEPT:
                if end.phase is not Phase.CALLED or end.own is None:
                    raise CmError(errno.EINVAL)
                gid = self._rdma_cm.gid_for(end.own.gid)
                end.own = self._address(end, gid, end.own.port, fields.own.qpn)
                end.answer(CmAnswer(by=end.own, params=params_of(fields)))
            case CmCall.REJECT:
                end.answer(CmAnswer(reason=fields.status & 0xFFFF or Reason.CONSUMER,
                                  params=params_of(fields)))  # fmt: skip
            case CmCall.ESTABLISH:
                end.answer(CmAnswer())
            case CmCall.DISCONNECT:
                if end.phase not in (Phase.ACCEPTED, Phase.CONNECTED, Phase.ENDED):
                    raise CmError(errno.EINVAL)
                self._rdma_cm.disconnect(end)
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
        bound = self._rdma_cm.ports.bind(
            gid_of(bytes(fields.own.gid)), fields.own.port,
            shares=bool(fields.option), root=self._visitor.uid == 0,
        )  # fmt: skip
        end = self._ends[number] = CmEnd(number, bound, self._tell)
        return end

    def _connect(self, end: CmEnd, fields: CData) -> None:
        if end.bound is None or end.phase is not Phase.BOUND or end.bound.backlog:
            raise CmError(errno.EINVAL)
        gid = gid_of(bytes(fields.own.gid))
        if gid is None or not fields.peer.port:
            raise CmError(errno.EINVAL)
        end.own = self._address(end, gid, end.bound.port, fields.own.qpn)
        end.phase = Phase.CALLING
        to = unpack_address(bytes(fields.peer.gid))
        self._rdma_cm.connect(end, CmRequest(to, fields.peer.port, end.own, params_of(fields)))

    def _address(self, end: CmEnd, gid: IpAddress, port: int, qpn: int) -> CmAddress:
        if not 3 <= qpn <= 0xFFFFFF:
            raise CmError(errno.EINVAL)
        return CmAddress(gid, port, qpn, end.token)

    def _resume(self, fields: CData) -> CmEnd:
        """Takes up a connected id that a former agent knew."""
        number = self._add(fields)
        end = CmEnd(number, None, self._tell)
        end.own, end.peer = end_of(fields.own), end_of(fields.peer)
        end.token, end.phase = end.own.token, Phase.CONNECTED
        self._next_child = max(self._next_child, number + 1)
        self._ends[number] = end
        self._rdma_cm.keep(end)
        return end

    def _destroy(self, end: CmEnd) -> None:
        del self._ends[end.number]
        if end.phase is Phase.CALLED:
            end.reject()
        elif end.phase in (Phase.ACCEPTED, Phase.CONNECTED):
            self._rdma_cm.disconnect(end)
        end.close()
        self._rdma_cm.forget(end)


# ---- Hosts --------------------------------------------------------------------------------------


class _CmListener(Struct, eq=False):
    """An id that listens."""

    end: CmEnd
    session: CmSession
    backlog: int
    waiting: int = 0


class RdmaCm:
    """The rdma_cm of a host."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self.ports = CmPorts(agent.local.rng)
        self._listening: dict[CmBinding, _CmListener] = {}
        self._listened = asyncio.Event()  # somebody has begun to listen
        self._connected: dict[str, CmEnd] = {}  # by token
        self._connects: dict[CmEnd, asyncio.Task[None]] = {}
        self._others: set[asyncio.Task[None]] = set()

    async def close(self) -> None:
        """The agent ends: programs and their connections go on."""
        await cancelled(*self._connects.values(), *self._others)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._others.add(task)
        task.add_done_callback(self._others.discard)
        return task

    def _ports(self) -> list[LocalPort]:
        return [port for port in self._agent.local.links.ports if port is not None]

    def _dial(self, gid: IpAddress) -> tuple[Local, str, int]:
        """What to dial for the agent of the host with this GID."""
        local = self._agent.local
        own = gids_of(self._ports())
        peer = peer_of(gid, own, local.host)
        source = source_of(gid, own, peer)
        return structs.replace(local, source=source), peer, self._agent.port

    # ---- Of this host's programs ------------------------------------------------------------

    def gid_for(self, called: IpAddress) -> IpAddress:
        """The GID by which a peer knows this host, which has called it at an address."""
        return gid_for(called, self._ports())

    def listen(self, end: CmEnd, session: CmSession) -> None:
        """Peers reach the id from now on."""
        assert end.bound is not None
        self._listening[end.bound] = _CmListener(end, session, end.bound.backlog)
        self._listened.set()
        self._listened = asyncio.Event()

    def connect(self, end: CmEnd, request: CmRequest) -> None:
        """Asks for a connection."""
        task = self._connects[end] = self._spawn(self._connect(end, request))
        task.add_done_callback(lambda done: self._connects.pop(end, None))

    async def _connect(self, end: CmEnd, request: CmRequest) -> None:
        local, host, port = self._dial(request.to)
        seconds = local.config.timeouts.exchange
        try:
            async with Limit(seconds), AsyncExitStack() as stack:
                channel = await repeat(
                    lambda: stack.enter_async_context(agent_channel(local, host, port)),
                    seconds, self._agent.dialling,
                )  # fmt: skip
                await self._ask(channel, end, request)
        except (MrcError, OSError) as error:  # TimeoutError is an OSError
            late = isinstance(error, TimeoutError) and not isinstance(error, MrcError)
            why = f"{request.to} port {request.port}: "
            why += f"no answer in {digits(seconds)} s" if late else described(error)
            logger.info("rdma_cm: %s", why)
            end.fail(CmEvent.UNREACHABLE, -errno.ETIMEDOUT, because(why))

    async def _ask(self, channel: Channel, end: CmEnd, request: CmRequest) -> None:
        await channel.send(CM, **message_of(request))
        answer = read(await channel.expect(CM), CmAnswer)
        if answer.by is None:
            await channel.close()
            end.fail(CmEvent.REJECTED, answer.reason, answer.params)
            return
        end.peer, end.phase = answer.by, Phase.ANSWERED
        end.tell(CmEvent.CONNECT_RESPONSE, peer=answer.by, params=answer.params, token=end.token)
        self.keep(end)
        await channel.send(CM, **message_of(await channel.during(end.answered())))
        await channel.close()

    def keep(self, end: CmEnd) -> None:
        """The peer's agent may end the connection from now on."""
        self._connected[end.token] = end

    def disconnect(self, end: CmEnd) -> None:
        """Ends a connection, and tells the peer's agent."""
        if end.phase is not Phase.ENDED and end.peer is not None:
            self._spawn(self._disconnect(end))

    async def _disconnect(self, end: CmEnd) -> None:
        assert end.peer is not None
        local, host, port = self._dial(end.peer.gid)
        ended = message_of(CmDisconnect(end.peer.token))

        async def attempt() -> None:
            async with agent_channel(local, host, port) as channel:
                await channel.send(CM_END, **ended)
                await channel.expect(CM_END)
                await channel.close()

        try:
            async with Limit(_END_SECONDS):
                await repeat(attempt, _END_SECONDS, self._agent.dialling)
        except (MrcError, OSError) as error:  # the peer finds that the QP is gone
            logger.info("rdma_cm: %s was not told of an end: %s", end.peer.gid, error)
        end.disconnected()

    def forget(self, end: CmEnd) -> None:
        """The id is no more."""
        if (task := self._connects.pop(end, None)) is not None:
            task.cancel()
        if end.bound is not None:
            self._listening.pop(end.bound, None)
            self.ports.free(end.bound)
        self._connected.pop(end.token, None)

    def rows(self, most: int) -> tuple[CmPortRow, ...]:
        """Who listens, for `mrc agent profiles`."""
        return tuple(
            CmPortRow(port=bound.port, address=str(bound.gid or ""), pid=each.session.pid)
            for bound, each in islice(self._listening.items(), most)
        )

    # ---- Of other hosts ---------------------------------------------------------------------

    async def answer(self, channel: Channel) -> None:
        """Serves the request of a peer's agent, until the program and the peer have decided."""
        request = read(await channel.receive(), CmRequest)
        children: list[CmEnd] = []
        try:
            answer = await channel.during(self._ask_program(request, children))
            await channel.send(CM, **message_of(answer))
            if answer.by is not None:
                (child,) = children
                self.keep(child)
                self._settle(child, read(await channel.expect(CM), CmAnswer))
            await channel.close()
        finally:  # if the peer has gone, or took too long
            for child in children:
                if child.phase in (Phase.CALLED, Phase.ACCEPTED):
                    child.fail(CmEvent.UNREACHABLE, -errno.ETIMEDOUT)

    async def _ask_program(self, request: CmRequest, children: list[CmEnd]) -> CmAnswer:
        """What the program that listens says; appends the id that it gets."""
        found = await self._until_listening(request)
        if found is None:
            return CmAnswer(reason=Reason.NO_LISTENER)
        full = found.waiting >= found.backlog
        child = None if full else found.session.request(found.end, request)
        if child is None:
            return CmAnswer(reason=Reason.NO_RESOURCES)
        children.append(child)
        found.waiting += 1
        try:
            return await child.answered()
        finally:
            found.waiting -= 1

    async def _until_listening(self, request: CmRequest) -> _CmListener | None:
        """Who listens there, or begins to soon."""
        try:
            async with Limit(_LISTEN_SECONDS):
                while (bound := self.ports.listener(request.to, request.port)) is None:
                    await self._listened.wait()
        except TimeoutError:
            return None
        return self._listening[bound]

    def _settle(self, child: CmEnd, final: CmAnswer) -> None:
        if child.phase is not Phase.ACCEPTED:
            return  # ended meanwhile
        if final.reason:
            child.fail(CmEvent.REJECTED, final.reason, final.params)
        else:
            child.phase = Phase.CONNECTED
            child.tell(CmEvent.ESTABLISHED)

    async def end(self, channel: Channel) -> None:
        """The peer's program has disconnected."""
        token = read(await channel.receive(), CmDisconnect).token
        end = self._connected.get(token)
        if end is not None:
            end.disconnected()
        await channel.send(CM_END)
        await channel.close()
