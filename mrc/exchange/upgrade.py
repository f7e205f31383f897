# SPDX-License-Identifier: Apache-2.0
"""The first messages of an encrypted exchange: both sides go over to TLS, and prove themselves.

  connecting side              listening side
  tls           ---->                           asks for TLS; a plain listener refuses
                <----          tls              both: TLS 1.3
                <----          want             a nonce, and the ways in which it lets peers in
  prove         ---->                           one of them: key, secret, code or authority
                <----          proved           for secret and code: that the listener has it too
  confirm       ---->                           for a code

Nothing else of the peer is read before it has proved itself. Messages are at most FRAME_BYTES.
"""

from __future__ import annotations

import asyncio
import hmac
import ssl
from typing import Any

from mrc.errors import ConnectError, ConnectRefusedError, Kind, PeerGoneError, ProtocolError
from mrc.exchange.neighbour import is_own
from mrc.exchange.oob import TLS, Channel
from mrc.trust import proofs, tls, words
from mrc.trust.identity import Identity, fingerprint_of, is_signed, public_of
from mrc.trust.known import KnownHosts, allowed
from mrc.trust.memory import Secret
from mrc.trust.proofs import Binding, Guess
from mrc.trust.remedies import Commands
from mrc.trust.security import Security, secret_id

_NAMELESS = "a host without a SPIFFE name"
_CODE_SECONDS = 90.0  # for a peer that was stopped, or slept, after its one guess
_MOST_SESSIONS = 64  # that a code or secret has opened and whose further QPs may come


class QuestionError(ConnectError):
    """The user of this side can be asked before another attempt."""


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
        self.connects = tls.client(authority, check_hostname=not security.peer)
        self._listens: tls.Loaded | None = None

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
    def listens(self) -> tls.Loaded:
        """TLS of the listening side; makes the key that it needs without an authority."""
        if self._listens is None:
            authority = self.security.authority
            self._listens = tls.server(None if authority else self.identity, authority)
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
                self._code = words.normal(await security.ask_code(question.host))
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


# ---- The connecting side ----------------------------------------------------------------------


async def _connect(channel: Channel, guard: Guard) -> None:
    security, host = guard.security, channel.called or channel.remote
    await channel.send(TLS)
    await channel.expect(TLS)
    try:
        await channel.start_tls(guard.connects.context(), host)
    except ssl.SSLError as error:
        raise tls.explain(error, host) from error
    try:
        want = await channel.expect("want")
    except ConnectError:
        if security.authority is not None:  # the peer may have refused this side's certificate
            tls.check_dates(security.authority.certificate)
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
    guard.use_code()  # what this side says to the answer shows whether the answer was right
    key = guess.key(_bytes(answer, "message", 64))
    wrong = WrongCodeError(guard.security.commands.wrong_code())
    proofs.check_mac(_bytes(answer, "mac"), key, "listens", binding, wrong)
    await channel.send("confirm", mac=proofs.mac(key, "connects", binding).hex())
    guard.remember(key)


async def _by_authority(channel: Channel, security: Security, host: str, ways: list[Any]) -> None:
    _must(ways, "authority", host, security)
    name = tls.spiffe_name(channel.certificate())
    if security.peer and name != security.peer:
        raise ConnectError(
            f"{host} is {name or _NAMELESS}, not {security.peer}: check --peer, or its certificate"
        )
    await channel.send("prove", way="authority", nonce="")
    await channel.expect("proved")
    channel.peer_identity = name or "certificate"


# ---- The listening side -----------------------------------------------------------------------


async def _accept(channel: Channel, guard: Guard) -> None:
    security, context = guard.security, guard.listens.context()
    await channel.receive()  # the wish, which the caller has seen
    await channel.send(TLS)
    try:
        await channel.start_tls(context)
    except ssl.SSLError as error:
        if security.authority is not None:  # the peer may have refused this side's certificate
            tls.check_dates(security.authority.certificate)
        raise tls.explain(error, channel.remote) from error
    ways = _ways(guard)
    nonce = proofs.nonce()
    await channel.send("want", ways=ways, nonce=nonce.hex())
    proof = await channel.expect("prove")
    way = proof.get("way")
    if way not in ways:
        used = security.commands.used_code()
        raise ConnectError(used if way == "code" else "this host does not take this proof")
    if way == "authority":
        channel.peer_identity = _admitted(tls.spiffe_name(channel.certificate()), security)
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
    if not security.allow_any and shown not in allowed(security.allow):
        raise ConnectError(security.commands.not_allowed(shown))
    return shown


def _admitted(name: str, security: Security) -> str:
    """What lets a peer in: its SPIFFE name, or any certificate where none is required."""
    if security.allow and name not in allowed(security.allow):
        raise ConnectError(f"{name or _NAMELESS} may not connect: it is not in --allow")
    return name or "certificate"


async def _check_code(
    channel: Channel, proof: dict[str, Any], binding: Binding, guard: Guard
) -> None:
    guess = Guess(guard.code, connects=False)
    key = guess.key(_bytes(proof, "message", 64))
    mine = proofs.mac(key, "listens", binding)
    guard.use_code()  # by this answer the peer learns whether its guess was right
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


# ---- Both --------------------------------------------------------------------------------------


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
