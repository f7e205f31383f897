# SPDX-License-Identifier: Apache-2.0
"""The encrypted exchange: somebody in between, the stream, and any bytes in place of hellos, of the
upgrade and of the proofs.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import uvloop
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from meetings import A, B, TestAuthority, channels
from slowness import PATIENCE

from mrc.connect import tls
from mrc.connect.identity import Identity, fingerprint_of, load
from mrc.connect.oob import FRAME_BYTES, Channel, encode_frame
from mrc.connect.security import Authority, Security
from mrc.connect.tls import TLS, Guard, TlsStream
from mrc.errors import MrcError
from mrc.linux.secret import Secret

# ---- Somebody in between ------------------------------------------------------------------------


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


# ---- The stream ---------------------------------------------------------------------------------


Ends = tuple[TlsStream, TlsStream]


@asynccontextmanager
async def ends(client: ssl.SSLContext, server: ssl.SSLContext) -> AsyncIterator[Ends]:
    """Both ends of a connection, before they start."""
    arrived: asyncio.Future[TlsStream] = asyncio.get_running_loop().create_future()

    def on_peer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        arrived.set_result(TlsStream(reader, writer, server, None))

    listening = await asyncio.start_server(on_peer, "127.0.0.1", 0, limit=4096)
    streams = await asyncio.open_connection(*listening.sockets[0].getsockname())
    one = TlsStream(*streams, client, "host")
    try:
        yield one, await arrived
    finally:
        one.transport.abort()
        (await arrived).transport.abort()
        listening.close()


def begun(tmp_path: Path) -> AbstractAsyncContextManager[Ends]:
    """Both ends before they start; the server has a key."""
    server = tls.server_context(load(tmp_path / "id.pem"), None)
    return ends(tls.client_context(None).context(), server.context())


@pytest.fixture
async def met(tmp_path: Path) -> AsyncIterator[Ends]:
    async with begun(tmp_path) as both:
        await asyncio.gather(*(end.start() for end in both))
        yield both


async def test_readexactly__gets_what_the_other_side_writes(met: Ends) -> None:
    data = os.urandom(1 << 20)  # many records, and more than the buffers below

    async def write() -> None:
        met[0].write(data)
        await met[0].drain()

    _, got = await asyncio.gather(write(), met[1].readexactly(len(data)))
    assert got == data


def test_close__of_a_connection_that_is_gone(tmp_path: Path) -> None:
    """With uvloop, as in the commands: a closed transport refuses what is written to it."""

    async def run() -> None:
        async with begun(tmp_path) as both:
            await asyncio.gather(*(end.start() for end in both))
            one, other = both
            other.transport.abort()
            assert await one.read(1) == b""
            one.transport.abort()
            await asyncio.sleep(0)
            one.write_eof()
            one.close()
            with pytest.raises(ConnectionError):
                await one.drain()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run())


async def test_read__at_the_end(met: Ends) -> None:
    one, other = met
    one.write(b"last")
    one.close()
    assert await other.read(100) == b"last"
    assert await other.read(100) == b""
    with pytest.raises(asyncio.IncompleteReadError):
        await other.readexactly(1)


async def test_read__of_a_connection_that_is_cut(met: Ends) -> None:
    one, other = met
    one._writer.write_eof()
    assert await other.read(100) == b""


async def test_start__of_a_connection_that_ends(tmp_path: Path) -> None:
    async with begun(tmp_path) as (one, other):
        other._writer.close()
        with pytest.raises(ConnectionError):
            await one.start()


@pytest.mark.parametrize("alert", [b"", bytes.fromhex("15 0303 0002 0100")], ids=["", "alert"])
async def test_write_eof__before_tls_has_begun(tmp_path: Path, alert: bytes) -> None:
    """A host that refuses its peer then says all that it has to say; the peer must not wait.

    Some versions of OpenSSL send a close_notify alert even then.
    """
    async with begun(tmp_path) as (one, other):
        other._writer.write(alert)
        other.write_eof()
        with pytest.raises(ConnectionError):
            await one.start()


async def test_read__after_write_eof(met: Ends) -> None:
    one, other = met
    one.write_eof()
    assert await other.read(100) == b""
    other.write(b"last")
    other.close()
    assert await one.read(100) == b"last"
    assert await one.read(100) == b""
    with pytest.raises(asyncio.IncompleteReadError):
        await one.readexactly(1)


async def refusals(one: Authority, other: Authority) -> list[str]:
    """What each side says of the start, or of the first read after it."""

    async def side(end: TlsStream) -> str:
        try:
            await end.start()
            await end.read(1)
        except ssl.SSLError as error:
            return str(tls.explain(error, "host"))
        return ""

    context, listens = tls.client_context(one).context(), tls.server_context(None, other).context()
    async with ends(context, listens) as both:
        return list(await asyncio.gather(*map(side, both)))


async def test_start__tells_the_peer_why_its_certificate_is_refused(tmp_path: Path) -> None:
    ca, strange = TestAuthority(tmp_path), TestAuthority(tmp_path, "strange")
    good, late = ca.issue(A), ca.issue(B, file="late", begins=-3, ends=-2)
    said = await refusals(late, good)
    assert "that this host's certificate has expired" in said[0]
    assert "its certificate has expired" in said[1]
    said = await refusals(good, late)
    assert "its certificate has expired" in said[0]
    assert "that this host's certificate has expired" in said[1]
    said = await refusals(strange.issue(A, file="stranger"), good)
    assert "not of this host's authority" in said[0]
    assert "does not know this host's authority" in said[1]


# ---- Random bytes in hellos ---------------------------------------------------------------------


RANDOM, OTHER = bytes(range(200, 232)), bytes(range(32))


def hello(**attributes: object) -> dict[str, object]:
    return {"type": "hello", "private": {}, "attributes": {"qpn": 5, **attributes}}


def test_write__is_read_by_everybody() -> None:
    mark = "ab" * 32
    frame = bytearray(json.dumps(hello(seal_random=mark)).encode())
    tls.write_random(Secret.copy(RANDOM), frame, mark.encode())
    assert json.loads(frame) == hello(seal_random=RANDOM.hex())


@pytest.mark.parametrize("indent", [None, 2])
def test_cut__leaves_an_index(indent: int | None) -> None:
    frame = bytearray(json.dumps(hello(seal_random=RANDOM.hex()), indent=indent).encode())
    (found,) = tls.cut_random(frame)
    assert found.bytes == RANDOM
    assert json.loads(frame) == hello(seal_random="0" * 64)


def test_cut__a_name_of_the_caller_is_another_entry() -> None:
    message = hello(seal_random=RANDOM.hex()) | {"private": {"seal_random": OTHER.hex()}}
    frame = bytearray(json.dumps(message).encode())
    found = tls.cut_random(frame)
    index = int(json.loads(frame)["attributes"]["seal_random"], 16)
    assert found[index].bytes == RANDOM and len(found) == 2


@pytest.mark.parametrize("text", ["", "ab", "AB" * 32, "xy" * 32])
def test_cut__other_text_stays_for_the_checks(text: str) -> None:
    frame = bytearray(json.dumps(hello(seal_random=text)).encode())
    assert tls.cut_random(frame) == []
    assert json.loads(frame) == hello(seal_random=text)


# ---- Any bytes, to both sides, on both event loops: an error, soon, and nobody is let in --------


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
    """Says these bytes and, after it has heard something, those; endings."""

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
    """Goes over to TLS as it should, then says these messages, and endings."""

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


# ---- What strangers say ----------------------------------------------------------------------


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
endings = st.one_of(
    st.just(b""),
    st.binary(max_size=40),
    _message("confirm", st.just({})),
    _message("proved", st.just({})),
)
talk = {
    "listens": st.lists(st.one_of(proofs, endings), min_size=1, max_size=2),
    "connects": st.tuples(
        st.one_of(wants, wants, _message("want", values.map(lambda v: {"ways": v}))),
        st.one_of(endings, _message("proved", st.just({}))),
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


@pytest.mark.parametrize("cut", [0, 5, 100])
def test_listening__a_handshake_that_is_broken_off_says_nothing_in_the_log(
    runner: asyncio.Runner, key: Identity, caplog: pytest.LogCaptureFixture, cut: int
) -> None:
    runner.run(listen(Raw(WISH, HELLO[:cut] or b"\x16"), key))
    assert [record.message for record in caplog.records] == []
