# SPDX-License-Identifier: Apache-2.0
"""Somebody in between reads, changes and ends the TLS upgrade. Neither side is deceived."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from authority import A, B, TestAuthority
from channels import channels
from slowness import PATIENCE

from mrc.connect import tls
from mrc.connect.oob import Channel, encode_frame
from mrc.connect.tls import TLS, Guard
from mrc.errors import MrcError
from mrc.trust.identity import load
from mrc.trust.security import Security

CODE = "maple-rocket-cider"
SECRET = bytes(range(32))
WAYS = ["key", "secret", "code", "authority"]
WISH = encode_frame({"type": TLS})
Relay = Callable[[Channel, Channel], Awaitable[None]]


@pytest.fixture
def sides(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Security, Security]:
    """What both sides require, by the way in which they prove themselves."""
    ours, theirs = load(tmp_path / "ours.pem"), load(tmp_path / "theirs.pem")
    if request.param == "key":
        return (Security(identity=ours.path, peer=theirs.fingerprint),
                Security(identity=theirs.path, allow=(ours.fingerprint,)))  # fmt: skip
    if request.param == "secret":
        return Security(secret=SECRET), Security(identity=theirs.path, secret=SECRET)
    if request.param == "code":
        return Security(code=CODE), Security(identity=theirs.path, code=CODE)
    ca = TestAuthority(tmp_path)
    return (Security(authority=ca.issue(A), peer=B),
            Security(authority=ca.issue(B), allow=(A,)))  # fmt: skip


async def outcomes(sides: tuple[Security, Security], relay: Relay) -> list[str]:
    """The errors of both sides, or "" for a side that believes in the other."""

    async def side(work: Awaitable[None], own: Channel, far: Channel) -> str:
        try:
            async with asyncio.timeout(PATIENCE):
                await work
        except MrcError as error:
            assert not own.secured and own.peer_identity == ""
            return str(error)
        finally:
            if not own.secured:
                own.abort()
                far.abort()
        return ""

    async def between(near: Channel, far: Channel) -> None:
        with contextlib.suppress(MrcError, OSError):
            await relay(near, far)

    connecting, listening = (Guard(each) for each in sides)
    async with channels() as (one, near), channels() as (far, other):
        relaying = asyncio.ensure_future(between(near, far))
        try:
            client = side(connecting.connect(one), one, far)
            server = side(listening.accept(other), other, near)
            return list(await asyncio.gather(client, server))
        finally:
            relaying.cancel()
            await asyncio.wait([relaying])


async def pump(source: Channel, to: Channel) -> None:
    """Passes bytes on."""
    while data := await source._reader.read(1 << 16):
        to._writer.write(data)
        await to._writer.drain()
    to.abort()


async def spoil(source: Channel, to: Channel, change: int) -> None:
    """Passes the wish and the TLS records on; flips a bit of the byte at `change` in their bodies.

    Their lengths stay as they are: with a longer one, both sides would only wait for each other,
    until the deadline of the exchange.
    """
    to._writer.write(await source._reader.readexactly(len(WISH)))
    passed = 0
    with contextlib.suppress(asyncio.IncompleteReadError):
        while True:
            header = await source._reader.readexactly(5)
            body = bytearray(await source._reader.readexactly(int.from_bytes(header[3:])))
            if passed <= change < passed + len(body):
                body[change - passed] ^= 1
            passed += len(body)
            to._writer.write(header + body)
            await to._writer.drain()
    to.abort()


async def both_ways(near: Channel, far: Channel) -> None:
    await asyncio.gather(pump(near, far), pump(far, near))


@pytest.mark.parametrize("sides", WAYS, indirect=True)
async def test_between__who_only_passes_on_hinders_nobody(sides: tuple[Security, Security]) -> None:
    assert await outcomes(sides, both_ways) == ["", ""]


@pytest.mark.parametrize("sides", WAYS, indirect=True)
async def test_between__with_a_key_of_his_own(
    sides: tuple[Security, Security], tmp_path: Path
) -> None:
    """He speaks TLS with both and passes on what they say inside."""
    own = load(tmp_path / "own.pem")

    async def relay(near: Channel, far: Channel) -> None:
        await near.expect(TLS)
        await near.send(TLS)
        await near.start_tls(tls.server_context(own, None).context())
        await far.send(TLS)
        await far.expect(TLS)
        await far.start_tls(tls.client_context(None).context(), "host")
        await both_ways(near, far)

    connecting, listening = await outcomes(sides, relay)
    assert connecting != "" and listening != ""


@pytest.mark.parametrize("sides", WAYS, indirect=True)
@pytest.mark.parametrize("where", ["out", "back"])
async def test_between__who_changes_a_byte(sides: tuple[Security, Security], where: str) -> None:
    """Of what each side sends after the wish, in the beginning, the middle, and the proofs."""
    for at in (8, 40, 100, 250, 300):

        async def relay(near: Channel, far: Channel, at: int = at) -> None:
            source, to = (near, far) if where == "out" else (far, near)
            await asyncio.gather(spoil(source, to, at), pump(to, source))

        connecting, listening = await outcomes(sides, relay)
        assert connecting != "" or listening != "", at


@pytest.mark.parametrize("sides", WAYS, indirect=True)
@pytest.mark.parametrize("said", [
    encode_frame({"type": "refuse", "reason": "no TLS here", "busy": False}),
    encode_frame({"type": "hello", "version": 2}),
    encode_frame({"type": "want", "ways": WAYS, "nonce": "00" * 32}),
])  # fmt: skip
async def test_between__who_answers_for_a_plain_host(
    sides: tuple[Security, Security], said: bytes
) -> None:
    async def relay(near: Channel, far: Channel) -> None:
        await near.expect(TLS)
        near._writer.write(said)
        await near._writer.drain()
        with pytest.raises(MrcError):
            await near.receive()  # nothing follows: it does not go on without TLS

    connecting, _ = await outcomes(sides, relay)
    assert connecting != ""


@pytest.mark.parametrize("sides", WAYS, indirect=True)
@pytest.mark.parametrize("to", ["connecting", "listening"])
async def test_between__who_adds_plain_messages_to_the_wish(
    sides: tuple[Security, Security], to: str
) -> None:
    """They would be the first that the side reads inside: `want` and `proved`, or a proof."""
    want = encode_frame({"type": "want", "ways": WAYS, "nonce": "00" * 32})
    added = {
        "connecting": want + encode_frame({"type": "proved"}) + encode_frame({"type": "hello"}),
        "listening": encode_frame({"type": "prove", "way": "authority", "nonce": ""})
        + encode_frame({"type": "hello"}),
    }[to]

    async def relay(near: Channel, far: Channel) -> None:
        await near.expect(TLS)
        far._writer.write(WISH + (added if to == "listening" else b""))
        await far.expect(TLS)
        near._writer.write(WISH + (added if to == "connecting" else b""))
        await both_ways(near, far)

    said = dict(zip(("connecting", "listening"), await outcomes(sides, relay), strict=True))
    assert "went on without TLS" in said[to]
