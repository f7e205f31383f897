# SPDX-License-Identifier: Apache-2.0
"""The messages of the exchange, the connection that carries them, and values from peers."""

from __future__ import annotations

import asyncio
import copy
import dataclasses
import errno
import json
import os
import socket
import struct
from collections.abc import Callable
from ipaddress import ip_address, ip_interface
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock, Mock

import pytest
import uvloop
from hypothesis import given, settings
from hypothesis import strategies as st
from meetings import channels
from msgspec.structs import replace
from unit.test_tasks import Jumping

from mrc.cli.output import harmless_lines
from mrc.connect.admission import Owner, SocketAddress, owner_of
from mrc.connect.oob import (
    FRAME_BYTES,
    HELLO_BYTES,
    LONGEST_RTT_SECONDS,
    SNAPSHOT_BYTES,
    VERSION,
    Attributes,
    Channel,
    CutOffError,
    Hello,
    Keepalive,
    decode_body,
    decode_length,
    encode_frame,
    kind_in,
    patience,
    refusal_fields,
)
from mrc.connect.parse import MAX_WHOLE, parse, parse_address, printable, shown
from mrc.engine.paths import RemotePort
from mrc.errors import BusyError, ConnectRefusedError, Kind, PeerGoneError, ProtocolError
from mrc.tasks import cancelled

HELLO = Hello(
    host="h0",
    attributes=Attributes(
        qpn=0x1234,
        first_psn=0xABCDEF,
        path_mtu=8844,
        mpr=1024,
        max_wimm=128,
        integrity="icrc",
        udp_port=4791,
        ports=(
            RemotePort("p1", ip_interface("fd00:a:0::1/64"), (40000,), 8844),
            RemotePort("p2", ip_interface("10.0.0.1/24"), (40001, 40002), 1428),
        ),
    ),
    private={"service": "files", "n": [1, 2, {"deep": None}]},
)

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-MAX_WHOLE, MAX_WHOLE)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=6,
)


@settings(max_examples=50)
@given(st.dictionaries(st.text(), JSON, max_size=4))
def test_encode_frame__round_trip(fields: dict[str, Any]) -> None:
    message = {**fields, "type": "x"}
    frame = encode_frame(message)
    assert decode_length(frame[:4], SNAPSHOT_BYTES) == len(frame) - 4
    assert decode_body(frame[4:]) == message


def test_encode_frame__a_message_over_the_limit() -> None:
    with pytest.raises(ProtocolError, match="exceeds the limit"):
        encode_frame({"type": "x", "blob": "x" * SNAPSHOT_BYTES})


@pytest.mark.parametrize(
    "header", [struct.pack(">I", SNAPSHOT_BYTES + 1), struct.pack(">I", 0xFFFFFFFF), b"GET "]
)
def test_decode_length__out_of_bounds(header: bytes) -> None:
    with pytest.raises(ProtocolError, match="does not speak"):
        decode_length(header)


def test_decode_length__over_the_limit_of_the_moment() -> None:
    header = struct.pack(">I", FRAME_BYTES + 1)
    with pytest.raises(ProtocolError, match="4097 bytes, the limit is 4096"):
        decode_length(header)
    assert decode_length(header, FRAME_BYTES + 1) == FRAME_BYTES + 1


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b"{}", b'{"type": 1}', b"nonsense", b"\xff\xfe", b"[" * 200_000,
     b'{"type": ' + b"9" * 5000 + b"}"],
    ids=lambda body: repr(body[:12]),
)  # fmt: skip
def test_decode_body__no_message(body: bytes) -> None:
    with pytest.raises(ProtocolError, match="does not speak"):
        decode_body(body)


@given(st.binary(max_size=300))
def test_decode_body__any_bytes_give_a_message_or_a_protocol_error(body: bytes) -> None:
    try:
        message = decode_body(body)
    except ProtocolError:
        return
    assert isinstance(message["type"], str)


def test_hello__round_trip_through_json() -> None:
    assert Hello.from_dict(json.loads(json.dumps(HELLO.to_dict()))) == HELLO


def test_hello__other_readings() -> None:
    other = replace(HELLO, attributes=dataclasses.replace(HELLO.attributes, readings=("C3-B",)))
    message = other.to_dict()
    assert message["attributes"]["readings"] == ("C3-B",)
    assert Hello.from_dict(message) == other
    assert "readings" not in HELLO.to_dict()["attributes"]


def test_hello__ends_of_the_connection() -> None:
    seen = replace(HELLO, here="10.0.0.1", there="10.0.0.2")
    assert Hello.from_dict(seen.to_dict()) == seen
    assert not {"here", "there"} & HELLO.to_dict().keys()


def test_hello__its_bytes() -> None:
    """Later versions must send the same bytes, so that different versions can connect."""
    said = replace(HELLO, host="h\u00e9", private={"n": [1, 2.5, {"deep": None}]})
    assert encode_frame(said.to_dict())[4:].decode() == (
        '{"type":"hello","version":3,"host":"h\\u00e9","private":{"n":[1,2.5,{"deep":null}]},'
        '"attributes":{"qpn":4660,"first_psn":11259375,"path_mtu":8844,"mpr":1024,"max_wimm":128,'
        '"integrity":"icrc","udp_port":4791,"trim_nack":false,"dynamic_mpr":false,'
        '"seal":"none","seal_random":"","service_time":false,"sack_times":false,"inbox":null,'
        '"ports":[{"nic":"p1","address":"fd00:a::1/64","source_ports":[40000],"mtu":8844,'
        '"number":0,"weight":100},'
        '{"nic":"p2","address":"10.0.0.1/24","source_ports":[40001,40002],"mtu":1428,'
        '"number":0,"weight":100}]}}'
    )


def test_hello__unknown_keys_are_ignored() -> None:
    message = HELLO.to_dict()
    message["colour"] = "blue"
    message["attributes"]["future"] = {"x": 1}
    message["attributes"]["ports"][0]["speed"] = 400
    assert Hello.from_dict(message) == HELLO


@pytest.mark.parametrize("version", [0, 1, 1000])
def test_hello__another_version_is_named_whatever_else_it_says(version: int) -> None:
    said = f"speaks version {version} .* this host version {VERSION}"
    with pytest.raises(ProtocolError, match=said):
        Hello.from_dict({"type": "hello", "version": version})


def set_at(message: dict[str, Any], path: str, value: object) -> None:
    *parents, last = path.split(".")
    target: Any = message
    for name in parents:
        target = target[int(name) if name.isdigit() else name]
    target[last] = value


@pytest.mark.parametrize(
    ("path", "values"),
    [
        ("version", [None, "1", True]),
        ("host", [None, 7, "x" * 256, "a\nb"]),
        ("private", [None, [], "x"]),
        ("attributes", [None, [], 1]),
        ("attributes.qpn", [None, -1, 0, 2, 1 << 24, 3.0, True, "3"]),
        ("attributes.first_psn", [None, -1, 1 << 24]),
        ("attributes.path_mtu", [None, 0, 252, 1025, 16388]),
        ("attributes.mpr", [None, 0, 127, 1000, 4224]),
        ("attributes.max_wimm", [None, 0, 65536]),
        ("attributes.integrity", [None, "none", 0]),
        ("attributes.udp_port", [None, 0, 65536]),
        ("attributes.ports", [None, [], [None] * 33, ["x"], {}]),
        ("attributes.ports.0.nic", [None, 1, "x" * 65]),
        ("attributes.ports.0.address", [None, "x", 1, "10.0.0.300", "1" * 65]),
        ("attributes.ports.0.address", ["224.0.0.1/24", "ff02::1", "0.0.0.0", "::", "240.0.0.1"]),
        ("attributes.ports.0.address", ["255.255.255.255", "10.0.0.255/24", "::ffff:10.0.0.1"]),
        ("attributes.ports.0.source_ports", [None, [], [0], [65536], ["1"], [1] * 65]),
        ("attributes.ports.0.mtu", [None, -4, 16388]),
    ],
)
def test_hello__each_attribute_is_checked(path: str, values: list[object]) -> None:
    for value in values:
        message = copy.deepcopy(HELLO.to_dict())
        set_at(message, path, value)
        with pytest.raises(ProtocolError, match=path.rpartition(".")[2].rstrip("s")):
            Hello.from_dict(message)


@given(JSON)
def test_hello__any_json_gives_a_hello_or_a_protocol_error(value: object) -> None:
    message = HELLO.to_dict()
    for candidate in (value, {**message, "attributes": value}):
        if not isinstance(candidate, dict):
            continue
        try:
            Hello.from_dict(candidate)
        except ProtocolError:
            pass


def test_hello__optional_capabilities_default_to_none() -> None:
    attributes = dataclasses.replace(HELLO.attributes, trim_nack=True)
    message = replace(HELLO, attributes=attributes).to_dict()
    assert Hello.from_dict(message).attributes.trim_nack
    for name in ("trim_nack", "dynamic_mpr", "service_time", "sack_times"):
        del message["attributes"][name]
    assert Hello.from_dict(message) == HELLO


# ---- Refusals -----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", Kind)
def test_fields__also_for_a_former_mrc(kind: Kind) -> None:
    found = refusal_fields("in words", kind)
    assert kind_in(found) is kind
    assert found["busy"] is (kind is Kind.BUSY)


@pytest.mark.parametrize(
    ("message", "kind"),
    [
        ({"kind": "no answer", "busy": False}, Kind.NO_ANSWER),
        ({"kind": ""}, Kind.OTHER),
        ({"reason": "is UDP blocked?"}, Kind.OTHER),
        ({"reason": "of mrc 0.3", "busy": True}, Kind.BUSY),
        ({"reason": "of mrc 0.3", "busy": False}, Kind.OTHER),
        ({"kind": "of a later version"}, Kind.OTHER),
        ({"kind": ["busy"]}, Kind.OTHER),
    ],
)
def test_kind_in(message: dict[str, Any], kind: Kind) -> None:
    assert kind_in(message) is kind


# ---- Messages during other work -----------------------------------------------------------------


async def until(condition: Callable[[], object]) -> None:
    while not condition():  # noqa: ASYNC110  # there is no event
        await asyncio.sleep(0)


async def forever() -> None:
    await asyncio.get_running_loop().create_future()


async def test_during__the_result() -> None:
    async def work() -> int:
        return 7

    async with channels() as (one, other):
        assert await one.during(work()) == 7
        await other.send("proved", mtu=1)
        assert (await one.expect("proved"))["mtu"] == 1


async def test_during__an_early_message_is_kept() -> None:
    done = asyncio.Event()

    async def work() -> int:
        await done.wait()
        return 7

    async with channels() as (one, other):
        working = asyncio.create_task(one.during(work()))
        await other.send("proved", mtu=1)
        await other.send("rts")
        await until(lambda: one.received_bytes)
        done.set()
        assert await working == 7
        assert (await one.expect("proved"))["mtu"] == 1
        await one.expect("rts")


async def test_during__pings_are_answered_also_after_an_early_message() -> None:
    done = asyncio.Event()

    async def work() -> None:
        await one.ping()
        done.set()

    async with channels() as (one, other):
        working = asyncio.create_task(one.during(work()))
        await other.send("proved", mtu=1)
        await other.during(done.wait())
        await working
        assert not one.silent
        assert (await one.expect("proved"))["mtu"] == 1


async def test_during__pings_are_answered_until_the_next_message() -> None:
    """This side is done, and waits for the peer's word."""

    async def work() -> None:
        pass

    async with channels() as (one, other):
        await one.during(work())
        waiting = asyncio.create_task(one.expect("proved"))
        await other.during(other.ping())
        await other.send("proved", mtu=1)
        assert (await waiting)["mtu"] == 1


async def test_during__a_pong_may_come_after_the_next_message() -> None:
    """Our probes were answered while a ping was under way; the peer had said its next word."""

    async def work() -> None:
        asking = asyncio.create_task(one.ping())
        await until(lambda: one.silent)
        await cancelled(asking)

    async with channels() as (one, other):
        await other.send("proved", mtu=1)
        await one.during(work())
        assert (await one.expect("proved"))["mtu"] == 1
        answering = asyncio.create_task(other.during(forever()))
        await until(lambda: other.received_bytes)
        await other.send("rts")
        await one.expect("rts")
        assert not one.silent
        await cancelled(answering)


async def test_during__a_peer_that_answers_nothing_is_silent() -> None:
    async with channels() as (one, _):
        working = asyncio.create_task(one.during(one.ping()))
        await until(lambda: one.silent)
        working.cancel()
        await asyncio.wait([working])
        assert one.silent


async def test_during__a_flood_of_pings_ends_it() -> None:
    async with channels() as (one, other):
        working = asyncio.create_task(one.during(forever()))
        for _ in range(300):
            await other.send("ping")
        with pytest.raises(ProtocolError, match="257 pings"):
            await working


@pytest.mark.parametrize("kind", Kind)
async def test_during__a_refusal_ends_it(kind: Kind) -> None:
    async with channels() as (one, other):
        working = asyncio.create_task(one.during(forever()))
        await other.refuse("no room", kind)
        error = BusyError if kind is Kind.BUSY else ConnectRefusedError
        with pytest.raises(error, match="no room") as refused:
            await working
        assert refused.value.kind is kind


async def test_during__a_peer_that_goes_ends_it() -> None:
    async with channels() as (one, other):
        working = asyncio.create_task(one.during(forever()))
        await other.close()
        with pytest.raises(PeerGoneError, match="closed the connection"):
            await working


async def test_during__its_error_is_the_caller_s() -> None:
    async def work() -> None:
        raise ValueError("mine")

    async with channels() as (one, _):
        with pytest.raises(ValueError, match="mine"):
            await one.during(work())


async def test_during__nothing_reads_after_the_end() -> None:
    async def work() -> None:
        pass

    async with channels() as (one, _):
        await one.during(work())
        one.abort()
        await asyncio.sleep(0)
        assert not [task for task in asyncio.all_tasks() if reads(task, one)]


def reads(task: asyncio.Task[object], channel: Channel) -> bool:
    return task is channel._ahead and not task.done()


# ---- Close --------------------------------------------------------------------------------------


def fill(channel: Channel) -> None:
    """Writes more than the sockets of a peer that does not read can take."""
    transport = channel._writer.transport
    descriptor = transport.get_extra_info("socket")
    descriptor.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    while not transport.get_write_buffer_size():
        channel._writer.write(bytes(FRAME_BYTES))


@pytest.mark.parametrize(
    ("error", "raised", "text"),
    [
        (ConnectionResetError("reset"), PeerGoneError, "the peer closed the connection"),
        (BrokenPipeError("broken"), PeerGoneError, "the peer closed the connection"),
        (OSError(errno.ENOBUFS, "no room"), OSError, "no room"),
    ],
)
async def test_send__to_a_peer_that_is_gone(
    monkeypatch: pytest.MonkeyPatch, error: OSError, raised: type[Exception], text: str
) -> None:
    async with channels() as (one, _):
        monkeypatch.setattr(one._writer, "drain", AsyncMock(side_effect=error))
        with pytest.raises(raised, match=text):
            await one.send("ready")


@pytest.mark.parametrize(("size", "pauses"), [(10, []), (2 * FRAME_BYTES, [4.5])])
async def test_peek__large_messages_get_a_tenth_of_the_time(
    monkeypatch: pytest.MonkeyPatch, size: int, pauses: list[float]
) -> None:
    times, paused = iter([10.0, 10.5]), list[float]()

    async def sleep(seconds: float) -> None:
        paused.append(seconds)

    async with channels() as (one, other):
        await one.send("hello", filler="x" * size)
        with monkeypatch.context() as patched:
            patched.setattr(asyncio, "sleep", sleep)
            patched.setattr(asyncio, "get_running_loop", lambda: Mock(time=times.__next__))
            assert await other.peek(HELLO_BYTES, asyncio.Lock()) == "hello"
    assert paused == pauses


async def test_close__cancelled_while_the_peer_does_not_read() -> None:
    async with channels() as (one, other):
        reader: Any = other._reader
        reader._transport.pause_reading()
        fill(one)
        closing = asyncio.create_task(one.close())
        await asyncio.sleep(0)  # the task waits now
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        assert one._writer.transport.get_write_buffer_size() == 0  # dropped, not left to linger


# ---- Silence of the connection ------------------------------------------------------------------


def options(tcp: socket.socket) -> tuple[int, ...]:
    names = socket.TCP_KEEPINTVL, socket.TCP_KEEPIDLE, socket.TCP_USER_TIMEOUT
    return tuple(tcp.getsockopt(socket.IPPROTO_TCP, name) for name in names)


def test_limit__the_kernel_is_told_and_later_told_otherwise() -> None:
    with socket.socket() as tcp:
        keepalive = Keepalive(tcp)
        usual = options(tcp)
        assert usual[1:] == (60, 0)
        keepalive.limit(0.0)
        assert options(tcp) == (1, 1, 4000)
        keepalive.limit(0.5)
        assert options(tcp) == (1, 1, 6000)
        keepalive.limit(None)
        assert options(tcp) == usual


@pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_limit__of_a_closed_connection_is_nobody_s_error(
    loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    async def run() -> None:
        server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0)
        async with server:
            _, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
            keepalive = Keepalive(writer.get_extra_info("socket"))
            writer.close()
            await writer.wait_closed()
            await asyncio.sleep(0)  # only then it has no descriptor any more
            keepalive.limit(0.5)

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(run())


@pytest.mark.parametrize("number", [errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH])
async def test_limit_silence__names_a_connection_that_was_cut_off(number: int) -> None:
    """Without the limit the error stays as it is: then it is none of the QP's."""
    error = OSError(number, "the kernel's word")
    async with channels() as (one, other):
        one.limit_silence(on=True)
        one._reader.set_exception(error)  # type: ignore[union-attr]
        with pytest.raises(CutOffError):
            await one.receive()
        other._reader.set_exception(error)  # type: ignore[union-attr]
        with pytest.raises(OSError, match="the kernel's word"):
            await other.receive()


async def test_limit_silence__a_peer_that_goes_was_not_cut_off() -> None:
    async with channels() as (one, other):
        one.limit_silence(on=True)
        other.abort()
        with pytest.raises(PeerGoneError):
            await one.receive()


# ---- Patience -----------------------------------------------------------------------------------


TRIPS = 2


async def ended(rtt: float, grace: float, *, anew: bool) -> float:
    """When the limit of 5 s ends for a peer whose messages come after 4, 8 and 12 seconds."""
    loop = asyncio.get_running_loop()
    watchers: list[Callable[[], None]] = []
    channel: Any = SimpleNamespace(rtt=rtt, grace=grace, watchers=watchers)

    def message() -> None:
        for watcher in watchers:
            watcher()

    for at in (4, 8, 12):
        loop.call_at(at, message)
    with pytest.raises(TimeoutError):
        async with patience(channel, 5.0, TRIPS, anew=anew):
            await loop.create_future()
    assert not watchers
    return loop.time()


@pytest.mark.parametrize(
    ("rtt", "grace", "anew", "at"),
    [
        (0.0, 0.0, False, 5.0),
        (0.5, 0.0, False, 6.0),
        (1.5, 0.0, False, 8.0),
        (1000.0, 0.0, False, 5.0 + TRIPS * LONGEST_RTT_SECONDS),
        (0.5, 90.0, False, 96.0),
        (0.0, 0.0, True, 17.0),
        (0.5, 0.0, True, 18.0),
    ],
)
def test_patience__grows_with_the_round_trip(
    rtt: float, grace: float, anew: bool, at: float
) -> None:
    loop = Jumping()
    try:
        assert loop.run_until_complete(ended(rtt, grace, anew=anew)) == pytest.approx(at)
    finally:
        loop.close()


# ---- Values from peers, made safe for terminals, logs and arithmetic -----------------------------


def test_printable__escapes_what_a_terminal_acts_on() -> None:
    assert printable("a b\x1b[2J\n\u202eä\udcff") == "a b\\x1b[2J\\n\\u202eä\\udcff"


def test_shown__is_cut() -> None:
    assert shown("x" * 10, 10) == "x" * 10
    assert shown("x" * 11, 10) == "xxxxxxx..."
    assert shown("\x1b" * 9, 10) == "\\x1b\\x1..."


NESTED: Any = []
for _ in range(10_000):
    NESTED = [NESTED]


@pytest.mark.parametrize(
    ("value", "said"),
    [(7, "7"), (None, "None"), (1.5, "1.5"), (True, "True"), (NESTED, "(list)"), ({}, "(dict)")],
    ids=["whole", "none", "real", "flag", "nested", "object"],
)
def test_shown__what_is_no_text(value: Any, said: str) -> None:
    assert shown(value) == said


@given(st.text() | st.integers() | st.lists(st.text()))
def test_shown__is_one_harmless_line_of_bounded_length(value: Any) -> None:
    assert shown(value, 40).isprintable()
    assert len(shown(value, 40)) <= 40


def test_harmless_lines__keeps_the_lines() -> None:
    assert harmless_lines("a\tb\nc\x1b[1m\u200b") == "a\\tb\nc\\x1b[1m\\u200b"


def test_parse__an_object() -> None:
    told = {"a": [MAX_WHOLE, -MAX_WHOLE, 1.5, None, "é", {"b": True}]}
    assert parse(json.dumps(told).encode()) == told


@pytest.mark.parametrize(
    "data",
    [b"", b"{", b"\xff", b"[" * 100_000, b"[1]", b"1", b'{"a": NaN}', b'{"a": Infinity}',
     b'{"a": 1e400}', b'{"a": -1e400}', b'{"a": 18446744073709551616}',
     b'{"a": 1' + b"0" * 400 + b"}", b'{"a": 1' + b"0" * 5000 + b"}"],
)  # fmt: skip
def test_parse__refuses(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"^not (JSON|a JSON object)$"):
        parse(data)


# ---- The owners of real sockets on loopback ------------------------------------------------------


def end(address: tuple[str | int, ...]) -> SocketAddress:
    return parse_address(str(address[0])), int(address[1])


@pytest.mark.parametrize(
    ("listens", "calls"),
    [("127.0.0.1", "127.0.0.1"), ("::1", "::1"), ("::", "127.0.0.1"), ("::", "::1")],
)
def test_owner_of__both_ends(listens: str, calls: str) -> None:
    """`::` takes IPv4 too: then its socket has an IPv4 address that is written as IPv6."""
    family = socket.AF_INET6 if ":" in listens else socket.AF_INET
    both = listens == "::"
    with socket.create_server((listens, 0), family=family, dualstack_ipv6=both) as server:
        client = socket.create_connection((calls, server.getsockname()[1]))
        with client:
            here, there = end(client.getsockname()), end(client.getpeername())
            assert owner_of(here, there) == Owner(os.geteuid(), accepted=True)
            found = owner_of(there, here)
            assert found is not None and not found.accepted
            accepted, _ = server.accept()
            with accepted:
                assert owner_of(there, here) == Owner(os.geteuid(), accepted=True)
            assert owner_of(here, (ip_address(calls), 1)) is None


def test_owner_of__nobody() -> None:
    assert owner_of((ip_address("127.0.0.1"), 1), (ip_address("127.0.0.1"), 2)) is None
