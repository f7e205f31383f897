# SPDX-License-Identifier: Apache-2.0
"""Any bytes in place of the TLS upgrade and of the proofs, to both sides, on both event loops.

Every exchange ends with an error of mrc, soon, and nobody is let in.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import uvloop
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from meetings import channels
from slowness import PATIENCE

from mrc.connect import tls
from mrc.connect.oob import FRAME_BYTES, Channel, encode_frame
from mrc.connect.tls import TLS, Guard
from mrc.errors import MrcError
from mrc.trust.identity import Identity, fingerprint_of, load
from mrc.trust.security import Security

SECRET = bytes(range(32))
CODE = "maple-rocket-cider"
WISH = encode_frame({"type": TLS})
Say = Callable[[Channel], Awaitable[None]]


@pytest.fixture(scope="module")
def key(tmp_path_factory: pytest.TempPathFactory) -> Identity:
    return load(tmp_path_factory.mktemp("keys") / "identity.pem")


@pytest.fixture(scope="module", params=["asyncio", pytest.param("uvloop", marks=pytest.mark.slow)])
def runner(request: pytest.FixtureRequest) -> Iterator[asyncio.Runner]:
    factory = uvloop.new_event_loop if request.param == "uvloop" else asyncio.new_event_loop
    with asyncio.Runner(loop_factory=factory) as made:
        yield made


@dataclass
class Raw:
    """Says these bytes and, after it has heard something, those; ends."""

    data: bytes
    then: bytes = b""

    async def __call__(self, channel: Channel) -> None:
        channel._writer.write(self.data)
        if self.then:
            assert isinstance(channel._reader, asyncio.StreamReader)
            while not channel._reader.at_eof():
                heard = await channel._reader.read(1 << 16)
                if heard != WISH:  # the connecting side goes on after its wish
                    break
                if channel.called:
                    break
            channel._writer.write(self.then)
        channel._writer.write_eof()
        while await channel._reader.read(1 << 16):
            pass


@dataclass
class Inside:
    """Goes over to TLS as it should, then says these messages, and ends."""

    messages: list[bytes]
    identity: Identity | None  # of the listening side

    async def __call__(self, channel: Channel) -> None:
        if self.identity is None:
            await channel.send(TLS)
            await channel.expect(TLS)
            await channel.start_tls(tls.client_context(None).context(), "host")
        else:
            await channel.expect(TLS)
            await channel.send(TLS)
            await channel.start_tls(tls.server_context(self.identity, None).context())
        channel._writer.write(b"".join(self.messages))
        with contextlib.suppress(ConnectionError):
            await channel._writer.drain()
            channel._writer.close()


async def outcome(work: Awaitable[None], stranger: Awaitable[None], ours: Channel) -> str:
    """Runs one exchange; it must end with an error of mrc, which this returns."""

    async def speak() -> None:
        with contextlib.suppress(MrcError, OSError):
            await stranger

    task = asyncio.ensure_future(speak())
    try:
        async with asyncio.timeout(PATIENCE):
            with pytest.raises(MrcError) as caught:
                await work
        assert "\n" not in str(caught.value)
        assert not ours.secured and ours.peer_identity == ""
        return str(caught.value)
    finally:
        ours.abort()
        task.cancel()
        await asyncio.wait([task])


async def listen(stranger: Say, key: Identity, security: Security | None = None) -> str:
    # All proofs are taken, so that all of them get wrong ones.
    open_to = security or Security(
        identity=key.path, allow=(fingerprint_of(b"nobody"),), secret=SECRET, code=CODE
    )
    async with channels() as (one, other):
        return await outcome(Guard(open_to).accept(other), stranger(one), other)


async def connect(stranger: Say, security: Security) -> None:
    async with channels() as (one, other):
        await outcome(Guard(security).connect(one), stranger(other), one)


# ---- What strangers say -----------------------------------------------------------------------


def _client_hello() -> bytes:
    out = ssl.MemoryBIO()
    context = tls.client_context(None).context()
    with contextlib.suppress(ssl.SSLWantReadError):
        context.wrap_bio(ssl.MemoryBIO(), out, server_hostname="host").do_handshake()
    return out.read()


HELLO = _client_hello()


@st.composite
def spoilt(draw: st.DrawFn, good: bytes) -> bytes:
    """Good bytes with a few of them changed, cut off, or with others behind."""
    data = bytearray(good)
    for _ in range(draw(st.integers(0, 4))):
        data[draw(st.integers(0, len(data) - 1))] = draw(st.integers(0, 255))
    return bytes(data[: draw(st.integers(0, len(data)))]) + draw(st.binary(max_size=64))


bare = st.one_of(
    st.builds(Raw, st.binary(max_size=300)),
    st.builds(Raw, spoilt(WISH)),
    st.builds(Raw, st.just(WISH), st.binary(min_size=1, max_size=300)),
    st.builds(Raw, st.just(WISH), spoilt(HELLO)),
)
values = st.one_of(
    st.none(), st.booleans(), st.integers(), st.text(max_size=20),
    st.binary(max_size=70).map(bytes.hex),
    st.sampled_from([0, 1, 31, 32, 33, 63, 64]).flatmap(
        lambda n: st.binary(min_size=n, max_size=n).map(bytes.hex)
    ),
    st.lists(st.text(max_size=5), max_size=4),
)  # fmt: skip
WAYS = ["key", "secret", "code", "authority"]
FIELDS = ["nonce", "key", "signature", "mac", "id", "message"]


def _message(kind: str, ways: st.SearchStrategy[Any]) -> st.SearchStrategy[bytes]:
    nonce = st.binary(min_size=32, max_size=32).map(bytes.hex)
    point = st.binary(min_size=32, max_size=32)
    message = st.builds(bytes.__add__, st.sampled_from([b"A", b"B", b"S", b""]), point)
    right = st.fixed_dictionaries(
        {"nonce": nonce, "mac": nonce, "key": nonce, "message": message.map(bytes.hex),
         "id": st.sampled_from([ID, "0"]),
         "signature": st.binary(min_size=64, max_size=64).map(bytes.hex)}
    )  # fmt: skip
    some = st.one_of(st.just({}), st.dictionaries(st.sampled_from(FIELDS), values))
    return st.builds(
        lambda way, right, fields: encode_frame({"type": kind, **right, **way, **fields}),
        ways, right, some,
    )  # fmt: skip


ID = Guard(Security(secret=SECRET)).ids[0]
proofs = _message("prove", st.sampled_from(WAYS).map(lambda way: {"way": way}))
wants = _message("want", st.just({"ways": WAYS}))
ends = st.one_of(
    st.just(b""),
    st.binary(max_size=40),
    _message("confirm", st.just({})),
    _message("proved", st.just({})),
)
talk = {
    "listens": st.lists(st.one_of(proofs, ends), min_size=1, max_size=2),
    "connects": st.tuples(
        st.one_of(wants, wants, _message("want", values.map(lambda v: {"ways": v}))),
        st.one_of(ends, _message("proved", st.just({}))),
    ).map(list),
}  # fmt: skip
some_of_them = settings(
    max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@some_of_them
@given(stranger=bare)
def test_listening__any_bytes(runner: asyncio.Runner, key: Identity, stranger: Raw) -> None:
    runner.run(listen(stranger, key))


@some_of_them
@given(messages=talk["listens"])
def test_listening__any_proof(runner: asyncio.Runner, key: Identity, messages: list[bytes]) -> None:
    runner.run(listen(Inside(messages, None), key))


def _connecting(key: Identity, way: str) -> Security:
    return {
        "key": Security(identity=key.path, peer=key.fingerprint),
        "secret": Security(secret=SECRET),
        "code": Security(code=CODE),
    }[way]


@some_of_them
@given(stranger=bare)
def test_connecting__any_bytes(runner: asyncio.Runner, key: Identity, stranger: Raw) -> None:
    runner.run(connect(stranger, _connecting(key, "key")))


@pytest.mark.parametrize("way", ["secret", pytest.param("code", marks=pytest.mark.slow)])
@some_of_them
@given(messages=talk["connects"])
def test_connecting__any_answer(
    runner: asyncio.Runner, key: Identity, way: str, messages: list[bytes]
) -> None:
    runner.run(connect(Inside(messages, key), _connecting(key, way)))


@pytest.mark.parametrize("way", ["key", "secret", "code", "authority", "", None, 1])
def test_listening__a_proof_that_it_has_not_asked_for(
    runner: asyncio.Runner, key: Identity, way: object
) -> None:
    if way == "secret":
        security = Security(identity=key.path, allow=(fingerprint_of(b"nobody"),))
    else:
        security = Security(identity=key.path, secret=SECRET)
    proof = encode_frame({"type": "prove", "way": way, "nonce": bytes(32).hex()})
    said = runner.run(listen(Inside([proof], None), key, security))
    assert ("one-time code" if way == "code" else "does not take this proof") in said


# The lengths of TLS's own messages are checked before they are kept.


@pytest.mark.parametrize("what", ["long message", "many records", "long frame"])
def test_listening__too_much_of_it(runner: asyncio.Runner, key: Identity, what: str) -> None:
    record = b"\x16\x03\x03\x40\x00" + b"\x01\xff\xff\xff" + bytes((1 << 14) - 4)
    said = {
        "long message": Raw(WISH, record * 64),
        "many records": Raw(WISH, b"\x16\x03\x03\x00\x00" * 100_000),
        "long frame": Raw(b"\x00\x01\xff\xff" + bytes(0x1FFFF)),
    }
    runner.run(listen(said[what], key))


def test_listening__a_long_proof_is_not_read(runner: asyncio.Runner, key: Identity) -> None:
    long = (FRAME_BYTES + 1).to_bytes(4, "big") + b"{" * FRAME_BYTES
    runner.run(listen(Inside([long], None), key))


def test_listening__what_was_said_before_tls_is_not_taken_for_said_inside(
    runner: asyncio.Runner, key: Identity
) -> None:
    """Somebody in between adds plain messages to the wish; the handshake itself is honest."""

    async def exchange() -> None:
        early = encode_frame({"type": "prove", "way": "authority", "nonce": ""})
        async with channels() as (one, other):

            async def stranger() -> None:
                one._writer.write(WISH + early)
                await one.expect(TLS)
                await one.start_tls(tls.client_context(None).context(), "host")

            security = Security(identity=key.path, allow_any=True)
            said = await outcome(Guard(security).accept(other), stranger(), other)
            assert "went on without TLS" in said

    runner.run(exchange())


@pytest.mark.parametrize("cut", [0, 5, 100])
def test_listening__a_handshake_that_is_broken_off_says_nothing_in_the_log(
    runner: asyncio.Runner, key: Identity, caplog: pytest.LogCaptureFixture, cut: int
) -> None:
    runner.run(listen(Raw(WISH, HELLO[:cut] or b"\x16"), key))
    assert [record.message for record in caplog.records] == []
