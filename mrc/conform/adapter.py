# SPDX-License-Identifier: Apache-2.0
"""What the judge asks of a device under test: one JSON object a line, and one answer a line.

A program of a few lines between this protocol and a device is its *adapter*; README.md has an
example. `mrc conform device` is the adapter of mrc's own engine.
"""

from __future__ import annotations

import shlex
import shutil
import socket
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Protocol

import msgspec
from msgspec import Struct, field

from mrc.connect.failures import unconnected
from mrc.errors import ConnectError, MrcError
from mrc.testbed.child import BlockingChild
from mrc.units import digits

_PATIENCE_SECONDS = 30.0  # until an answer: an adapter that takes longer is broken
_END_SECONDS = 5.0  # from the end of its input until SIGKILL
_MOST_BYTES = 1 << 24  # of a line


class AdapterError(MrcError):
    """An adapter gave no answer, or a wrong one."""


class QpPort(Struct, frozen=True):
    """An address of one side, and the UDP ports from which it sends."""

    address: str
    source_ports: tuple[int, ...]


class QpAttributes(Struct, frozen=True, kw_only=True):
    """The attributes of one side of a QP."""

    qpn: int
    first_psn: int
    """Of the packets that this side sends."""
    path_mtu: int
    """The largest payload of a packet that this side sends."""
    mpr: int
    """Window that this side grants, in PSNs."""
    max_wimm: int
    """Immediates that may be under way to this side."""
    udp_port: int
    """Where this side receives."""
    ports: tuple[QpPort, ...]
    va: int = 0
    """First address of the memory that the other side may write to."""
    rkey: int = 0
    memory_bytes: int = 0
    """0: the other side may write nowhere."""
    dynamic_mpr: bool = False
    """This side changes its window in SACKs if both sides can."""


class Attach(Struct, frozen=True, tag_field="do", tag="attach"):
    """Creates a QP whose peer is the judge, after it has ended the one before."""

    peer: QpAttributes
    first_psn: int | None
    """The first PSN that the device is asked to use; null: any."""
    memory_bytes: int
    """Memory that it is asked to register, filled with zeros."""
    timeout: int
    """The local ACK timeout that it is asked to use: 1.024 us times 2 to the power of this."""
    nscc: dict[str, int] = field(default_factory=dict)
    """Parameters of NSCC that it is asked to use, by OCP's names; empty: its own CC."""


class WriteRequest(Struct, frozen=True, tag_field="do", tag="write"):
    """Posts `count` equal writes to the judge's memory, without waiting for their completions."""

    at: int
    bytes: int
    fill: int
    imm: int | None = None
    count: int = 1


class Memory(Struct, frozen=True, tag_field="do", tag="memory"):
    """Asks what is in the device's memory."""

    at: int
    bytes: int


class Wait(Struct, frozen=True, tag_field="do", tag="wait"):
    """Asks what the device has seen of this QP so far. It answers as soon as there are so many
    immediates and ended writes and the QP is in this state, and at the latest after `seconds`.
    """

    seconds: float
    immediates: int = 0
    completions: int = 0
    state: str = ""
    """Empty: any."""


class Detach(Struct, frozen=True, tag_field="do", tag="detach"):
    """Ends the QP."""


Ask = Attach | WriteRequest | Memory | Wait | Detach


class AdapterAnswer(Struct, frozen=True, omit_defaults=True):
    """The answer to each; `cannot` says why the device lacks what was asked for."""

    cannot: str = ""
    end: QpAttributes | None = None
    """To attach."""
    data: str = ""
    """To memory: hexadecimal digits."""
    immediates: tuple[tuple[int, int], ...] | None = None
    """To wait: the value of each, and the bytes of its message. Null, also below: not known."""
    completions: tuple[str, ...] | None = None
    """To wait: of each ended write the name of OCP's status, such as SUCCESS."""
    state: str | None = None
    """To wait."""


class TestedDevice(Protocol):
    """A device under test."""

    def ask(self, what: Ask) -> AdapterAnswer:
        """Its answer; raises AdapterError."""

    def close(self) -> None:
        """Ends the adapter."""


class LineAdapter:
    """A device at the other end of a connection that carries lines."""

    def __init__(self, connection: socket.socket, name: str) -> None:
        connection.settimeout(_PATIENCE_SECONDS)
        self._socket, self._name = connection, name
        self._file = connection.makefile("rwb")

    def close(self) -> None:
        """Closes the connection, at which an adapter ends."""
        with suppress(OSError):  # what was not sent is lost with an adapter that has ended
            self._file.close()  # the descriptor stays open for as long as its file does
        self._socket.close()

    def ask(self, what: Ask) -> AdapterAnswer:
        try:
            self._file.write(msgspec.json.encode(what) + b"\n")
            self._file.flush()
            line = self._file.readline(_MOST_BYTES)
        except TimeoutError as error:
            raise AdapterError(
                f"{self._name}: no answer within {digits(_PATIENCE_SECONDS)} s: an adapter answers"
                " each line with a line, and flushes it"
            ) from error
        except ConnectionError:
            line = b""
        except OSError as error:
            raise AdapterError(f"{self._name}: {(error.strerror or str(error)).lower()}") from error
        if not line.endswith(b"\n"):
            raise AdapterError(f"{self._name}: the adapter ended")
        try:
            return msgspec.json.decode(line, type=AdapterAnswer)
        except msgspec.MsgspecError as error:
            raise AdapterError(f"{self._name}: a wrong answer: {error}") from error


class TcpAdapter(LineAdapter):
    """The adapter that listens at another host."""

    def __init__(self, host: str, port: int) -> None:
        try:
            connection = socket.create_connection((host, port), timeout=_PATIENCE_SECONDS)
        except (OSError, UnicodeError) as error:
            own = "mrc conform device is that of mrc's engine"
            start = f"start the adapter of the device there; {own}"
            raise unconnected(host, port, error, start) from error
        super().__init__(connection, f"{host} port {port}")

    @property
    def local_address(self) -> str:
        """This host's address towards the device."""
        return str(self._socket.getsockname()[0])


class ProgramAdapter(LineAdapter):
    """The adapter as a program of this host, such as `ssh HOST adapter`. It has no terminal, and
    neither it nor its children outlive the judge.
    """

    def __init__(self, command: str) -> None:
        try:
            words = shlex.split(command)
            if not words or shutil.which(words[0]) is None:
                raise ValueError("no such program")
            self._child = BlockingChild(words, keeps_notes=False)
        except (OSError, ValueError) as error:
            raise ConnectError(f"{command}: cannot be started: {error}") from error
        super().__init__(self._child.socket, command)

    def close(self) -> None:
        """Closes its standard input, at which an adapter ends."""
        self._child.close(_END_SECONDS)
        super().close()


class ManualDevice:
    """A device without an adapter. Somebody sets up each QP with the attributes that `tell` shows,
    and enters those of the device, one JSON object a line.
    """

    def __init__(self, lines: Iterator[str], name: str, tell: Callable[[str], None]) -> None:
        self._lines, self._name, self._tell = lines, name, tell

    def ask(self, what: Ask) -> AdapterAnswer:
        if isinstance(what, Detach):
            return AdapterAnswer()
        if not isinstance(what, Attach) or what.nscc:
            return AdapterAnswer(cannot="a device without an adapter cannot be asked")
        self._tell(msgspec.json.encode(what.peer).decode())
        line = next(self._lines, "")
        if not line.strip():
            return AdapterAnswer(cannot=f"{self._name} has no attributes for this case")
        try:
            return AdapterAnswer(end=msgspec.json.decode(line, type=QpAttributes))
        except msgspec.MsgspecError as error:
            raise AdapterError(f"{self._name}: {error}") from error

    def close(self) -> None:
        """Nothing has to end."""
