# SPDX-License-Identifier: Apache-2.0
"""The encrypted exchange: both sides go over to TLS 1.3, and prove themselves inside.

  connecting side              listening side
  tls           ---->                           requests TLS; a plain listener refuses
                <----          tls              both: TLS 1.3
                <----          want             a nonce, and the ways in which it lets peers in
  prove         ---->                           one of them: key, secret, code or authority
                <----          proved           for secret and code: that the listener has it too
  confirm       ---->                           for a code

Nothing else of the peer is read before it has proved itself. Messages are at most FRAME_BYTES. The
parts of this file, in this order:

1. contexts of TLS, which are made anew when a certificate is renewed, and its errors in words;
2. `TlsStream`, which carries the connection from then on;
3. `Guard`: what a Context has to prove, and what has been proved so far;
4. the proofs of the connecting side, then of the listening side;
5. the random bytes in both hellos, which the secrets of a sealed QP follow from.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import hmac
import logging
import os
import re
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from mrc.connect import proofs
from mrc.connect.admission import is_own
from mrc.connect.identity import (
    AllowedPeers,
    Identity,
    KnownHosts,
    fingerprint_of,
    is_signed,
    public_of,
)
from mrc.connect.proofs import Binding, Guess
from mrc.connect.security import SPIFFE, Authority, Commands, Security, secret_id
from mrc.errors import (
    ConfigError,
    ConnectError,
    ConnectRefusedError,
    Kind,
    PeerGoneError,
    ProtocolError,
)
from mrc.linux.secret import Secret, read_trusted

if TYPE_CHECKING:
    from mrc.connect.oob import Channel

logger = logging.getLogger("mrc.trust")
T = TypeVar("T")

TLS = "tls"  # the first message of a peer that wants the exchange encrypted
RANDOM_BYTES = 32
_CLEANSE_PLAINTEXT = 1 << 1  # of OpenSSL 3, unnamed in Python: wipes what was read from its buffer
_RENEW = "renew it, or check the clocks of both hosts"
_NOT_YET = "is not valid yet: check the clocks of both hosts"
_WRONG = {  # codes of OpenSSL's verification
    9: f"its certificate {_NOT_YET}",
    10: f"its certificate has expired: {_RENEW}",
    18: "its certificate is of no authority: it proves its key (--peer, known hosts), a secret or"
    " a code",
    26: "its certificate is not for this use: it must be for servers and for clients",
    62: "its certificate is for another name: use that name, or --peer with its SPIFFE name",
    64: "its certificate is for another address: use its name, or --peer with its SPIFFE name",
}
_ALERTS = {  # what the other side says of this side's certificate
    "CERTIFICATE_EXPIRED": f"says that this host's certificate has expired: {_RENEW}",
    "UNKNOWN_CA": "does not know this host's authority: both hosts need the same --ca",
    "CERTIFICATE_REQUIRED": "requires a certificate of its authority: --ca, --cert and --key",
    "BAD_CERTIFICATE": "does not accept this host's certificate: check it, and both clocks",
}
_CHUNK_BYTES = 16 << 10
_ENDS = (ssl.SSLEOFError, ssl.SSLZeroReturnError)
"""The end of TCP, and the end that TLS announces: which of them comes depends on the version of
OpenSSL, and on whether this side has announced its own end.
"""
_NAMELESS = "a host without a SPIFFE name"
_CODE_SECONDS = 90.0  # for a peer that was stopped, or slept, after its one guess
_MOST_SESSIONS = 64  # that a code or secret has opened and whose further QPs may come
_DIGITS = b"0123456789abcdef"
_RANDOM = re.compile(rb'"seal_random"\s*:\s*"([0-9a-f]{64})"')


# ---- Contexts ------------------------------------------------------------------------------------


class TlsContext:
    """A TLS context that is made anew after one of its files has changed.

    Who renews certificates writes one file after the other. While they do not fit each other, the
    context of before stays in use.
    """

    def __init__(self, make: Callable[[], ssl.SSLContext], authority: Authority | None) -> None:
        self._make = make
        self._files = authority.files if authority is not None else ()
        self._context: ssl.SSLContext | None = None
        self._seen: list[object] = []

    def context(self) -> ssl.SSLContext:
        """The context; raises ConfigError if there is none yet and a file is wrong."""
        now = [_stamp(path) for path in self._files]  # before they are read: a change counts later
        if self._context is None:
            self._context, self._seen = self._make(), now
        elif now != self._seen:
            self._seen = now
            try:
                self._context = self._make()
            except ConfigError as error:
                logger.warning("the certificates of before stay in use: %s", error)
            else:
                logger.info("read %s anew", ", ".join(map(str, self._files)))
        return self._context


def _stamp(path: Path) -> object:
    """Differs when the file has been written or replaced, also behind a link."""
    try:
        status = os.stat(path)
    except OSError as error:
        return error.errno
    return status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size


def server_context(identity: Identity | None, authority: Authority | None) -> TlsContext:
    """For the listening side: one of both."""

    def make() -> ssl.SSLContext:
        context = _context(ssl.PROTOCOL_TLS_SERVER)
        context.num_tickets = 0  # a session is never resumed
        if authority is not None:
            _load(context, authority)
        elif identity is not None:
            with identity.in_memory() as file:
                context.load_cert_chain(file)
        return context

    return TlsContext(make, authority)


def client_context(authority: Authority | None, *, check_hostname: bool = False) -> TlsContext:
    """For the connecting side. Without an authority it takes any certificate: the caller compares
    the fingerprint."""

    def make() -> ssl.SSLContext:
        context = _context(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        if authority is not None:
            _load(context, authority)
            context.check_hostname = check_hostname
        return context

    return TlsContext(make, authority)


def _context(protocol: int) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.options |= ssl.OP_NO_TICKET | _CLEANSE_PLAINTEXT
    return context


def _load(context: ssl.SSLContext, authority: Authority) -> None:
    for path in authority.files:
        try:
            read_trusted(path)
        except OSError as error:
            raise ConfigError(f"{path}: {(error.strerror or str(error)).lower()}") from error
    try:
        context.load_verify_locations(authority.ca)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"{authority.ca}: holds no certificate of an authority") from error
    try:
        # Without a function for the password, OpenSSL would request it on the terminal.
        context.load_cert_chain(authority.certificate, authority.key, password=lambda: "")
    except (OSError, ssl.SSLError) as error:
        if getattr(error, "reason", "") == "KEY_VALUES_MISMATCH":
            wrong = f"{authority.key}: is not the key of {authority.certificate}"
        else:
            both = f"{authority.certificate}, {authority.key}"
            wrong = f"{both}: are not a certificate and its key without a password, in PEM"
        raise ConfigError(wrong) from error
    context.verify_mode = ssl.CERT_REQUIRED
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # the authority may be an intermediate


def spiffe_name(certificate: Any) -> str:
    """The SPIFFE name of a certificate that ssl has verified; empty if it has none."""
    names = [
        value for kind, value in (certificate or {}).get("subjectAltName", ()) if kind == "URI"
    ]
    if len(names) > 1:  # SPIFFE forbids it, since it would be open which one counts
        raise ConnectError("the peer's certificate has more than one URI: SPIFFE allows one")
    return names[0] if names and names[0].startswith(SPIFFE) else ""


def explain(error: ssl.SSLError, host: str) -> ConnectError:
    """An error of TLS in one line, with its remedy."""
    reason = str(error.reason or error)
    if isinstance(error, ssl.SSLCertVerificationError):
        other = f"its certificate is not of this host's authority: {error.verify_message}"
        return ConnectError(f"{host}: {_WRONG.get(error.verify_code, other)}")
    if reason == "PEER_DID_NOT_RETURN_A_CERTIFICATE":
        return ConnectError(f"{host} shows no certificate: this host takes those of its authority")
    for alert, says in _ALERTS.items():
        if reason.endswith(f"ALERT_{alert}"):
            return ConnectRefusedError(f"the peer {says}", f"it {says}")
    return ConnectError(f"{host}: TLS failed: {reason}")


def check_dates(path: Path) -> None:
    """Raises ConnectError if the certificate in this file is not valid now.

    For a start of TLS that the other side broke off without a reason.
    """
    from cryptography import x509

    try:
        certificate = x509.load_pem_x509_certificate(path.read_bytes())
    except (OSError, ValueError):
        return  # it has been replaced since
    now = datetime.datetime.now(datetime.UTC)
    if now > certificate.not_valid_after_utc:
        raise ConnectError(f"{path}: this certificate has expired: {_RENEW}")
    if now < certificate.not_valid_before_utc:
        raise ConnectError(f"{path}: this certificate {_NOT_YET}")


# ---- The stream ----------------------------------------------------------------------------------


class TlsStream:
    """TLS over the streams of a connection: reader and writer in one, with the methods of asyncio's
    streams that a Channel uses.

    asyncio's own start_tls closes the connection when a certificate is refused, but does not send
    the alert. The peer would then not get the reason, and its user could not act on it.
    """

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        context: ssl.SSLContext,
        server_hostname: str | None,
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._arrived = ssl.MemoryBIO()
        self._leaving = ssl.MemoryBIO()
        server = context.protocol == ssl.PROTOCOL_TLS_SERVER
        self.tls = context.wrap_bio(
            self._arrived, self._leaving, server_side=server, server_hostname=server_hostname
        )
        self.transport = writer.transport

    async def start(self) -> None:
        """Raises ssl.SSLError, after the peer has been sent its alert, and ConnectionError."""
        try:
            await self._step(self.tls.do_handshake)
            await self.drain()
        except _ENDS as error:
            raise ConnectionResetError("the peer closed the connection") from error

    async def _step(self, call: Callable[[], T]) -> T:
        """The result of `call`, which may require more bytes of the peer."""
        while True:
            try:
                return call()
            except ssl.SSLWantReadError:
                pass
            finally:
                answers = self._flush()
            if answers:  # a peer that does not read them is not read either
                await self.drain()
            data = await self._reader.read(_CHUNK_BYTES)
            if data:
                self._arrived.write(data)
            else:
                self._arrived.write_eof()

    def _flush(self) -> bool:
        """Sends what TLS has made; whether there was any."""
        data = self._leaving.read()
        if data and not self._writer.is_closing():  # uvloop raises; drain tells that it is closed
            self._writer.write(data)
        return bool(data)

    async def read(self, most: int) -> bytes:
        """Up to `most` bytes; none at the end. Raises ssl.SSLError for an alert."""
        try:
            return await self._step(lambda: self.tls.read(most))
        except _ENDS:
            return b""

    async def readexactly(self, count: int) -> bytearray:
        """The bytes, which lie nowhere else: the caller can wipe what is secret."""
        found, done = bytearray(count), 0
        with memoryview(found) as room:
            while done < count:
                more = await self._read_into(room[done:])
                if not more:
                    raise asyncio.IncompleteReadError(bytes(room[:done]), count)
                done += more
        return found

    async def _read_into(self, room: memoryview) -> int:
        read: Callable[..., Any] = self.tls.read  # with a buffer it returns a number
        try:
            return int(await self._step(lambda: read(len(room), room)))
        except _ENDS:
            return 0

    def write(self, data: bytes | bytearray) -> None:
        """Encrypts the bytes at once, so that the caller can wipe them."""
        self.tls.write(data)
        self._flush()

    async def drain(self) -> None:
        await self._writer.drain()

    def _say_end(self) -> None:
        with contextlib.suppress(ssl.SSLError):  # it has not come yet
            self.tls.unwrap()
        self._flush()

    def write_eof(self) -> None:
        self._say_end()
        if not self._writer.is_closing():
            self._writer.write_eof()

    def is_closing(self) -> bool:
        return self._writer.is_closing()

    def close(self) -> None:
        self._say_end()
        self._writer.close()

    async def wait_closed(self) -> None:
        await self._writer.wait_closed()

    def get_extra_info(self, name: str) -> Any:
        return self._writer.get_extra_info(name)


# ---- What is proved ------------------------------------------------------------------------------


class QuestionError(ConnectError):
    """The user of this side may answer before another attempt."""


class CodeWantedError(QuestionError):
    """A host that takes a one-time code."""

    def __init__(self, host: str, message: str) -> None:
        super().__init__(message)
        self.host = host

    @property
    def told(self) -> str:
        return "its user is asked for the one-time code"


class UnknownHostError(QuestionError):
    """A host that is not known."""

    def __init__(self, host: str, shown: str, known: KnownHosts, commands: Commands) -> None:
        super().__init__(
            f"{host} is not known: if mrc key shows {shown} on {host}, run: {commands.connects}"
            f" --peer {shown}, or add the line '{host} {shown}' to {known.path}"
        )
        self.host, self.shown, self.known = host, shown, known

    @property
    def told(self) -> str:
        return f"its user does not know this host's key {self.shown} yet"


class WrongCodeError(ConnectError):
    """A wrong guess of the one-time code."""

    kind = Kind.WRONG_CODE


class Guard:
    """The security of a Context, and what has been proved so far."""

    def __init__(self, security: Security) -> None:
        self.security = security
        self._code = security.code
        self._has_guessed = False
        self.failed = asyncio.Event()
        """the code is used up without success, and no other way is open"""
        self.failure = ""
        """why, in words"""
        self._identity: Identity | None = None
        shared = security.shared
        self._secrets = {secret_id(shared): shared} if shared else {}
        authority = security.authority
        self.connects = client_context(authority, check_hostname=not security.peer)
        self._listens: TlsContext | None = None

    @property
    def identity(self) -> Identity:
        """The key of this side; makes it when it is missing."""
        if self._identity is None:
            self._identity = self.security.load_identity()
        return self._identity

    def prepare(self) -> None:
        """Loads what a listening side will need, so that no peer waits for it."""
        self.listens.context()
        if self.has_code:
            proofs.load_spake2()

    @property
    def listens(self) -> TlsContext:
        """TLS of the listening side; makes the key that it needs without an authority."""
        if self._listens is None:
            authority = self.security.authority
            self._listens = server_context(None if authority else self.identity, authority)
        return self._listens

    @property
    def has_code(self) -> bool:
        """Whether the one-time code is still good."""
        return bool(self._code)

    @property
    def lost_code(self) -> bool:
        """Whether the one guess went to an exchange that has not finished."""
        return self._has_guessed and not self._code and not self._secrets

    @property
    def is_closed(self) -> bool:
        """Whether the code has let its one peer in, and nobody else may connect."""
        of = self.security
        others = of.shared or of.allow or of.allow_any or of.authority or of.plain_loopback
        return self._has_guessed and not (self._code or others)

    @property
    def code(self) -> str:
        """The one-time code, if it is still good; raises ConnectError."""
        self._check_code()
        return self._code

    def _check_code(self) -> None:
        if not self.has_code:
            raise ConnectError(self.security.commands.used_code())

    def use_code(self) -> None:
        """From now on somebody knows whether his guess of the code was right: it was the only one.
        Raises ConnectError when another exchange has used it meanwhile.
        """
        self._check_code()
        self._code, self._has_guessed = "", True

    def secret(self, key: str) -> Secret | None:
        """The secret with this id."""
        return self._secrets.get(key)

    @property
    def ids(self) -> list[str]:
        return list(self._secrets)

    def remember(self, key: Secret) -> None:
        """The key of a right code lets the further QPs of the same two processes in."""
        secret = Secret.take(hmac.digest(key.bytes, b"mrc session", "sha256"))
        if len(self._secrets) < _MOST_SESSIONS:
            self._secrets[secret_id(secret)] = secret

    async def allows_plain(self, channel: Channel) -> bool:
        """Whether the peer needs no proof: it is a process of this user."""
        return self.security.plain_loopback and await is_own(channel)

    async def connect(self, channel: Channel) -> None:
        """Encrypts a connection that this side has opened, and proves both sides.

        This is decided by the connected socket: a name may lead elsewhere at every look. A host
        that is known by its key has to show it.
        """
        if await self.allows_plain(channel):
            known = KnownHosts(self.security.known_hosts)
            if known.fingerprint(channel.called) is None:
                return
        await _connect(channel, self)
        channel.secured = True

    async def ask(self, question: QuestionError) -> None:
        """Asks the user, and remembers the answer for the next attempt. Raises if there is none."""
        security = self.security
        if isinstance(question, CodeWantedError) and security.ask_code is not None:
            try:
                self._code = proofs.normal_code(await security.ask_code(question.host))
            except ValueError as error:
                raise ConnectError(f"{question.host}: {error}") from None
        elif isinstance(question, UnknownHostError) and security.ask is not None:
            if not await security.ask(question.host, question.shown):
                raise ConnectError(f"{question.host} was not accepted")
            question.known.add(question.host, question.shown)
        else:
            raise question

    async def accept(self, channel: Channel) -> None:
        """Answers a peer's wish for TLS, and lets it prove itself."""
        await _accept(channel, self)
        channel.secured = True


# ---- The connecting side -------------------------------------------------------------------------


async def _connect(channel: Channel, guard: Guard) -> None:
    security, host = guard.security, channel.called or channel.remote
    await channel.send(TLS)
    await channel.expect(TLS)
    try:
        await channel.start_tls(guard.connects.context(), host)
    except ssl.SSLError as error:
        raise explain(error, host) from error
    try:
        want = await channel.expect("want")
    except ConnectError:
        if security.authority is not None:  # the peer may have refused this side's certificate
            check_dates(security.authority.certificate)
        raise
    ways = want.get("ways")
    if not isinstance(ways, list):
        raise ProtocolError("the peer does not say how to prove oneself")
    if security.authority is not None:
        await _by_authority(channel, security, host, ways)
        return
    server = proofs.digest_of(channel.certificate_bytes())
    binding = Binding(server, _bytes(want, "nonce"), proofs.nonce())
    if guard.has_code:
        await _by_code(channel, guard, binding, _must(ways, "code", host, security))
        channel.peer_identity = "code"
    elif guard.ids:
        await _by_secret(channel, guard, host, binding, _must(ways, "secret", host, security))
        channel.peer_identity = "secret"
    else:
        await _by_key(channel, guard, host, binding, ways)


def _must(ways: list[Any], way: str, host: str, security: Security) -> str:
    """The way; raises ConnectError if the host does not take it."""
    if way not in ways:
        raise ConnectError(security.commands.no_such_way(host, way, ways))
    return way


async def _prove(channel: Channel, way: str, binding: Binding, **fields: str) -> dict[str, Any]:
    await channel.send("prove", way=way, nonce=binding.client_nonce.hex(), **fields)
    return await channel.expect("proved")


async def _by_secret(channel: Channel, guard: Guard, host: str, binding: Binding, way: str) -> None:
    key = guard.ids[-1]
    secret = guard.secret(key)
    assert secret is not None
    mine = proofs.mac(secret, "connects", binding)
    answer = await _prove(channel, way, binding, id=key, mac=mine.hex())
    wrong = ConnectError(f"{host} does not have this secret")
    proofs.check_mac(_bytes(answer, "mac"), secret, "listens", binding, wrong)


async def _by_key(
    channel: Channel, guard: Guard, host: str, binding: Binding, ways: list[Any]
) -> None:
    """The server is known by its fingerprint, before this side shows its own key."""
    security, shown = guard.security, fingerprint_of(_server_key(channel))
    if security.peer and shown != security.peer:
        raise ConnectError(
            f"{host} is {shown}, not {security.peer}: compare that with: mrc key, on {host};"
            " somebody may be in between"
        )
    known = KnownHosts(security.known_hosts)
    is_known = bool(security.peer) or known.check(host, shown)
    # Before the question about the host, which would be asked in vain.
    asks = security.ask_code is not None and not security.peer
    if asks and "code" in ways and "key" not in ways:
        raise CodeWantedError(host, security.commands.no_such_way(host, "key", ways))
    if guard.lost_code and "key" not in ways:
        raise ConnectError(security.commands.unfinished_code())
    _must(ways, "key", host, security)
    if not is_known:
        raise UnknownHostError(host, shown, known, security.commands)
    identity = guard.identity
    signature = identity.sign(binding.over("connects"))
    await _prove(channel, "key", binding, key=identity.public.hex(), signature=signature.hex())
    channel.peer_identity = shown


async def _by_code(channel: Channel, guard: Guard, binding: Binding, way: str) -> None:
    guess = Guess(guard.code, connects=True)
    answer = await _prove(channel, way, binding, message=guess.message.hex())
    guard.use_code()  # what this side sends next shows whether the answer was right
    key = guess.key(_bytes(answer, "message", 64))
    wrong = WrongCodeError(guard.security.commands.wrong_code())
    proofs.check_mac(_bytes(answer, "mac"), key, "listens", binding, wrong)
    await channel.send("confirm", mac=proofs.mac(key, "connects", binding).hex())
    guard.remember(key)


async def _by_authority(channel: Channel, security: Security, host: str, ways: list[Any]) -> None:
    _must(ways, "authority", host, security)
    name = spiffe_name(channel.certificate())
    if security.peer and name != security.peer:
        raise ConnectError(
            f"{host} is {name or _NAMELESS}, not {security.peer}: check --peer, or its certificate"
        )
    await channel.send("prove", way="authority", nonce="")
    await channel.expect("proved")
    channel.peer_identity = name or "certificate"


# ---- The listening side --------------------------------------------------------------------------


async def _accept(channel: Channel, guard: Guard) -> None:
    security, context = guard.security, guard.listens.context()
    await channel.receive()  # the wish, which the caller has seen
    await channel.send(TLS)
    try:
        await channel.start_tls(context)
    except ssl.SSLError as error:
        if security.authority is not None:  # the peer may have refused this side's certificate
            check_dates(security.authority.certificate)
        raise explain(error, channel.remote) from error
    ways = _ways(guard)
    nonce = proofs.nonce()
    await channel.send("want", ways=ways, nonce=nonce.hex())
    proof = await channel.expect("prove")
    way = proof.get("way")
    if way not in ways:
        used = security.commands.used_code()
        raise ConnectError(used if way == "code" else "this host does not take this proof")
    if way == "authority":
        name = spiffe_name(channel.certificate())
        if security.allow and name not in AllowedPeers.named(security.allow):
            raise ConnectError(f"{name or _NAMELESS} may not connect: it is not in --allow")
        channel.peer_identity = name or "certificate"  # any, where no name is required
        await channel.send("proved")
        return
    binding = Binding(proofs.digest_of(guard.identity.certificate), nonce, _bytes(proof, "nonce"))
    if way == "key":
        channel.peer_identity = _by_signature(proof, binding, security)
        await channel.send("proved")
    elif way == "secret":
        secret = guard.secret(str(proof.get("id")))
        if secret is None:
            raise ConnectError("the peer's secret is another one: both hosts need the same file")
        wrong = ConnectError("a wrong secret")
        proofs.check_mac(_bytes(proof, "mac"), secret, "connects", binding, wrong)
        mine = proofs.mac(secret, "listens", binding)
        await channel.send("proved", mac=mine.hex())
        channel.peer_identity = "secret"
    else:
        await _check_code(channel, proof, binding, guard)
        channel.peer_identity = "code"


def _ways(guard: Guard) -> list[str]:
    """The ways in which this side lets peers in now."""
    security = guard.security
    if security.authority is not None:
        return ["authority"]
    ways = [
        ("code", guard.has_code and security.lets_in_by_code),
        ("secret", bool(guard.ids)),
        ("key", bool(security.allow) or security.allow_any),
    ]
    return [way for way, open_ in ways if open_]


def _by_signature(proof: dict[str, Any], binding: Binding, security: Security) -> str:
    public = _bytes(proof, "key")
    if not is_signed(public, _bytes(proof, "signature", 64), binding.over("connects")):
        raise ConnectError("the peer's signature is wrong")
    shown = fingerprint_of(public)
    if not security.allow_any and shown not in AllowedPeers.named(security.allow):
        raise ConnectError(security.commands.not_allowed(shown))
    return shown


async def _check_code(
    channel: Channel, proof: dict[str, Any], binding: Binding, guard: Guard
) -> None:
    guess = Guess(guard.code, connects=False)
    key = guess.key(_bytes(proof, "message", 64))
    mine = proofs.mac(key, "listens", binding)
    guard.use_code()  # this answer shows whether the peer's guess was right
    channel.give_time(_CODE_SECONDS)  # no other peer waits for this place: there is no other guess
    try:
        await channel.send("proved", message=guess.message.hex(), mac=mine.hex())
        await _take_confirmation(channel, binding, guard, key)
    except BaseException as error:
        if not _ways(guard):
            cut = isinstance(error, asyncio.CancelledError)  # by a limit of this side
            guard.failure = guard.security.commands.unfinished_code() if cut else str(error)
            guard.failed.set()
        raise
    guard.remember(key)


async def _take_confirmation(channel: Channel, binding: Binding, guard: Guard, key: Secret) -> None:
    commands = guard.security.commands
    wrong = WrongCodeError(commands.wrong_code())
    try:
        confirmed = await channel.expect("confirm")
    except (ConnectRefusedError, PeerGoneError) as error:
        if error.kind is Kind.WRONG_CODE:
            raise wrong from error
        raise ConnectError(commands.unfinished_code()) from error
    proofs.check_mac(_bytes(confirmed, "mac"), key, "connects", binding, wrong)


# ---- Both ----------------------------------------------------------------------------------------


def _server_key(channel: Channel) -> bytes:
    try:
        return public_of(channel.certificate_bytes())
    except ValueError as error:
        raise ConnectError(
            f"{channel.called or channel.remote}: its certificate is of an authority, or none of"
            f" mrc's ({error}): name the authority with --ca"
        ) from error


def _bytes(message: dict[str, Any], name: str, most: int = 32) -> bytes:
    """A field of hexadecimal digits; raises ProtocolError."""
    text = message.get(name)
    try:
        found = bytes.fromhex(text) if isinstance(text, str) else b""
    except ValueError:
        found = b""
    if not 0 < len(found) <= most or (most == 32 and len(found) != 32):
        raise ProtocolError(f"the peer sent no proper {name!r}")
    return found


# ---- Random bytes in hellos ----------------------------------------------------------------------

# Each hello carries 32 random bytes, which only the two ends have, because the exchange is
# encrypted. The engine (`hkdf.c`) derives the secrets of a QP from them. They travel as text in
# JSON, and Python would leave copies of this text in its memory. So a frame is encoded with a mark
# in their place, and decoded after they have been cut out of it.


def write_random(random: Secret, frame: bytearray, mark: bytes) -> None:
    """Writes random bytes into a frame, in place of the mark, which is as long as their text."""
    at = frame.index(mark)
    for number, byte in enumerate(random.bytes):
        frame[at + 2 * number] = _DIGITS[byte >> 4]
        frame[at + 2 * number + 1] = _DIGITS[byte & 15]


def cut_random(frame: bytearray) -> list[Secret]:
    """Cuts random bytes out of a frame: their text becomes their index in the returned list.

    So does an entry of this name in the private data of the peer's user.
    """
    found: list[Secret] = []
    for match in _RANDOM.finditer(frame):
        random, (begin, end) = Secret(RANDOM_BYTES), match.span(1)
        for number, at in enumerate(range(begin, end, 2)):
            high, low = _DIGITS.index(frame[at]), _DIGITS.index(frame[at + 1])
            random.bytes[number] = high << 4 | low
        frame[begin:end] = b"%064x" % len(found)
        found.append(random)
    return found
