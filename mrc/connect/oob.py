# SPDX-License-Identifier: Apache-2.0
"""The out-of-band exchange of QP attributes: frames of JSON over TCP.

A frame is a four-byte length, big-endian, and one JSON object of this length with a key `type`. The
codec is pure and total: any bytes give messages or a ProtocolError. It ignores unknown keys, so a
later version may add keys. A change in the meaning of a key requires a new VERSION. The order of
messages:

    connecting side            listening side
    hello            ------>
                     <------   hello             or   refuse
    rtr              ------>
                     <------   rtr               both take probes from here on
    ping             <----->   pong              while no probe is answered: does the peer run?
    proved           ------>
                     <------   proved            both use the smaller of the two path MTUs
    rts              ------>
                     <------   rts               both may send
    bye              <----->   bye_ok            the side that closes first sends bye
    gone             <----->                     in place of a bye: `reason` is what went wrong

A viewer sends `top` instead of a hello, and again for each snapshot (mrc.observe).
"""

from __future__ import annotations

import asyncio
import errno
import json
import socket
import ssl
import struct
from collections.abc import (
    AsyncIterator,
    Callable,
    Collection,
    Coroutine,
    Iterator,
    Mapping,
)
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from ipaddress import IPv6Address
from typing import Annotated, Any, Literal, TypeVar

from msgspec import Meta, Struct, to_builtins

from mrc import limits, versions
from mrc.connect.parse import called, parse, parse_address, shown
from mrc.connect.tls import TlsStream, cut_random, explain, write_random
from mrc.engine.paths import RemotePort
from mrc.enums import Reading
from mrc.errors import (
    BusyError,
    ConnectError,
    ConnectRefusedError,
    Kind,
    PeerGoneError,
    ProtocolError,
)
from mrc.fabric.hostconfig import IpAddress, IpInterface
from mrc.linux.secret import Secret
from mrc.tasks import Limit, cancelled, within
from mrc.typed import Name, take

T = TypeVar("T")
VERSION = versions.EXCHANGE
PING, PONG = "ping", "pong"
FRAME_BYTES = 4 << 10  # most bytes of a message, except for the two below
HELLO_BYTES = 128 << 10  # with private data, and 64 source ports for each of 32 ports
SNAPSHOT_BYTES = 1 << 20
_LENGTH = struct.Struct(">I")
_MOST_PINGS = 256  # of one peer
LONGEST_RTT_SECONDS = 2.0  # a peer that feigns a longer one gains nothing more
_PARSE_PAUSES = 9  # pause after a large message, in units of the time that its parsing took
_UNREAD_SECONDS = 0.2  # time to read from a peer that was refused before its hello
_PATIENCE_SECONDS = 1.0  # time for a peer to read the last message
REFUSE = "refuse"  # message: the exchange ends
GONE = "gone"  # message: this end of a QP is no more, without a bye
_MAX_REASON = 300
_IDLE_SECONDS = 60  # stops middleboxes from dropping a silent connection
_CUT_OFF_SECONDS = 4.0  # with 4 round trips
_CUT_OFF = (errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH, errno.ENETDOWN)
MESSAGE_TRIPS = 2  # until the next message: TLS needs two
EXCHANGE_TRIPS = 20  # of the whole exchange, with TLS, proofs and the search for the path MTU


# ---- Frames --------------------------------------------------------------------------------------


def encode_frame(message: Mapping[str, Any]) -> bytes:
    """Returns the bytes of one message."""
    body = json.dumps(message, separators=(",", ":"), allow_nan=False).encode()
    if len(body) > SNAPSHOT_BYTES:
        raise ProtocolError(f"a message of {len(body)} bytes exceeds the limit of {SNAPSHOT_BYTES}")
    return _LENGTH.pack(len(body)) + body


def decode_length(header: bytes | bytearray, limit: int = FRAME_BYTES) -> int:
    """Returns the length of the body; raises ProtocolError when it exceeds `limit`."""
    length: int = _LENGTH.unpack(header)[0]
    if length > SNAPSHOT_BYTES:
        raise ProtocolError("the peer does not speak mrc's exchange (no frame length)")
    if length > limit:
        raise ProtocolError(f"the peer sent a message of {length} bytes, the limit is {limit}")
    return length


def decode_body(body: bytes | bytearray) -> dict[str, Any]:
    """Returns the message of a frame's body."""
    try:
        message = parse(body)
    except ValueError as error:
        raise ProtocolError(f"the peer does not speak mrc's exchange ({error})") from error
    if not isinstance(message.get("type"), str):
        raise ProtocolError("the peer does not speak mrc's exchange (no message type)")
    return message


# ---- Attributes ----------------------------------------------------------------------------------


class Inbox(Struct, frozen=True):
    """Where this side takes messages (csrc/msg/messages.h), for a QP that carries them."""

    address: Annotated[int, Meta(ge=1, le=0x7FFFFFFFFFFFFFFF)]
    rkey: Annotated[int, Meta(ge=1, le=0xFFFFFFFF)]


ReadingName = Annotated[str, Meta(pattern="^[CGS][0-9]{1,2}-[A-D]$")]


@dataclass(frozen=True, slots=True)
class Attributes:
    """The attributes of one side's QP, from the attribute table of the specification.

    Of the optional capabilities in this table, this version supports dynamic MPR. `sack_times` is
    ours: it requests SACKs that carry their send time. `readings` are those that this side follows
    in place of mrc's own, and both sides must share.
    """

    qpn: Annotated[int, Meta(ge=3, le=0xFFFFFF)]
    first_psn: Annotated[int, Meta(ge=0, le=0xFFFFFF)]
    path_mtu: Annotated[int, Meta(ge=limits.MIN_MTU, le=limits.MAX_MTU, multiple_of=4)]
    mpr: Annotated[int, Meta(ge=limits.MPR_UNIT, le=limits.MAX_MPR, multiple_of=limits.MPR_UNIT)]
    max_wimm: Annotated[int, Meta(ge=1, le=65535)]
    integrity: Literal["icrc", "udp"]
    udp_port: Annotated[int, Meta(ge=1, le=65535)]
    trim_nack: bool = field(default=False, kw_only=True)
    dynamic_mpr: bool = field(default=False, kw_only=True)
    seal: Literal["none", "auth", "aead"] = field(default="none", kw_only=True)
    seal_random: Annotated[str, Meta(pattern="^([0-9a-f]{64})?$")] = field(
        default="", kw_only=True, repr=False
    )
    service_time: bool = field(default=False, kw_only=True)
    sack_times: bool = field(default=False, kw_only=True)
    rejoin: Annotated[str, Meta(pattern="^([0-9a-f]{32})?$")] = field(
        default="", kw_only=True, repr=False
    )
    inbox: Inbox | None = field(default=None, kw_only=True)
    readings: Annotated[tuple[ReadingName, ...], Meta(max_length=32)] = field(
        default=(), kw_only=True
    )
    ports: Annotated[tuple[RemotePort, ...], Meta(min_length=1, max_length=limits.MAX_PORTS)]


class Peer(Struct, frozen=True, kw_only=True):
    """The other side of a connection."""

    host: str
    """For a line of text: what `connect` was called with; at a listener `name`, quoted if it cannot
    be the name of a host."""
    name: str
    """The name of its host, as the peer sent it."""
    address: str
    """Its address on the TCP connection of the exchange."""
    identity: str
    """What it has proved: a fingerprint, a SPIFFE name, or how ("code", "secret"). Empty: nothing,
    because `ContextConfig.security` is None."""
    private: dict[str, Any]
    """The private data that it passed to its `connect` or `listen`."""

    @staticmethod
    def _at(channel: Channel, name: str, private: dict[str, Any]) -> Peer:
        """The one that has sent this in its hello."""
        return Peer(
            host=channel.called or called(name), name=name, address=channel.remote,
            identity=channel.peer_identity, private=private,
        )  # fmt: skip


class Hello(Struct, frozen=True, kw_only=True):
    """The first message of each side. `private` holds the caller's data, `here` and `there` the
    addresses of both ends of the connection as this side sees them: a NAT shows others.
    """

    version: int = VERSION
    host: Name
    here: Annotated[str, Meta(max_length=64)] = ""
    there: Annotated[str, Meta(max_length=64)] = ""
    private: dict[str, Any] = {}
    attributes: Attributes

    @property
    def called(self) -> str:
        """`host` as part of a line for people."""
        return called(self.host)

    def to_dict(self) -> dict[str, Any]:
        """The message, with keys in the order of the fields."""
        found: dict[str, Any] = to_builtins(self, enc_hook=str)
        for part, names in (
            (found["attributes"], ("readings", "rejoin")),
            (found, ("here", "there")),
        ):
            for name in names:  # as in earlier versions
                if not part[name]:
                    del part[name]
        return {"type": "hello", **found, "private": self.private}

    @classmethod
    async def receive(cls, channel: Channel) -> Hello:
        """The hello of the peer."""
        return cls.from_dict(await channel.expect("hello", HELLO_BYTES))

    @classmethod
    def from_dict(cls, message: Mapping[str, Any]) -> Hello:
        """Checks a hello, its version first; raises ProtocolError."""
        version = message.get("version")
        if type(version) is int and version != VERSION:
            raise ProtocolError(
                f"the peer speaks version {version} of the exchange, this host version {VERSION};"
                " install the same mrc on both hosts"
            )
        try:
            hello = take(message, cls)
            _check_names(hello)
        except ValueError as error:
            raise ProtocolError(f"the peer sent a wrong hello: {shown(str(error))}") from None
        return hello


def _check_names(hello: Hello) -> None:
    """Raises ValueError for text that is not printable, and addresses of more than one host."""
    if not hello.host.isprintable():
        raise ValueError("host: is not printable")
    for i, port in enumerate(hello.attributes.ports):
        _check_port(port, f"attributes.ports[{i}].")


def _check_port(port: RemotePort, place: str = "") -> None:
    if not port.nic.isprintable():
        raise ValueError(f"{place}nic: is not printable")
    if not _is_of_one_host(port.address):
        raise ValueError(f"{place}address: {port.address} is not the address of a single host")


def checked_port(message: object) -> RemotePort:
    """A port that the peer names while a QP runs; raises ProtocolError."""
    try:
        port = take(message, RemotePort)
        _check_port(port)
        if port.address.ip.is_loopback:
            raise ValueError(f"address: {port.address} is a loopback address")
    except ValueError as error:
        raise ProtocolError(f"the peer sent a wrong port: {shown(str(error))}") from None
    return port


def _is_of_one_host(address: IpInterface) -> bool:
    """True when packets to this address reach at most one host."""
    ip, network = address.ip, address.network
    if ip.is_multicast or ip.is_unspecified:
        return False
    if isinstance(ip, IPv6Address):
        return ip.ipv4_mapped is None
    is_broadcast = network.prefixlen < 31 and ip == network.broadcast_address
    return not (is_broadcast or ip.is_reserved)


def check_readings(host: str, theirs: Collection[str], readings: Reading) -> None:
    """Raises ConnectError if the peer follows others."""
    ours = readings.shared_names
    if set(theirs) != set(ours):
        raise ConnectError(
            f"{host} follows {_named_readings(theirs)}, this host {_named_readings(ours)}:"
            " set ContextConfig.readings to the same on both"
        )


def _named_readings(names: Collection[str]) -> str:
    return f"reading {' and '.join(sorted(names))}" if names else "mrc's own readings"


# ---- Refusals and ends ---------------------------------------------------------------------------


def refusal_fields(reason: str, kind: Kind) -> dict[str, Any]:
    """The fields of a refusal or an end: the `kind` is for programs, the `reason` for people."""
    busy = kind is Kind.BUSY  # mrc 0.3 reads this and no kind
    return {"reason": reason[:_MAX_REASON], "kind": kind, "busy": busy}


def kind_in(message: Mapping[str, Any]) -> Kind:
    """The kind of a refusal or an end; a later mrc may have others."""
    if message.get("busy") is True:
        return Kind.BUSY
    return next((kind for kind in Kind if kind == message.get("kind")), Kind.OTHER)


def accepted(message: dict[str, Any]) -> dict[str, Any]:
    """The message, unless it is a refusal: raises ConnectRefusedError or BusyError."""
    if message["type"] != REFUSE:
        return message
    reason, kind = shown(message.get("reason", "no reason")), kind_in(message)
    if kind is Kind.BUSY:
        raise BusyError(f"the peer refused: {reason}")
    raise ConnectRefusedError(f"the peer refused: {reason}", reason, kind)


# ---- Silence of the connection -------------------------------------------------------------------


class CutOffError(ConnectError):
    """The connection of an exchange was lost on its way; another one may take another way."""


class Keepalive:
    """How long the kernel bears the silence of a TCP connection: for ever, or a few seconds.

    Once a QP is connected, silence is no error: the connection may run over the plane that failed.
    During the exchange it is one, because another connection may take another plane. The kernel of
    a peer whose process is stopped still answers.
    """

    def __init__(self, tcp: socket.socket) -> None:
        self._tcp = tcp
        self._interval = tcp.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL)
        self._rtt: float | None = None  # with a limit, the round trip that it allows for
        tcp.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        tcp.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _IDLE_SECONDS)

    def limit(self, rtt: float | None) -> None:
        """Drops the connection after some seconds and round trips of silence; None: never."""
        if rtt == self._rtt:
            return
        self._rtt = rtt
        most_ms = 0 if rtt is None else int(1000 * (_CUT_OFF_SECONDS + 4 * rtt))
        for option, value in (
            (socket.TCP_KEEPINTVL, self._interval if rtt is None else 1),
            (socket.TCP_KEEPIDLE, _IDLE_SECONDS if rtt is None else 1),
            (socket.TCP_USER_TIMEOUT, most_ms),
        ):
            with suppress(OSError, ValueError):  # it is closed; uvloop raises a ValueError then
                self._tcp.setsockopt(socket.IPPROTO_TCP, option, value)

    def explain(self, error: OSError) -> ConnectError | None:
        """The error for this end of the connection, if the silence was limited."""
        if self._rtt is not None and error.errno in _CUT_OFF:
            return CutOffError("the connection of the exchange was cut off on its way")
        return None


# ---- The connection ------------------------------------------------------------------------------


class Channel:
    """One TCP connection of the exchange. `send` and `receive` have no timeout of their own."""

    _ahead: asyncio.Task[dict[str, Any]] | None = None  # reads the next message
    _early: dict[str, Any] | None = None  # came during other work, and was not yet received
    _pong: asyncio.Event | None = None  # the answer to our ping, while it is under way
    _pings = 0

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, called: str = ""
    ) -> None:
        self.called = called
        """the name that this side's user gave the peer; empty: the peer connected"""
        self._reader: asyncio.StreamReader | TlsStream = reader
        self._writer: asyncio.StreamWriter | TlsStream = writer
        self._peeked: dict[str, Any] | None = None
        self.received_bytes = 0  # in complete messages
        self.rtt = 0.0
        """the shortest time in seconds from a message to its answer; 0: unknown"""
        self.watchers: list[Callable[[], None]] = []
        """called for each complete message, and when TLS has begun"""
        self.grace = 0.0
        """what the peer gets beyond every limit of patience, in seconds: see `give_time`"""
        self._said: float | None = None  # when this side sent a message that has no answer yet
        self._at_end: list[tuple[Callable[[], None], bool]] = []
        self._refused = False  # nothing follows
        self.secured = False
        """nobody but the two ends reads or changes the messages"""
        self.peer_identity = ""
        """what the peer has proved: a fingerprint, a SPIFFE name, or how; empty: nothing"""
        self.randoms: list[Secret] = []
        """random bytes that the peer has sent inside TLS: `seal_random` is an index of this list"""
        if writer.get_extra_info("peername") is None:
            raise ConnectionResetError("the peer closed the connection at once")
        here, there = writer.get_extra_info("sockname"), writer.get_extra_info("peername")
        self.local, self.remote = str(parse_address(here[0])), str(parse_address(there[0]))
        self.ports = here[1], there[1]
        """TCP ports of this end and of the peer"""
        tcp: socket.socket = writer.get_extra_info("socket")
        self.descriptor = tcp.fileno()
        self._keepalive = Keepalive(tcp)
        self._limited = False

    @property
    def ends(self) -> tuple[IpAddress, IpAddress]:
        """The addresses of this host and of the peer."""
        return parse_address(self.local), parse_address(self.remote)

    def limit_silence(self, *, on: bool) -> None:
        """While on: a CutOffError when the peer's kernel has not answered for some seconds."""
        self._limited = on
        self._keepalive.limit(min(self.rtt, LONGEST_RTT_SECONDS) if on else None)

    def give_time(self, seconds: float) -> None:
        """From now on the peer has this much more time for each message and for the exchange."""
        self.grace = seconds
        for watcher in self.watchers:
            watcher()

    def _lost(self, error: OSError) -> ConnectError | None:
        """What has happened to the connection; None: as `error` says."""
        if isinstance(error, ConnectionError):
            return PeerGoneError("the peer closed the connection during the exchange")
        return self._keepalive.explain(error)

    async def send(self, kind: str, /, **fields: Any) -> None:
        """Sends one message; raises PeerGoneError when the peer has gone."""
        await self._send(encode_frame({"type": kind, **fields}), awaited=kind not in (PING, PONG))

    async def send_gone(self, reason: str, kind: Kind) -> None:
        """Sends that this end of a QP is no more, and why."""
        await self.send(GONE, **refusal_fields(reason, kind))

    async def send_hello(self, hello: Hello, random: Secret | None = None) -> None:
        """Sends a hello, with these random bytes in place of `seal_random`: inside TLS only."""
        frame = bytearray(encode_frame(hello.to_dict()))
        if random is not None:
            write_random(random, frame, hello.attributes.seal_random.encode())
        try:
            await self._send(frame)
        finally:
            if random is not None:
                frame[:] = bytes(len(frame))

    async def _send(self, frame: bytes | bytearray, *, awaited: bool = True) -> None:
        """`awaited`: the peer's next message is its answer."""
        try:
            if self._writer.is_closing() or self._refused:  # writing would be an error of uvloop's
                raise ConnectionResetError
            self._writer.write(frame)
            if awaited:
                self._said = asyncio.get_running_loop().time()
            await self._writer.drain()
        except ssl.SSLError as error:
            raise explain(error, self.called or self.remote) from error
        except OSError as error:
            raise self._lost(error) or error from error

    async def receive(self, limit: int = FRAME_BYTES) -> dict[str, Any]:
        """Returns the next message, of at most `limit` bytes.

        Raises ProtocolError, or PeerGoneError when the peer has closed the connection.
        """
        if self._early is not None:
            message, self._early = self._early, None
            return message
        if self._ahead is not None:
            ahead, self._ahead = self._ahead, None
            return await ahead
        if self._pong is not None:  # it may come after what the peer has said meanwhile
            return await self._past_pings()
        return await self._next(limit)

    async def _next(self, limit: int) -> dict[str, Any]:
        if self._peeked is not None:
            message, self._peeked = self._peeked, None
            return message
        message = decode_body(await self._body(limit))
        if message["type"] not in (PING, PONG):
            self._on_answer(1)
        return message

    async def _body(self, limit: int) -> bytes | bytearray:
        try:
            header = await self._reader.readexactly(_LENGTH.size)
            body = await self._reader.readexactly(decode_length(header, limit))
        except ssl.SSLError as error:
            raise explain(error, self.called or self.remote) from error
        except asyncio.IncompleteReadError as error:
            raise PeerGoneError("the peer closed the connection during the exchange") from error
        except OSError as error:
            raise self._lost(error) or error from error
        if isinstance(body, bytearray) and not self.randoms:
            self.randoms = cut_random(body)
        self.received_bytes += len(header) + len(body)
        return body

    def _on_answer(self, trips: int) -> None:
        """The peer has answered the last message, in so many round trips."""
        if self._said is not None:
            rtt = (asyncio.get_running_loop().time() - self._said) / trips
            self.rtt = min(self.rtt, rtt) if self.rtt else rtt
        self._said = None
        if self._limited:
            self.limit_silence(on=True)
        for watcher in self.watchers:
            watcher()

    async def start_tls(self, context: ssl.SSLContext, server_hostname: str | None = None) -> None:
        """Goes over to TLS; raises ssl.SSLError, or PeerGoneError when the peer has gone."""
        reader, writer = self._reader, self._writer
        assert isinstance(reader, asyncio.StreamReader)
        assert isinstance(writer, asyncio.StreamWriter)
        if reader._buffer:  # type: ignore[attr-defined]  # has arrived, but is no TLS
            raise ProtocolError("the peer, or somebody in between, went on without TLS")
        self._reader = self._writer = stream = TlsStream(reader, writer, context, server_hostname)
        try:
            await stream.start()
        except OSError as error:
            raise self._lost(error) or error from error
        self._on_answer(2)  # only the listening side has a message without an answer

    def certificate(self) -> Any:
        """The peer's certificate as `ssl` has verified it; None without an authority."""
        return self._tls.getpeercert()

    def certificate_bytes(self) -> bytes:
        """The peer's certificate in DER; empty if it has none."""
        return self._tls.getpeercert(binary_form=True) or b""

    @property
    def _tls(self) -> ssl.SSLObject:
        assert isinstance(self._writer, TlsStream)
        return self._writer.tls

    async def peek(self, limit: int, turn: asyncio.Lock) -> str:
        """The type of the next message, without taking it; raises as `receive`.

        Large messages with many small values parse slowly. Messages of strangers above FRAME_BYTES
        therefore wait for `turn`, and together take at most a tenth of the event loop's time.
        """
        body = await self._body(limit)
        self._on_answer(1)
        if len(body) <= FRAME_BYTES:
            self._peeked = decode_body(body)
        else:
            async with turn:
                loop = asyncio.get_running_loop()
                start = loop.time()
                try:
                    self._peeked = decode_body(body)
                finally:
                    await asyncio.sleep(_PARSE_PAUSES * (loop.time() - start))
        return str(self._peeked["type"])

    @property
    def peeked(self) -> dict[str, Any]:
        """The message that `peek` has found."""
        assert self._peeked is not None
        return self._peeked

    async def expect(self, kind: str, limit: int = FRAME_BYTES) -> dict[str, Any]:
        """Returns the next message, which must be of this type; a refusal is a ConnectRefusedError
        or BusyError.
        """
        message = accepted(await self.receive(limit))
        if message["type"] != kind:
            raise ProtocolError(f"the peer sent '{shown(message['type'], 40)}' instead of {kind!r}")
        return message

    async def during(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of `work`. If the peer refuses or goes meanwhile, raises that at once.

        Both sides answer pings from now on until the peer's next message has been received.
        """
        running = asyncio.create_task(work)
        try:
            while not running.done():
                ahead = self._ahead = asyncio.create_task(self._past_pings())
                ahead.add_done_callback(lambda done: done.cancelled() or done.exception())
                await asyncio.wait((running, ahead), return_when=asyncio.FIRST_COMPLETED)
                if ahead.done() and not running.done():
                    message = accepted(ahead.result())
                    if self._early is not None:
                        break  # a second one is no part of the exchange: read no further
                    self._early, self._ahead = message, None
            return await running
        finally:
            await cancelled(running)

    async def _past_pings(self) -> dict[str, Any]:
        """The next message that is neither ping nor pong; answers pings."""
        while (message := await self._next(FRAME_BYTES))["type"] in (PING, PONG):
            if message["type"] == PONG:
                if self._pong is not None:
                    self._pong.set()
                    self._pong = None
                continue
            self._pings += 1
            if self._pings > _MOST_PINGS:
                raise ProtocolError(f"the peer sent {self._pings} pings")
            await self.send(PONG)
        return message

    async def ping(self) -> None:
        """Returns when the peer's program has answered; only for the work of `during`."""
        pong = self._pong = asyncio.Event()
        await self.send(PING)
        await pong.wait()

    @property
    def silent(self) -> bool:
        """Whether a ping has no answer yet."""
        return self._pong is not None

    async def refuse(self, reason: str, kind: Kind = Kind.OTHER, *, unread: bool = False) -> None:
        """Sends the reason to the peer, if it reads, and closes.

        `unread`: the peer's hello may still arrive. We wait for it because TCP resets a connection
        that is closed with unread data, and the peer would then lose the reason.
        """
        try:
            async with within(_PATIENCE_SECONDS):
                await self.send(REFUSE, **refusal_fields(reason, kind))
                self._refused = True
            if unread and not self._writer.is_closing():
                self._writer.write_eof()
                async with within(_UNREAD_SECONDS):
                    while await self._reader.read(FRAME_BYTES):
                        pass
        except (PeerGoneError, OSError):  # TimeoutError is an OSError
            pass
        await self.close()

    async def close(self) -> None:
        """Closes the connection; sent data is still delivered if the peer reads it within 1 s."""
        self._writer.close()
        try:
            async with within(_PATIENCE_SECONDS):
                await self._writer.wait_closed()
        except TimeoutError:
            self.abort()
        except OSError:
            pass  # the connection is closed anyway
        except asyncio.CancelledError:
            self.abort()
            raise
        finally:
            self._end()

    def abort(self) -> None:
        """Drops the connection at once."""
        self._writer.transport.abort()
        self._end()

    @staticmethod
    def end_in(message: Mapping[str, Any]) -> tuple[Kind, str] | None:
        """Kind and reason of a message by which the peer ends the QP; None: it is another one."""
        if message["type"] not in (GONE, REFUSE):
            return None
        kind = kind_in(message)
        return kind, "" if kind is Kind.ENDED else shown(message.get("reason", ""))

    def at_end(self, callback: Callable[[], None], *, of_qp: bool = False) -> None:
        """Registers a function to call when this side closes or drops the connection. `of_qp`: it
        concerns the QP, whose connection may be opened again.
        """
        self._at_end.append((callback, of_qp))

    def hand_over(self, other: Channel) -> None:
        """Drops the connection at once. What is `of_qp` is done at the end of `other` instead."""
        other._at_end += [each for each in self._at_end if each[1]]
        self._at_end = [each for each in self._at_end if not each[1]]
        self.abort()

    def _end(self) -> None:
        if self._ahead is not None:
            self._ahead.cancel()
        while self._at_end:
            self._at_end.pop()[0]()


# ---- Time for the peer ---------------------------------------------------------------------------


@asynccontextmanager
async def patience(
    channel: Channel, seconds: float, trips: int, *, anew: bool = False
) -> AsyncIterator[None]:
    """Limits the body to `seconds` and `trips` round trips to the peer; raises TimeoutError.

    `anew`: each message of the peer begins this time anew.
    """
    async with Limit(seconds) as limit:
        with extended(limit, channel, seconds, trips, anew=anew):
            yield


@contextmanager
def extended(
    limit: Limit, channel: Channel, seconds: float, trips: int, *, anew: bool = False
) -> Iterator[None]:
    """Changes a limit, after each message of the peer, as `patience` does."""

    def extend() -> None:
        trip = min(channel.rtt, LONGEST_RTT_SECONDS)
        limit.seconds = seconds + channel.grace + trips * trip
        if anew:
            limit.begin_anew()

    channel.watchers.append(extend)
    try:
        yield
    finally:
        channel.watchers.remove(extend)
