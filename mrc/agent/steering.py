# SPDX-License-Identifier: Apache-2.0
"""The engine of another process, steered over a Unix socket: csrc/agent/protocol.h."""

from __future__ import annotations

import asyncio
import secrets
import socket
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from enum import IntEnum
from functools import partial
from typing import Any, NamedTuple

from msgspec import Struct

from mrc.engine import engine, native
from mrc.engine.native import CData, ffi, lib
from mrc.enums import CommandOp, EventType, QpState
from mrc.errors import ProtocolError, StateError

VERSION = int(lib.MRC_AGENT_VERSION)
MAX_FRAME = int(lib.MRC_AGENT_MAX_FRAME)
MAX_RESUME = int(lib.MRC_AGENT_MAX_RESUME)
MAX_NUMBERS = int(lib.MRC_AGENT_MAX_NUMBERS)
MAX_GIDS = int(lib.MRC_AGENT_MAX_GIDS)
MAX_TEXT = int(lib.MRC_AGENT_TEXT)
_HEADER = ffi.sizeof("struct mrc_agent_frame")
_COMMAND = ffi.sizeof("struct mrc_command")
_EVENT = ffi.sizeof("struct mrc_event")
_BUFFER_BYTES = 1 << 20  # of the socket, in each direction
_COOKIE_BITS = 61
_MOST_WAITING = 4096  # frames for a program that does not read them

# The memory behind the pointer of a command: the type of its items, and whether the program fills
# it. The number of items is `value` for arrays, else 1.
_ARRAYS: Mapping[CommandOp, tuple[str, bool]] = {
    CommandOp.QP_SET_EVS: ("struct mrc_ev_attr", False),
    CommandOp.QP_SET_PEER: ("struct mrc_peer_source", False),
    CommandOp.QP_QUERY_EVS: ("struct mrc_ev_info", True),
    CommandOp.COUNTERS: ("uint64_t", True),
    CommandOp.DROPS: ("uint64_t", True),
    CommandOp.TRACE: ("struct mrc_trace_entry", True),
}
_STRUCTS: Mapping[CommandOp, tuple[str, bool]] = {
    CommandOp.QP_CREATE: ("struct mrc_qp_create_attr", False),
    CommandOp.QP_SET_SEAL: ("struct mrc_seal_attr", False),
    CommandOp.QP_QUERY: ("struct mrc_qp_info", True),
    CommandOp.PORT_OPEN: ("struct mrc_port_opening", True),
    CommandOp.MSG_CONNECT: ("struct mrc_msg_inbox", False),
}
_MOVES: Mapping[int, tuple[str, bool]] = {
    QpState.RTR: ("struct mrc_qp_rtr_attr", False),
    QpState.RTS: ("struct mrc_qp_rts_attr", False),
}  # QP_MODIFY, by the state


class AgentKind(IntEnum):
    """Kind of a `struct mrc_agent_frame` (csrc/agent/protocol.h)."""

    ATTACH = 1
    OPENED = 2
    NUMBERS = 3
    CONNECT = 4
    RELEASE = 5
    EVENT = 6
    REQUEST = 7
    QP_REQUEST = 8
    ADMIT = 9
    KEEP = 10
    CM_ATTACH = 11
    CM_CALL = 12
    REFUSED = 64
    OPEN = 65
    GRANTED = 66
    COMMAND = 67
    READY = 68
    FAILED = 69
    GONE = 70
    PORTS = 71
    ANSWER = 72
    EV_EVENT = 73
    PEER_REQUEST = 74
    ADMITTED = 75
    CM_EVENT = 76


class AgentFrame(NamedTuple):
    """One packet of the socket."""

    kind: AgentKind
    value: int
    cookie: int
    body: bytes


def pack(kind: AgentKind, value: int = 0, cookie: int = 0, body: bytes = b"") -> bytes:
    """The bytes of a frame."""
    header = ffi.new("struct mrc_agent_frame *", [kind, value, cookie])
    return bytes(ffi.buffer(header)) + body


def line_of(text: str) -> bytes:
    """A line of text for a program."""
    return text.encode()[: MAX_TEXT - 1]


def unpack(packet: bytes) -> AgentFrame:
    """The frame in a packet of a program; raises ProtocolError."""
    if len(packet) < _HEADER:
        raise ProtocolError(f"a frame of {len(packet)} bytes")
    header = ffi.from_buffer("struct mrc_agent_frame *", packet)
    try:
        kind = AgentKind(header.kind)
    except ValueError:
        raise ProtocolError(f"a frame of kind {header.kind}") from None
    return AgentFrame(kind, int(header.value), int(header.cookie), packet[_HEADER:])


def read_struct(kind: str, body: bytes) -> tuple[CData, bytes]:
    """The `struct kind` at the start of a body, and the bytes after it; raises ProtocolError."""
    size = ffi.sizeof(f"struct {kind}")
    if len(body) < size:
        raise ProtocolError(f"a {kind} of {len(body)} bytes instead of {size}")
    found = ffi.new(f"struct {kind} *")
    ffi.memmove(found, body, size)
    return found, body[size:]


def read_array(kind: str, count: int, most: int, body: bytes) -> tuple[list[CData], bytes]:
    """`count` of `struct kind` at the start of a body, and the bytes after them; ProtocolError."""
    size = ffi.sizeof(f"struct {kind}")
    if count > most or len(body) < count * size:
        raise ProtocolError(f"{count} of {kind} in {len(body)} bytes")
    found = ffi.new(f"struct {kind}[]", count)
    ffi.memmove(found, body, count * size)
    return [ffi.addressof(found, i) for i in range(count)], body[count * size :]


def struct_bytes(kind: str, fields: Mapping[str, Any]) -> bytes:
    """The bytes of a `struct kind` with these fields; all others are 0."""
    return bytes(ffi.buffer(ffi.new(f"struct {kind} *", fields)))


def checked(frame: AgentFrame, kind: AgentKind, body: str) -> tuple[CData, bytes]:
    """The `struct body` in a frame of this kind, and the bytes after it; raises ProtocolError."""
    if frame.kind is not kind:
        raise ProtocolError(f"the program sent {frame.kind.name} instead of {kind.name}")
    return read_struct(body, frame.body)


def first_cookie() -> int:
    """Where the cookies of an agent's commands begin: far from those of the former agent, whose
    probes may still end. The program's own cookies have higher bits.
    """
    return secrets.randbits(_COOKIE_BITS)


def layout() -> tuple[int, int, int]:
    """The sizes that a program must have compiled: of a command, an event and a configuration."""
    return _COMMAND, _EVENT, ffi.sizeof("struct mrc_ctx_config")


def prepare(connection: socket.socket) -> None:
    """Sets up the socket of a program."""
    connection.setblocking(False)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER_BYTES)


class Packets:
    """What is sent over the socket of a program; it waits while the socket is full. `on_full` is
    called instead of sending when `most` wait. A bytearray is wiped when it has left.
    """

    def __init__(self, connection: socket.socket, most: int, on_full: Callable[[], None]) -> None:
        self._connection = connection
        self._most = most
        self._on_full = on_full
        self._waiting: deque[bytes | bytearray] = deque()
        self._loop: asyncio.AbstractEventLoop | None = None  # while it watches the socket

    def send(self, packet: bytes | bytearray) -> None:
        """Sends a packet, or keeps it until the socket has room."""
        if len(self._waiting) >= self._most:
            self._on_full()
            return
        self._waiting.append(packet)
        if len(self._waiting) == 1:
            self._flush()

    def _flush(self) -> None:
        try:
            while self._waiting:
                packet = self._waiting[0]
                self._connection.send(packet)
                self._waiting.popleft()
                if isinstance(packet, bytearray):
                    packet[:] = bytes(len(packet))
        except BlockingIOError:
            self._loop = asyncio.get_running_loop()
            self._loop.add_writer(self._connection, self._flush)
            return
        except OSError:
            pass  # whoever receives finds the end of the program
        self.clear()

    def clear(self) -> None:
        """Forgets what waits. Before the socket is closed."""
        self._waiting.clear()
        if self._loop is not None:
            self._loop.remove_writer(self._connection)
            self._loop = None


class _PendingCommand(Struct):
    """A command without its reply: the caller's cookie is the program's too."""

    memory: CData | None  # that the reply fills
    size: int
    keep: native.Submission


class ProgramEngine:
    """The engine of an attached program; see `mrc.engine.engine.AnyEngine`.

    `on_frame` gets the frames that are no events of the engine, `on_gone` is called once when the
    program has ended or broken the protocol; its argument is the reason, empty if it just ended.
    """

    polled = False

    def __init__(
        self,
        connection: socket.socket,
        opened: CData,
        on_frame: Callable[[AgentFrame], None],
        on_gone: Callable[[str], None],
    ) -> None:
        self._socket = connection
        self.fd = connection.fileno()
        self.udp_port = int(opened.udp_port)
        self._sports = [list(ports) for ports in opened.sports]
        self._on_frame = on_frame
        self._on_gone = on_gone
        self._sent: dict[int, _PendingCommand] = {}
        unread = partial(self._end, "it does not read what the agent sends")
        self._packets = Packets(connection, _MOST_WAITING, unread)
        self._command = ffi.new("struct mrc_command[1]")
        self.gone = False

    def handle(self) -> CData:
        """Raises StateError: the engine is not in this process."""
        raise StateError("the engine belongs to another process")

    def source_port(self, port: int, tx_index: int) -> int:
        """The UDP source port of one transmit socket."""
        return int(self._sports[port - 1][tx_index])

    # ---- To the program -------------------------------------------------------------------

    def send(self, kind: AgentKind, value: int = 0, cookie: int = 0, body: bytes = b"") -> None:
        """Sends a frame, or keeps it until the socket has room."""
        if not self.gone:
            self._packets.send(pack(kind, value, cookie, body))

    def submit(self, batch: Iterable[native.Submission]) -> int:
        """Sends commands; there is always room."""
        sent = 0
        for each in batch:
            each.fill(self._command, 0)
            self._send_command(self._command[0], each)
            sent += 1
        return sent

    def _send_command(self, command: CData, each: native.Submission) -> None:
        op = CommandOp(command.op)
        moves = _MOVES.get(command.value) if op == CommandOp.QP_MODIFY else None
        kind, filled = moves or _ARRAYS.get(op) or _STRUCTS.get(op) or ("", False)
        count = command.value if op in _ARRAYS else 1
        size = ffi.sizeof(kind) * count if kind else 0
        pointer = command.pointer if filled else None
        self._sent[int(command.cookie)] = _PendingCommand(pointer, size, each)
        packet = bytearray(pack(AgentKind.COMMAND, body=bytes(ffi.buffer(ffi.addressof(command)))))
        if size:
            packet += ffi.buffer(ffi.cast("uint8_t *", command.pointer), size)
        if not self.gone:
            self._packets.send(packet)

    # ---- From the program -----------------------------------------------------------------

    def may_sleep(self) -> bool:
        """The socket wakes the event loop."""
        return True

    def run(self) -> int:
        """Nothing runs here."""
        return 0

    def poll(self, events: deque[engine.EngineEvent]) -> int:
        """Appends the events that have arrived, and returns how many frames have.

        Frames of other kinds go to `on_frame`.
        """
        n = 0
        try:
            while n < native.POLL_BATCH and not self.gone:
                packet = self._socket.recv(MAX_FRAME)
                if not packet:
                    self._end("")
                    break
                n += 1
                frame = unpack(packet)
                if frame.kind is AgentKind.EVENT:
                    events.append(self._event(frame.body))
                else:
                    self._on_frame(frame)
        except BlockingIOError:
            pass
        except OSError:
            self._end("")
        except (ProtocolError, ValueError) as error:
            self._end(str(error))
        except MemoryError:  # the frame is lost
            self._end("no memory")
        return n

    def _event(self, body: bytes) -> engine.EngineEvent:
        event, memory = read_struct("mrc_event", body)
        if event.type == EventType.WC:
            raise ProtocolError("a completion, which is the program's own")
        if event.type == EventType.REPLY:
            sent = self._sent.pop(int(event.cookie), None)
            if sent is None:
                raise ProtocolError("a reply to no command")
            if sent.memory is not None and event.result >= 0:
                if len(memory) != sent.size:
                    raise ProtocolError(f"{len(memory)} bytes instead of {sent.size}")
                ffi.memmove(sent.memory, memory, sent.size)
        return engine.decode(event)

    def _end(self, reason: str) -> None:
        if not self.gone:
            self.gone = True
            self._packets.clear()
            self._on_gone(reason)

    def close(self) -> None:
        """Ends the connection: the program goes on without this agent."""
        self.gone = True
        self._packets.clear()
        self._socket.close()


def text_of(field: CData) -> str:
    """The text in a char array."""
    return native.text(field) or ""
