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

import ssl
from typing import Any

from mrc.errors import ConnectError, MrcError, ProtocolError
from mrc.exchange.oob import TLS, Channel
from mrc.trust import proofs, tls
from mrc.trust.identity import Identity, fingerprint_of, is_signed, public_of
from mrc.trust.known import KnownHosts, allowed
from mrc.trust.proofs import Binding, Guess
from mrc.trust.security import Security

WRONG_CODE = "the code is wrong: it was good for one guess; start mrc recv again for a new one"


class Codes:
    """The one-time code of a Context. It is gone after the first guess, right or wrong."""

    def __init__(self, code: str) -> None:
        self._code = code

    @property
    def left(self) -> bool:
        return bool(self._code)

    def take(self) -> str:
        code, self._code = self._code, ""
        if not code:
            raise ConnectError("the one-time code has been used: start mrc recv again")
        return code


# ---- The connecting side ----------------------------------------------------------------------


async def connect_securely(channel: Channel, security: Security) -> None:
    """Goes over to TLS and proves this side; raises ConnectError with the remedy."""
    host = channel.called or channel.remote
    await channel.send(TLS)
    try:
        await channel.expect(TLS)
    except ConnectError as error:
        raise type(error)(f"{host}: {error}") from error
    try:
        await channel.start_tls(tls.client(security.authority))
    except ssl.SSLError as error:
        raise tls.explain(error, host) from error
    want = await channel.expect("want")
    ways = want.get("ways")
    if not isinstance(ways, list):
        raise ProtocolError("the peer does not say how to prove oneself")
    if security.authority is not None:
        await _by_authority(channel, security, host, ways)
        return
    server = _server_key(channel)
    binding = Binding(server, _bytes(want, "nonce"), proofs.nonce())
    if security.code:
        await _by_code(channel, security.code, binding, _must(ways, "code", host))
        channel.peer_identity = "code"
        return
    if security.secret:
        _must(ways, "secret", host)
        mine = proofs.mac(security.secret, "connects", binding)
        answer = await _prove(channel, "secret", binding, mac=mine.hex())
        proofs.check_mac(
            _bytes(answer, "mac"), security.secret, "listens", binding,
            f"{host} does not have this secret",
        )  # fmt: skip
        channel.peer_identity = "secret"
        return
    await _by_key(channel, security, host, binding, ways)


def _must(ways: list[Any], way: str, host: str) -> str:
    if way not in ways:
        offered = {"key": "a key (--allow)", "code": "a one-time code", "secret": "a secret",
                   "authority": "a certificate authority"}  # fmt: skip
        names = [offered[each] for each in ways if isinstance(each, str) and each in offered]
        raise ConnectError(f"{host} takes {' or '.join(names) or 'nobody'}, not {offered[way]}")
    return way


async def _prove(channel: Channel, way: str, binding: Binding, **fields: str) -> dict[str, Any]:
    await channel.send("prove", way=way, nonce=binding.client_nonce.hex(), **fields)
    return await channel.expect("proved")


async def _by_key(
    channel: Channel, security: Security, host: str, binding: Binding, ways: list[Any]
) -> None:
    """The server is known by its fingerprint, before this side shows its own key."""
    shown = fingerprint_of(binding.server)
    if security.peer:
        if shown != security.peer:
            raise ConnectError(f"{host} is {shown}, not {security.peer}")
    else:
        known = KnownHosts(security.known_hosts)
        if not known.check(host, shown):
            if security.ask is None:
                raise ConnectError(
                    f"{host} is not known: it shows {shown}. Compare that with: mrc key, on {host};"
                    f" then add the line '{host} {shown}' to {known.path}, or use a one-time code"
                )
            if not await security.ask(host, shown):
                raise ConnectError(f"{host} was not accepted")
            known.add(host, shown)
    identity = security.load_identity()
    signature = identity.sign(binding.over("connects"))
    _must(ways, "key", host)
    await _prove(
        channel, "key", binding, key=identity.public.hex(), signature=signature.hex()
    )
    channel.peer_identity = shown


async def _by_code(channel: Channel, code: str, binding: Binding, way: str) -> None:
    guess = Guess(code, connects=True)
    answer = await _prove(channel, way, binding, message=guess.message.hex())
    key = guess.key(_bytes(answer, "message", 64))
    proofs.check_mac(_bytes(answer, "mac"), key, "listens", binding, WRONG_CODE)
    await channel.send("confirm", mac=proofs.mac(key, "connects", binding).hex())


async def _by_authority(
    channel: Channel, security: Security, host: str, ways: list[Any]
) -> None:
    _must(ways, "authority", host)
    names = tls.spiffe_names(channel.certificate())
    if security.peer and security.peer not in names:
        raise ConnectError(f"{host} is {_listed(names)}, not {security.peer}")
    await channel.send("prove", way="authority", nonce="")
    await channel.expect("proved")
    channel.peer_identity = min(names, default="certificate")


# ---- The listening side -----------------------------------------------------------------------


async def accept_securely(
    channel: Channel, security: Security, identity: Identity, codes: Codes
) -> None:
    """Answers a peer's wish for TLS, and lets it prove itself. Raises ConnectError otherwise."""
    await channel.receive()  # the wish, which the caller has seen
    await channel.send(TLS)
    try:
        await channel.start_tls(tls.server(identity, security.authority))
    except ssl.SSLError as error:
        raise tls.explain(error, channel.remote) from error
    ways = _ways(security, codes)
    nonce = proofs.nonce()
    await channel.send("want", ways=ways, nonce=nonce.hex())
    proof = await channel.expect("prove")
    way = proof.get("way")
    if way not in ways:
        raise ConnectError("this host does not take this proof: see mrc recv --help, trust")
    if way == "authority":
        channel.peer_identity = _admitted(tls.spiffe_names(channel.certificate()), security)
        await channel.send("proved")
        return
    binding = Binding(identity.public, nonce, _bytes(proof, "nonce"))
    if way == "key":
        channel.peer_identity = _by_signature(proof, binding, security)
        await channel.send("proved")
    elif way == "secret":
        wrong = "the peer's secret is another one: both hosts need the same file"
        proofs.check_mac(_bytes(proof, "mac"), security.secret, "connects", binding, wrong)
        mine = proofs.mac(security.secret, "listens", binding)
        await channel.send("proved", mac=mine.hex())
        channel.peer_identity = "secret"
    else:
        await _check_code(channel, proof, binding, codes)
        channel.peer_identity = "code"


def _ways(security: Security, codes: Codes) -> list[str]:
    """The ways in which this side lets peers in now."""
    if security.authority is not None:
        return ["authority"]
    ways = [
        ("code", codes.left),
        ("secret", bool(security.secret)),
        ("key", bool(security.allow) or security.allow_any),
    ]
    return [way for way, open_ in ways if open_]


def _by_signature(proof: dict[str, Any], binding: Binding, security: Security) -> str:
    public = _bytes(proof, "key")
    if not is_signed(public, _bytes(proof, "signature", 64), binding.over("connects")):
        raise ConnectError("the peer's signature is wrong")
    shown = fingerprint_of(public)
    if not security.allow_any and shown not in allowed(security.allow):
        raise ConnectError(f"{shown} may not connect here: the receiver's --allow can name it")
    return shown


def _admitted(names: frozenset[str], security: Security) -> str:
    """The SPIFFE name that lets a peer in; any certificate of the authority if none is required."""
    if not security.allow:
        return min(names, default="certificate")
    found = names & allowed(security.allow)
    if not found:
        raise ConnectError(f"{_listed(names)} may not connect here")
    return min(found)


async def _check_code(
    channel: Channel, proof: dict[str, Any], binding: Binding, codes: Codes
) -> None:
    guess = Guess(codes.take(), connects=False)
    key = guess.key(_bytes(proof, "message", 64))
    mine = proofs.mac(key, "listens", binding)
    await channel.send("proved", message=guess.message.hex(), mac=mine.hex())
    try:
        confirmed = await channel.expect("confirm")
    except MrcError as error:
        raise ConnectError(WRONG_CODE) from error
    proofs.check_mac(_bytes(confirmed, "mac"), key, "connects", binding, WRONG_CODE)


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


def _listed(names: frozenset[str]) -> str:
    return ", ".join(sorted(names)) or "a host without a SPIFFE name"
